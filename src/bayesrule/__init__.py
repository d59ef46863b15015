"""Bayesian deep learning with structured posteriors."""

from importlib import import_module
from typing import TYPE_CHECKING

from bayesrule import contractions, distributed, errors, estimators, expfam, likelihoods, metrics, optim, priors
from bayesrule.compress import compress, explained_variance
from bayesrule.estimators import Auto, Flipout, LocalReparam, Mean, WeightSample
from bayesrule.inference import laplace
from bayesrule.likelihoods import Bernoulli, Categorical, Gaussian, GaussianMixture, HeteroscedasticGaussian, Poisson
from bayesrule.nn import NegativeELBO, annealing, bayesianize, kl, mean_module, posteriors, save
from bayesrule.posteriors import (
    ClippedLowRank,
    Diagonal,
    Full,
    KTied,
    MatrixNormal,
    MatrixNormalDiagonal,
    Point,
    project,
)
from bayesrule.predict import Predictive, predict
from bayesrule.priors import ARD, GroupARD, HeNormal, LearnedNormal, Normal
from bayesrule.prune import prune
from bayesrule.train import acquire, fit, load

if TYPE_CHECKING:
    from bayesrule.train.sklearn_models import BayesianClassifier, BayesianRegressor

__version__ = "0.1.0"

# `compress`, `posteriors`, `predict` and `prune` are the functions; the packages of the same names are reached by
# `from bayesrule.posteriors import …` and so on.
__all__ = [
    "ARD",
    "Auto",
    "BayesianClassifier",
    "BayesianRegressor",
    "Bernoulli",
    "Categorical",
    "ClippedLowRank",
    "Diagonal",
    "Flipout",
    "Full",
    "Gaussian",
    "GaussianMixture",
    "GroupARD",
    "HeNormal",
    "HeteroscedasticGaussian",
    "KTied",
    "LearnedNormal",
    "LocalReparam",
    "MatrixNormal",
    "MatrixNormalDiagonal",
    "Mean",
    "NegativeELBO",
    "Normal",
    "Point",
    "Poisson",
    "Predictive",
    "WeightSample",
    "acquire",
    "annealing",
    "bayesianize",
    "compress",
    "contractions",
    "distributed",
    "errors",
    "estimators",
    "expfam",
    "explained_variance",
    "fit",
    "kl",
    "laplace",
    "likelihoods",
    "load",
    "mean_module",
    "metrics",
    "optim",
    "posteriors",
    "predict",
    "priors",
    "project",
    "prune",
    "save",
]


def __getattr__(name: str) -> object:
    """The estimators, imported when they are first asked for: the rest runs without scikit-learn."""
    if name not in ("BayesianClassifier", "BayesianRegressor"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module("bayesrule.train.sklearn_models"), name)
    except ModuleNotFoundError as error:
        raise errors.Unsupported(
            f"{name} needs the package {error.name}", remedy="pip install 'bayesrule[tabular]'"
        ) from error

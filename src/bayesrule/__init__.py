"""Bayesian deep learning with structured posteriors."""

from bayesrule import contractions, errors, estimators, expfam, likelihoods, metrics, priors
from bayesrule.compress import compress, explained_variance
from bayesrule.estimators import Auto, Flipout, LocalReparam, Mean, WeightSample
from bayesrule.likelihoods import Bernoulli, Categorical, Gaussian, GaussianMixture, HeteroscedasticGaussian, Poisson
from bayesrule.nn import NegativeELBO, annealing, bayesianize, kl, load, mean_module, posteriors, save
from bayesrule.posteriors import ClippedLowRank, Diagonal, Full, KTied, MatrixNormal, MatrixNormalDiagonal, Point
from bayesrule.predict import Predictive, predict
from bayesrule.priors import ARD, GroupARD, HeNormal, LearnedNormal, Normal

__version__ = "0.1.0"

# `compress`, `posteriors` and `predict` are the functions; the packages of the same names are reached by
# `from bayesrule.posteriors import …` and so on.
__all__ = [
    "ARD",
    "Auto",
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
    "annealing",
    "bayesianize",
    "compress",
    "contractions",
    "errors",
    "estimators",
    "expfam",
    "explained_variance",
    "kl",
    "likelihoods",
    "load",
    "mean_module",
    "metrics",
    "posteriors",
    "predict",
    "priors",
    "save",
]

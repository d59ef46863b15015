"""Bayesian deep learning with structured posteriors."""

from bayesrule import contractions, errors, estimators, likelihoods, posteriors, priors
from bayesrule.estimators import Auto, Flipout, LocalReparam, Mean, WeightSample
from bayesrule.likelihoods import Bernoulli, Categorical, Gaussian, Poisson
from bayesrule.posteriors import Diagonal, Full, KTied, MatrixNormal, MatrixNormalDiagonal, Point
from bayesrule.priors import ARD, GroupARD, HeNormal, LearnedNormal, Normal

__version__ = "0.1.0"

__all__ = [
    "ARD",
    "Auto",
    "Bernoulli",
    "Categorical",
    "Diagonal",
    "Flipout",
    "Full",
    "Gaussian",
    "GroupARD",
    "HeNormal",
    "KTied",
    "LearnedNormal",
    "LocalReparam",
    "MatrixNormal",
    "MatrixNormalDiagonal",
    "Mean",
    "Normal",
    "Point",
    "Poisson",
    "WeightSample",
    "contractions",
    "errors",
    "estimators",
    "likelihoods",
    "posteriors",
    "priors",
]

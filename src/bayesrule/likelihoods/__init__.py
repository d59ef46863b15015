"""Likelihoods: what a network's outputs say about the targets, one file each."""

from bayesrule.likelihoods.base import Likelihood, PointLikelihood
from bayesrule.likelihoods.bernoulli import Bernoulli
from bayesrule.likelihoods.categorical import Categorical
from bayesrule.likelihoods.gamma import GammaPrecision
from bayesrule.likelihoods.gaussian import Gaussian
from bayesrule.likelihoods.gaussian_gamma_noise import GaussianGammaNoise
from bayesrule.likelihoods.gaussian_mixture import GaussianMixture
from bayesrule.likelihoods.heteroscedastic_gaussian import HeteroscedasticGaussian
from bayesrule.likelihoods.moments import Moments, PredictiveMoments
from bayesrule.likelihoods.poisson import Poisson
from bayesrule.likelihoods.student_t import StudentT

LIKELIHOODS: tuple[type[Likelihood], ...] = (
    Gaussian,
    GaussianGammaNoise,
    HeteroscedasticGaussian,
    GaussianMixture,
    StudentT,
    Categorical,
    Bernoulli,
    Poisson,
)

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Categorical",
    "GammaPrecision",
    "Gaussian",
    "GaussianGammaNoise",
    "GaussianMixture",
    "HeteroscedasticGaussian",
    "Likelihood",
    "Moments",
    "PointLikelihood",
    "Poisson",
    "PredictiveMoments",
    "StudentT",
]

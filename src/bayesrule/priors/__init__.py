"""Priors, one file each, and the one KL that serves every pair."""

from bayesrule.priors.ard import ARD
from bayesrule.priors.divergence import kl_divergence, total_kl
from bayesrule.priors.group_ard import GroupARD
from bayesrule.priors.he_normal import HeNormal
from bayesrule.priors.learned_normal import LearnedNormal
from bayesrule.priors.normal import Normal
from bayesrule.priors.prior import DiagonalNormal, Prior

__all__ = [
    "ARD",
    "DiagonalNormal",
    "GroupARD",
    "HeNormal",
    "LearnedNormal",
    "Normal",
    "Prior",
    "kl_divergence",
    "total_kl",
]

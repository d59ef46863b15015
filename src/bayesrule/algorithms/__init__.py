"""Every row of the paper's Table 1: a family, where the gradient is taken, a curvature, a few lines that call the rule.

Nothing here repeats a classical algorithm. That each *is* one is shown by running it beside an independent
implementation: ``bayesrule reproduce blr/table1``.
"""

from __future__ import annotations

from bayesrule.algorithms.adam import adam
from bayesrule.algorithms.bayesbinn import bayesbinn
from bayesrule.algorithms.conjugate import bayes_rule
from bayesrule.algorithms.descent import Losses, descend
from bayesrule.algorithms.dropout import dropout_newton, dropout_rmsprop, dropout_sgd
from bayesrule.algorithms.em import CompleteData, e_step, em_step, m_step
from bayesrule.algorithms.exponential_weights import exponential_weights
from bayesrule.algorithms.gradient_descent import gradient_descent
from bayesrule.algorithms.laplace import laplace
from bayesrule.algorithms.multimodal import multimodal, uniform_mixture
from bayesrule.algorithms.newton import newton
from bayesrule.algorithms.nonconjugate_vi import nonconjugate_mixture_vi, nonconjugate_vi
from bayesrule.algorithms.nonconjugate_vmp import nonconjugate_vmp_sweep
from bayesrule.algorithms.ogn import ogn
from bayesrule.algorithms.rmsprop import rmsprop
from bayesrule.algorithms.sgd import sgd
from bayesrule.algorithms.ste import straight_through
from bayesrule.algorithms.svi import svi_step
from bayesrule.algorithms.vmp import ExpectedLoss, vmp_sweep
from bayesrule.algorithms.vogn import vogn

__all__ = [
    "CompleteData",
    "ExpectedLoss",
    "Losses",
    "adam",
    "bayes_rule",
    "bayesbinn",
    "descend",
    "dropout_newton",
    "dropout_rmsprop",
    "dropout_sgd",
    "e_step",
    "em_step",
    "exponential_weights",
    "gradient_descent",
    "laplace",
    "m_step",
    "multimodal",
    "newton",
    "nonconjugate_mixture_vi",
    "nonconjugate_vi",
    "nonconjugate_vmp_sweep",
    "ogn",
    "rmsprop",
    "sgd",
    "straight_through",
    "svi_step",
    "uniform_mixture",
    "vmp_sweep",
    "vogn",
]

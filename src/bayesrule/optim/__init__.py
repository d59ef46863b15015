"""Optimizers that hold posteriors: a pure rule each, in one shell."""

from bayesrule.optim.group import Group
from bayesrule.optim.messages import Messages
from bayesrule.optim.noisy_adam import NoisyAdam, NoisyAdamRule
from bayesrule.optim.noisy_block_tridiagonal import NoisyBlockTridiagonal, NoisyBlockTridiagonalRule
from bayesrule.optim.noisy_ekfac import NoisyEKFAC, NoisyEKFACRule
from bayesrule.optim.noisy_full import NoisyFull, NoisyFullRule
from bayesrule.optim.noisy_kfac import NoisyKFAC, NoisyKFACRule
from bayesrule.optim.plan import Plan, PlannedParameter
from bayesrule.optim.rule import Message, PriorTerm, Rule, State
from bayesrule.optim.sampling import due
from bayesrule.optim.shell import PosteriorOptimizer

OPTIMIZERS: tuple[type[PosteriorOptimizer], ...] = (
    NoisyAdam,
    NoisyKFAC,
    NoisyEKFAC,
    NoisyFull,
    NoisyBlockTridiagonal,
)

__all__ = [
    "OPTIMIZERS",
    "Group",
    "Message",
    "Messages",
    "NoisyAdam",
    "NoisyAdamRule",
    "NoisyBlockTridiagonal",
    "NoisyBlockTridiagonalRule",
    "NoisyEKFAC",
    "NoisyEKFACRule",
    "NoisyFull",
    "NoisyFullRule",
    "NoisyKFAC",
    "NoisyKFACRule",
    "Plan",
    "PlannedParameter",
    "PosteriorOptimizer",
    "PriorTerm",
    "Rule",
    "State",
    "due",
]

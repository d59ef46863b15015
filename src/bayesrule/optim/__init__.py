"""Optimizers that hold posteriors: a pure rule each, in one shell."""

from bayesrule.optim.bayes_binn import BayesBiNN, BayesBiNNRule
from bayesrule.optim.binary import BinaryOptimizer
from bayesrule.optim.binary_export import PackedNetwork, pack_binary
from bayesrule.optim.group import Group
from bayesrule.optim.intervals import due
from bayesrule.optim.ivon import IVON, IVONRule
from bayesrule.optim.ktied_von import KTiedVON, KTiedVONRule
from bayesrule.optim.messages import Exchange, Messages
from bayesrule.optim.noisy_adam import NoisyAdam, NoisyAdamRule
from bayesrule.optim.noisy_block_tridiagonal import NoisyBlockTridiagonal, NoisyBlockTridiagonalRule
from bayesrule.optim.noisy_ekfac import NoisyEKFAC, NoisyEKFACRule
from bayesrule.optim.noisy_full import NoisyFull, NoisyFullRule
from bayesrule.optim.noisy_kfac import NoisyKFAC, NoisyKFACRule
from bayesrule.optim.ogn import OGN, OGNRule
from bayesrule.optim.plan import Plan, PlannedParameter
from bayesrule.optim.rule import Message, PriorTerm, Rule, State
from bayesrule.optim.shell import PosteriorOptimizer
from bayesrule.optim.ste import STE, STERule
from bayesrule.optim.vogn import VOGN, VOGNRule

OPTIMIZERS: tuple[type[PosteriorOptimizer], ...] = (
    NoisyAdam,
    NoisyKFAC,
    NoisyEKFAC,
    NoisyFull,
    NoisyBlockTridiagonal,
    OGN,
    VOGN,
    IVON,
    KTiedVON,
    BayesBiNN,
    STE,
)

__all__ = [
    "IVON",
    "OGN",
    "OPTIMIZERS",
    "STE",
    "VOGN",
    "BayesBiNN",
    "BayesBiNNRule",
    "BinaryOptimizer",
    "Exchange",
    "Group",
    "IVONRule",
    "KTiedVON",
    "KTiedVONRule",
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
    "OGNRule",
    "PackedNetwork",
    "Plan",
    "PlannedParameter",
    "PosteriorOptimizer",
    "PriorTerm",
    "Rule",
    "STERule",
    "State",
    "VOGNRule",
    "due",
    "pack_binary",
]

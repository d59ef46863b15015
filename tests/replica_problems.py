"""Small regressions for replicas, and the rules that train them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import bayesrule as br
from bayesrule.optim.noisy_adam import NoisyAdamRule
from bayesrule.optim.noisy_block_tridiagonal import NoisyBlockTridiagonalRule
from bayesrule.optim.noisy_ekfac import NoisyEKFACRule
from bayesrule.optim.noisy_full import NoisyFullRule
from bayesrule.optim.noisy_kfac import NoisyKFACRule
from bayesrule.train.replicas import Replicas

KINDS = {
    "adam": (NoisyAdamRule(), br.optim.NoisyAdam, {}),
    "kfac": (NoisyKFACRule(beta=0.05), br.optim.NoisyKFAC, {"beta": 0.05}),
    "kfac exact": (NoisyKFACRule(beta=0.05, damping="exact"), br.optim.NoisyKFAC, {"beta": 0.05, "damping": "exact"}),
    "kfac momentum": (
        NoisyKFACRule(beta=0.05, momentum=0.5, extra_damping=0.01),
        br.optim.NoisyKFAC,
        {"beta": 0.05, "momentum": 0.5, "extra_damping": 0.01},
    ),
    "ekfac": (NoisyEKFACRule(beta=0.05), br.optim.NoisyEKFAC, {"beta": 0.05}),
    "full": (NoisyFullRule(beta=0.05), br.optim.NoisyFull, {"beta": 0.05}),
    "block-tridiagonal": (NoisyBlockTridiagonalRule(beta=0.05), br.optim.NoisyBlockTridiagonal, {"beta": 0.05}),
}
SETTINGS = {"lr": [0.02, 0.005], "kl_weight": [1.0, 0.5], "prior_std": [0.8, 1.5]}
EPOCHS, ROWS, BATCH = 25, 37, 10
T_STATS, T_INV = 2, 4


def problem(replicas: int = 2, targets: int = 1) -> tuple[Tensor, Tensor]:
    x = torch.randn(replicas, ROWS, 3, dtype=torch.float64)
    return x, torch.sin(x[..., :targets] * 2) + 0.1 * torch.randn(replicas, ROWS, targets, dtype=torch.float64)


def trained(
    rule: Any, x: Tensor, y: Tensor, hidden: tuple[int, ...] = (4,), epochs: int = EPOCHS, **changes: Any
) -> Replicas:
    options = {**SETTINGS, "T_stats": T_STATS, "T_inv": T_INV, "seeds": range(len(x)), "quiet_steps": 0, **changes}
    replicas = Replicas(x, y, rule, hidden=hidden, batch_size=BATCH, **options)
    replicas.train(epochs // 2)
    replicas.train(epochs - epochs // 2, lr_factor=0.1)
    return replicas

"""Calibration and weights of an ensemble, from rows its members did not see.

Members are cross-fitted: each kind (a temperature of the KL) has one member for every fold of the training rows,
trained without it. So every row is held out by one member of each kind, and ``p_t(i; c)`` is that member's density of
row i with its noise scaled by c (a regression's standard deviations multiplied, a classification's logits divided).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

GRID = torch.linspace(math.log(0.15), math.log(3.0), 61, dtype=torch.float64)
"""Logarithms of the scales tried."""
OWN_SCALE, COMMON_SCALE = 0.7, 0.5
"""Standard deviations of the normal priors on a kind's own log-scale, and on the common one."""
SMALLEST_SQUARE = 0.16
"""The common scale's square never goes below this by the correction for the ensemble's size."""


@dataclass(frozen=True)
class Calibration:
    """What was found.

    Attributes:
        log_scales: For each kind of member, the logarithm of its scale.
        weights: For each kind, its share of the mixture.
    """

    log_scales: Tensor
    weights: Tensor


def calibrate(held_out: Callable[[float], Tensor], kinds: int, folds: int) -> Calibration:
    """Scales and weights of each kind of member.

    1. Each kind's own scale maximises its held-out log-likelihood.
    2. A common factor and the weights maximise that of the mixture over kinds (weights by EM, one pseudo-count each).
    3. The final ensemble has ``folds`` times as many members as that mixture. A pool of M members with spread V and
       error s² wants components of variance ``s² − V + 2V/M``: linear in 1/M, so the factor's square is carried over
       by ``k² ← 1 + (k² − 1)(1 − 1/M)/(1 − 1/R)``, where R is the effective number of kinds.

    Args:
        held_out: Given a log-scale, log-densities (kinds, rows) of held-out rows.
        kinds: How many kinds of members.
        folds: Members of each kind.
    """
    table = torch.stack([held_out(float(log_scale)) for log_scale in GRID]).double()  # (grid, kinds, rows)
    own = (table.sum(-1) - 0.5 * (GRID[:, None] / OWN_SCALE).square()).argmax(0)
    log_common, weights = _common(table, own)
    log_common = _for_more_members(log_common, weights, folds)
    return Calibration((GRID[own] + log_common).clamp(GRID[0], GRID[-1]), weights)


def _common(table: Tensor, own: Tensor) -> tuple[float, Tensor]:
    """The common factor's logarithm and the weights: those of the best shift along the grid, all tried at once."""
    shifts = torch.arange(-len(GRID) + 1, len(GRID))
    index = (own + shifts[:, None]).clamp(0, len(GRID) - 1)
    densities = table[index, torch.arange(len(own))]  # (shifts, kinds, rows)
    weights = mixture_weights(densities)
    logarithms = shifts * (GRID[1] - GRID[0])
    scores = torch.logsumexp(weights.log().unsqueeze(-1) + densities, -2).sum(-1)
    best = (scores - 0.5 * (logarithms / COMMON_SCALE).square()).argmax()
    return float(logarithms[best]), weights[best]


def mixture_weights(log_densities: Tensor, pseudo_count: float = 1.0, iterations: int = 60) -> Tensor:
    """Weights of fixed densities (…, kinds, rows) by EM, with a Dirichlet prior of that pseudo-count."""
    kinds = log_densities.shape[-2]
    weights = log_densities.new_full(log_densities.shape[:-1], 1 / kinds)
    for _ in range(iterations if kinds > 1 else 0):
        joint = weights.log().unsqueeze(-1) + log_densities
        shares = joint.softmax(-2).sum(-1) + pseudo_count
        weights = (shares / shares.sum(-1, keepdim=True)).clamp_min(1e-9)
    return weights


def _for_more_members(log_common: float, weights: Tensor, folds: int) -> float:
    effective = float(1 / weights.square().sum())
    if log_common >= 0 or effective <= 1.1:
        return log_common
    square = math.exp(2 * log_common)
    square = 1 + (square - 1) * (1 - 1 / (folds * effective)) / (1 - 1 / effective)
    return 0.5 * math.log(max(square, SMALLEST_SQUARE))

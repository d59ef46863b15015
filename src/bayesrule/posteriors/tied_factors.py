"""Factors of the k-tied Gaussian nearest to a diagonal one, in either KL: monotone multiplicative updates."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

Factors = tuple[Float[Tensor, "fan_in k"], Float[Tensor, "fan_out k"]]
SWEEPS = 2000
TOLERANCE = 1e-12
FLOOR = 1e-3
"""Smallest entry of a factor at the start, in units of its mean: zeros would stay zeros."""


def nearest_in_kl(precision: Float[Tensor, "fan_in fan_out"], rank: int) -> Factors:
    """``min Σ ½ p S² − log S`` over ``S = U Vᵀ``, which is KL(q ‖ p) up to a constant   [docs/ktied-von.md].

    With V fixed, ``U ← U ∘ √((1/S)V / (p∘S)V)`` never raises it; then V likewise.
    """

    def factor_update(rows: Tensor, columns: Tensor, target: Tensor) -> Tensor:
        spread = rows @ columns.mT
        return rows * ((spread.reciprocal() @ columns) / ((target * spread) @ columns)).sqrt()

    def loss(spread: Tensor) -> Tensor:
        return (0.5 * precision * spread.square() - spread.log()).sum()

    return _sweeps(precision, precision.rsqrt(), rank, factor_update, loss)


def nearest_in_moments(variance: Float[Tensor, "fan_in fan_out"], rank: int) -> Factors:
    """``min Σ ½ v/S² + log S`` over ``S = U Vᵀ``, which is KL(p ‖ q) up to a constant.

    ``S⁻²`` is convex and ``log S`` concave in S, so that with V fixed
    ``U ← U ∘ ((v/S³)V / (1/S)V)^⅓`` never raises it; then V likewise.
    """

    def factor_update(rows: Tensor, columns: Tensor, target: Tensor) -> Tensor:
        spread = rows @ columns.mT
        return rows * (((target / spread.pow(3)) @ columns) / (spread.reciprocal() @ columns)).pow(1 / 3)

    def loss(spread: Tensor) -> Tensor:
        return (0.5 * variance / spread.square() + spread.log()).sum()

    return _sweeps(variance, variance.sqrt(), rank, factor_update, loss)


def _sweeps(
    target: Tensor,
    std: Tensor,
    rank: int,
    factor_update: Callable[[Tensor, Tensor, Tensor], Tensor],
    loss: Callable[[Tensor], Tensor],
) -> Factors:
    """Updates of both factors in turn until the loss stands still."""
    rows, columns = _start(std, min(rank, *std.shape))
    before = loss(rows @ columns.mT)
    for _ in range(SWEEPS):
        rows = factor_update(rows, columns, target)
        columns = factor_update(columns, rows, target.mT)
        now = loss(rows @ columns.mT)
        if bool(before - now <= TOLERANCE * std.numel()):
            break
        before = now
    return rows, columns


def _start(std: Float[Tensor, "fan_in fan_out"], rank: int) -> Factors:
    """The parts of the leading singular vectors that have one sign   [Boutsidis & Gallopoulos 2008]."""
    left, values, right = torch.linalg.svd(std, full_matrices=False)
    rows, columns = [], []
    for u, value, v in zip(left.mT[:rank], values[:rank], right[:rank], strict=True):
        signs = [(u.clamp_min(0), v.clamp_min(0)), ((-u).clamp_min(0), (-v).clamp_min(0))]
        u, v = max(signs, key=lambda pair: float(pair[0].norm() * pair[1].norm()))
        rows.append(u * value.sqrt())
        columns.append(v * value.sqrt())
    found = torch.stack(rows, -1), torch.stack(columns, -1)
    return found[0].clamp_min(FLOOR * float(found[0].mean())), found[1].clamp_min(FLOOR * float(found[1].mean()))

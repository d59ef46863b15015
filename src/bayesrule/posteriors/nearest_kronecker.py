"""Factors of the matrix normal nearest to a Gaussian, in either KL, by flip-flop."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

SWEEPS = 500
TOLERANCE = 1e-13


def spectral_factors(
    spectrum: Float[Tensor, "fan_in fan_out"], by: Literal["kl", "moments"]
) -> tuple[Float[Tensor, " fan_in"], Float[Tensor, " fan_out"]]:
    """The nearest ``a bᵀ`` to independent variances; the optimum for any Kronecker eigenbasis lies in that basis.

    By KL(q ‖ p): ``1/a_i = mean_j b_j/s_ij``; by KL(p ‖ q): ``a_i = mean_j s_ij/b_j``; then b, in turn. Both are
    convex in log a and log b.
    """
    rows, columns = spectrum.new_ones(spectrum.shape[0]), spectrum.new_ones(spectrum.shape[1])
    for _ in range(SWEEPS):
        before = rows
        if by == "kl":
            rows = 1 / (columns / spectrum).mean(-1)
            columns = 1 / (rows[:, None] / spectrum).mean(-2)
        else:
            rows = (spectrum / columns).mean(-1)
            columns = (spectrum / rows[:, None]).mean(-2)
        if bool(((rows - before).abs() <= TOLERANCE * rows).all()):
            break
    return rows, columns


def nearest_factors(
    covariance: Float[Tensor, "entries entries"], shape: tuple[int, int], by: Literal["kl", "moments"]
) -> tuple[Float[Tensor, "fan_in fan_in"], Float[Tensor, "fan_out fan_out"]]:
    """``U ⊗ V`` nearest to a dense covariance   [the flip-flop of Dutilleul 1999].

    By KL(p ‖ q): ``U = (1/n) Σ_jl (V⁻¹)_jl Σ_(·j)(·l)``; by KL(q ‖ p) the same of the precisions.
    """
    fan_in, fan_out = shape
    whole = torch.linalg.inv(covariance) if by == "kl" else covariance
    blocks = whole.reshape(fan_in, fan_out, fan_in, fan_out)
    right = torch.eye(fan_out, dtype=whole.dtype, device=whole.device)
    left = torch.eye(fan_in, dtype=whole.dtype, device=whole.device)
    for _ in range(SWEEPS):
        before = left
        left = torch.einsum("ijkl,lj->ik", blocks, torch.linalg.inv(right)) / fan_out
        right = torch.einsum("ijkl,ki->jl", blocks, torch.linalg.inv(left)) / fan_in
        if bool((left - before).abs().max() <= TOLERANCE * left.abs().max()):
            break
    return (torch.linalg.inv(left), torch.linalg.inv(right)) if by == "kl" else (left, right)


def rotated_diagonal(matrix: Tensor, left: Tensor, right: Tensor) -> Float[Tensor, "fan_in fan_out"]:
    """``diag((L ⊗ R)ᵀ M (L ⊗ R))``, as a matrix."""
    blocks = matrix.reshape(len(left), len(right), len(left), len(right))
    half = torch.einsum("ijkl,ia,ka->ajl", blocks, left, left)
    return torch.einsum("ajl,jb,lb->ab", half, right, right)

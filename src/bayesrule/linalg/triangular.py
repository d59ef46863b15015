"""Lower-triangular factors from unconstrained matrices."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrule.forward_mode import in_forward_mode


def log_diagonal_cholesky(raw: Tensor) -> Tensor:
    """A lower-triangular factor ``D (I + N)``: D is ``exp`` of the diagonal of ``raw``, N its strictly lower part.

    In units of D a step of an optimizer means the same whatever the scale; absolute entries would drown a small D.
    """
    if in_forward_mode():
        scale = _diagonal(raw).exp()
        return (raw * scale.unsqueeze(-1)).tril(-1) + scale.diag_embed()
    return _LogDiagonalCholesky.apply(raw)


def scaled_identity_log_cholesky(size: int, scale: float, like: Tensor) -> Tensor:
    """The unconstrained matrix whose `log_diagonal_cholesky` is ``scale · I``."""
    log_scale = torch.log(torch.as_tensor(scale, dtype=like.dtype, device=like.device))
    return log_scale * torch.eye(size, dtype=like.dtype, device=like.device)


def triangular_logdet(factor: Tensor) -> Tensor:
    """``log det L`` of a triangular factor with positive diagonal."""
    return _diagonal(factor).log().sum(-1)


def triangular_moments(factor: Tensor) -> tuple[Tensor, Tensor]:
    """``(LLᵀ)_ii`` as a column, and ``log det L``, of a triangular factor L with positive diagonal.

    A KL needs both; together their gradient is one matrix.
    """
    if in_forward_mode():
        return factor.square().sum(-1, keepdim=True), triangular_logdet(factor)
    return _TriangularMoments.apply(factor)


# Both functions below are short compositions of torch's own. Each of those would read and write whole matrices for the
# gradient, which at a few hundred inputs costs more than the layer.


class _LogDiagonalCholesky(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(raw: Tensor) -> Tensor:
        scale = _diagonal(raw).exp()
        factor = (raw * scale.unsqueeze(-1)).tril(-1)
        _diagonal(factor).copy_(scale)
        return factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (factor,) = ctx.saved_tensors
        slope = (gradient * _diagonal(factor).unsqueeze(-1)).tril(-1)
        _diagonal(slope).copy_((gradient * factor).sum(-1))  # row i is proportional to the exponential of its own
        return slope


class _TriangularMoments(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(factor: Tensor) -> tuple[Tensor, Tensor]:
        squares = torch.linalg.vector_norm(factor, dim=-1, keepdim=True).square()
        return squares, triangular_logdet(factor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, of_squares: Tensor, of_logdet: Tensor) -> Tensor:
        (factor,) = ctx.saved_tensors
        slope = (2 * of_squares) * factor
        _diagonal(slope).add_(of_logdet.unsqueeze(-1) / _diagonal(factor))
        return slope


def _diagonal(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1)

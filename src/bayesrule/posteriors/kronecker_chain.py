"""Layers of a network as a Gaussian chain: the second moments of Kronecker-factored gradients, conditioned."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.posteriors.eigen_kronecker import EigenKroneckerCovariance, TurnedEigenKroneckerCovariance


def damp_factors(
    fan_in: Float[Tensor, "*batch fan_in fan_in"],
    fan_out: Float[Tensor, "*batch fan_out fan_out"],
    damping: float | Tensor,
) -> tuple[Tensor, Tensor]:
    """``A + π√γ I`` and ``G + (√γ/π) I``, ``π² = (tr A / dim A) / (tr G / dim G)``   [Martens & Grosse 2015, Sec. 6.3].

    Their Kronecker product is ``A ⊗ G + γI`` and two cross terms more, so it is damped by more than γ. Where a factor
    is zero, π is 1.
    """
    if not torch.as_tensor(damping >= 0).all():
        raise InvalidArgument("The damping must not be negative", got=damping)
    sides = fan_in, fan_out
    sizes = [side.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None] for side in sides]
    balance = torch.where(sizes[0] * sizes[1] > 0, sizes[0] / sizes[1], 1.0).sqrt()
    eyes = [torch.eye(side.shape[-1], dtype=side.dtype, device=side.device) for side in sides]
    return fan_in + balance * damping**0.5 * eyes[0], fan_out + damping**0.5 / balance * eyes[1]


@dataclass(frozen=True)
class KroneckerRoot:
    """The lower Cholesky factors of ``A ⊗ G``, the second moment of one layer's gradients."""

    fan_in: Float[Tensor, "*batch fan_in fan_in"]
    fan_out: Float[Tensor, "*batch fan_out fan_out"]

    @classmethod
    def of(cls, fan_in: Tensor, fan_out: Tensor) -> KroneckerRoot:
        """The roots of A and of G."""
        return cls(_cholesky(fan_in, "fan-in"), _cholesky(fan_out, "fan-out"))

    def regress(self, fan_in_cross: Tensor, fan_out_cross: Tensor) -> tuple[Tensor, Tensor]:
        """``C_A A⁻¹`` and ``C_G G⁻¹``: the factors of Ψ."""
        return (
            torch.cholesky_solve(fan_in_cross.mT, self.fan_in).mT,
            torch.cholesky_solve(fan_out_cross.mT, self.fan_out).mT,
        )

    def inverse(self) -> EigenKroneckerCovariance:
        """``(A ⊗ G)⁻¹``."""
        ones = self.fan_in.new_ones((*self.fan_in.shape[:-1], self.fan_out.shape[-1]))
        return EigenKroneckerCovariance(_inverse_transpose(self.fan_in), _inverse_transpose(self.fan_out), ones)


def conditional_inverse(
    this: KroneckerRoot, cross: tuple[Tensor, Tensor], following: KroneckerRoot
) -> EigenKroneckerCovariance:
    """``(A ⊗ G − C_A ⊗ C_G)⁻¹``, the inverse of a layer's second moment given the following layer's.

    With ``A = LLᵀ`` and ``L⁻¹ C_A L⁻ᵀ = E S Eᵀ`` the basis is ``L⁻ᵀE`` (likewise G) and the spectrum
    ``1 / (1 − s_i t_j)``; s and t are squared canonical correlations of the two layers, at most 1 for true moments.
    """
    left, s, left_turn = _pencil(this.fan_in, cross[0], following.fan_in)
    right, t, right_turn = _pencil(this.fan_out, cross[1], following.fan_out)
    remaining = 1 - s[..., :, None] * t[..., None, :]
    if not (remaining > remaining.shape[-1] * torch.finfo(s.dtype).eps).all():
        raise InvalidArgument(
            "The second moment of a layer's gradients, given the next layer's, is not positive definite",
            got=f"a smallest relative eigenvalue of {remaining.min().item():.3g}",
            remedy="Raise the damping, and take the moments and the cross moments from the same examples.",
        )
    return TurnedEigenKroneckerCovariance(left, right, remaining.reciprocal(), left_turn, right_turn)


def _pencil(root: Tensor, cross: Tensor, following_root: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """``L⁻ᵀE``, the diagonal of S, and E."""
    whitened = torch.linalg.solve_triangular(root, cross, upper=False)
    correlation = torch.linalg.solve_triangular(following_root, whitened.mT, upper=False).mT
    squared, vectors = torch.linalg.eigh(correlation @ correlation.mT)
    return torch.linalg.solve_triangular(root.mT, vectors, upper=True), squared.clamp_min(0), vectors


def _inverse_transpose(root: Tensor) -> Tensor:
    identity = torch.eye(root.shape[-1], dtype=root.dtype, device=root.device)
    return torch.linalg.solve_triangular(root.mT, identity, upper=True)


def _cholesky(moment: Tensor, side: str) -> Tensor:
    root, info = torch.linalg.cholesky_ex(moment)
    if info.any():
        raise InvalidArgument(
            f"A {side} second moment of shape {tuple(moment.shape)} is not positive definite",
            remedy="Raise the damping.",
        )
    return root

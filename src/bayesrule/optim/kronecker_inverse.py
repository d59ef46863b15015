"""Inverses of a damped Kronecker product: with each factor damped, or exactly in the factors' eigenbases."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.curvature import lower_matmul
from bayesrule.errors import InvalidArgument
from bayesrule.optim.rule import Number
from bayesrule.posteriors import EigenKroneckerCovariance, MatrixNormalCovariance, TurnedEigenKroneckerCovariance
from bayesrule.posteriors.kronecker_chain import damp_factors


@dataclass(frozen=True)
class FactoredInverse:
    """``(A + π√γ I)⁻¹ ⊗ (S + (√γ/π) I)⁻¹``   [Eq. 12], as roots for draws and as inverses for the mean's step."""

    fan_in_root: Float[Tensor, "*batch fan_in fan_in"]
    fan_out_root: Float[Tensor, "*batch fan_out fan_out"]
    fan_in: Float[Tensor, "*batch fan_in fan_in"]
    fan_out: Float[Tensor, "*batch fan_out fan_out"]

    @classmethod
    def of(cls, fan_in: Tensor, fan_out: Tensor, damping: Tensor, extra: float) -> FactoredInverse:
        """In float64; the mean's step is damped by γ and ``extra``, the draws by γ alone."""
        doubled = fan_in.double(), fan_out.double()
        roots = [inverse_root(side) for side in damp_factors(*doubled, damping.double())]
        stepped = [inverse_root(s) for s in damp_factors(*doubled, damping.double() + extra)] if extra else roots
        for_step = [lower_matmul(root, root.mT) for root in stepped]
        return cls(*(each.to(fan_in.dtype) for each in (*roots, *for_step)))

    def covariance(self, damping: Tensor, scale: Number) -> MatrixNormalCovariance:
        """``MN(…, λ/N [A^γ]⁻¹, [S^γ]⁻¹)``; the factor λ/N goes to the first."""
        return MatrixNormalCovariance(_root(scale) * self.fan_in_root, self.fan_out_root)

    def deviation(self, noise: Tensor, damping: Tensor) -> Tensor:
        """``R_in ε R_outᵀ``: the covariance's own root, over √(λ/N), multiplied as the triangles they are."""
        return lower_matmul(self.fan_out_root, lower_matmul(self.fan_in_root, noise).mT).mT

    def step(self, x: Tensor, damping: Tensor, *, guarded: bool) -> Tensor:
        """``[A^γ]⁻¹ x [S^γ]⁻¹``   [Eq. 3]."""
        if x.ndim > 2:
            return self.fan_in @ x @ self.fan_out
        return (self.fan_out @ (self.fan_in @ x).mT).mT  # symmetric; the result as a layer's weight lies in memory


@dataclass(frozen=True)
class EigenInverse:
    """``(A ⊗ S + γI)⁻¹``, exactly: the factors' eigenvectors, and what the spectrum is made of.

    Attributes:
        spectrum: Of the curvature in these bases: ``aᵢ sⱼ`` for K-FAC, free for EK-FAC.
    """

    fan_in_basis: Float[Tensor, "*batch fan_in fan_in"]
    fan_out_basis: Float[Tensor, "*batch fan_out fan_out"]
    spectrum: Float[Tensor, "*batch fan_in fan_out"]

    @classmethod
    def of(cls, fan_in: Tensor, fan_out: Tensor) -> EigenInverse:
        """In float64."""
        (a, left), (s, right) = (torch.linalg.eigh(side.double()) for side in (fan_in, fan_out))
        spectrum = a.clamp_min(0).unsqueeze(-1) * s.clamp_min(0).unsqueeze(-2)
        return cls(*(each.to(fan_in.dtype) for each in (left, right, spectrum)))

    def covariance(self, damping: Tensor, scale: Number) -> EigenKroneckerCovariance:
        """``λ/N (F + γ)⁻¹``."""
        bases = self.fan_in_basis, self.fan_out_basis
        return TurnedEigenKroneckerCovariance(*bases, scale / (self.spectrum + damping), *bases)

    def deviation(self, noise: Tensor, damping: Tensor) -> Tensor:
        """``Q_in (Q_inᵀ ε Q_out / √(f + γ)) Q_outᵀ``: the covariance's own root, over √(λ/N)."""
        return self.leave(self.enter(noise) * (self.spectrum + damping).rsqrt())

    def solve(self, x: Tensor, damping: Tensor) -> Tensor:
        """``(F + γ)⁻¹ x``."""
        return self.leave(self.enter(x) / (self.spectrum + damping))

    def step(self, x: Tensor, damping: Tensor, *, guarded: bool) -> Tensor:
        """That of the mean: `solve`, where it is guarded with `step_damping` in the place of γ.

        How the step is damped changes neither where the mean settles nor the covariance. With γ alone, which λ/N makes
        tiny, the mean leaps along what the data have said nothing about yet, such as the weights of a unit that is off;
        ``max_kl`` cannot see it, as an average over 1/β steps knows that curvature only long after the unit is on.
        """
        return self.solve(x, step_damping(self.spectrum, damping) if guarded else damping)

    def enter(self, x: Tensor) -> Tensor:
        """``Q_inᵀ x Q_out``."""
        return product(self.fan_in_basis.mT, x, self.fan_out_basis)

    def leave(self, x: Tensor) -> Tensor:
        """``Q_in x Q_outᵀ``."""
        return product(self.fan_in_basis, x, self.fan_out_basis.mT)


def step_damping(spectrum: Float[Tensor, "*batch fan_in fan_out"], damping: Tensor) -> Tensor:
    """``γ + √γ (f̄ᵢ + f̄ⱼ)/√f̄``, f̄ the mean over a row, a column and all of f.

    For ``f = aᵢ sⱼ`` that is ``γ + √γ (aᵢ/π + π sⱼ)``, by which K-FAC's factored damping exceeds f   [Eq. 12].
    """
    rows, columns = spectrum.mean(-1, keepdim=True), spectrum.mean(-2, keepdim=True)
    whole = rows.mean(-2, keepdim=True).sqrt().clamp_min(torch.finfo(spectrum.dtype).tiny)
    return damping + damping.sqrt() * ((rows + columns) / whole)


def product(left: Tensor, x: Tensor, right: Tensor) -> Tensor:
    """``left x right``; that of one matrix column after column, as the weight of a layer lies in memory."""
    return left @ x @ right if x.ndim > 2 else (right.mT @ (left @ x).mT).mT


def inverse_root(matrix: Tensor) -> Tensor:
    """The lower Cholesky factor R of ``M⁻¹``, without the inverse.

    ``M = UUᵀ`` with an upper triangle U, which is the Cholesky factor of M read from its last row and column backwards;
    then ``R = U⁻ᵀ``.
    """
    backwards = cholesky(matrix.flip(-2, -1))
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return torch.linalg.solve_triangular(backwards, identity, upper=False).mT.flip(-2, -1)


def spd_inverse(matrix: Tensor) -> Tensor:
    """Of a symmetric positive-definite matrix, by its Cholesky factor."""
    factor = cholesky(matrix)
    if not matrix.is_cuda or matrix.ndim == 2:
        return torch.cholesky_inverse(factor)
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    half = torch.linalg.solve_triangular(factor, identity, upper=False)  # a GPU has no batched inverse of its own
    return half.mT @ half


def cholesky(matrix: Tensor) -> Tensor:
    """The lower factor; where rounding has made an eigenvalue negative, of the matrix with a jitter of that size."""
    size = matrix.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    for jitter in (0.0, 1e-13, 1e-11, 1e-9):
        factor, info = torch.linalg.cholesky_ex(matrix + jitter * size * identity if jitter else matrix)
        if not bool(info.any()):
            return factor
    raise InvalidArgument(
        f"A curvature of shape {tuple(matrix.shape)} is not positive definite, or not finite",
        remedy="Lower the learning rate or max_kl, or raise extra_damping.",
    )


def _root(scale: Number) -> Number:
    return scale.sqrt() if isinstance(scale, Tensor) else scale**0.5

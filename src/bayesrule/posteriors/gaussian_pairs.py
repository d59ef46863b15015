"""Two Gaussians of one mean: their KL, by structure where there is one, else dense."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.errors import Unsupported
from bayesrule.posteriors.covariance import CovarianceOperator
from bayesrule.posteriors.eigen_kronecker import EigenKroneckerCovariance
from bayesrule.posteriors.full import FullCovariance
from bayesrule.posteriors.matrix_normal import MatrixNormalCovariance

DENSE_ENTRIES = 4096
"""The largest event for which a dense matrix is formed."""


def as_kronecker(covariance: CovarianceOperator) -> EigenKroneckerCovariance | None:
    """``(L ⊗ R) diag(s) (L ⊗ R)ᵀ``, where it is one with bases that are kept anyway."""
    if isinstance(covariance, EigenKroneckerCovariance):
        return covariance
    if isinstance(covariance, MatrixNormalCovariance):
        left, right = covariance.fan_in_cholesky, covariance.fan_out_cholesky
        return EigenKroneckerCovariance(left, right, torch.ones_like(left[..., :1] @ right[..., :1].mT))
    return None


def precision_diagonal(covariance: CovarianceOperator) -> Tensor:
    """``diag Σ⁻¹``, in the event's shape."""
    if covariance.independent:
        return covariance.diagonal().reciprocal()
    kronecker = as_kronecker(covariance)
    if kronecker is not None:
        return kronecker.inverse().diagonal()
    if isinstance(covariance, FullCovariance):
        return torch.cholesky_inverse(covariance.cholesky).diagonal(dim1=-2, dim2=-1).reshape(covariance.shape)
    return torch.linalg.inv(dense(covariance)).diagonal(dim1=-2, dim2=-1).reshape(covariance.shape)


def kl_of_covariances(q: CovarianceOperator, p: CovarianceOperator) -> Tensor:
    """``KL(N(μ, Σ_q) ‖ N(μ, Σ_p)) = ½[tr(Σ_p⁻¹Σ_q) − d + log det Σ_p − log det Σ_q]``, in nats."""
    return 0.5 * (_trace_of_ratio(q, p) - q.event_shape.numel() + p.logdet() - q.logdet())


def dense(covariance: CovarianceOperator) -> Tensor:
    """The whole matrix, where it is not too large."""
    if covariance.event_shape.numel() > DENSE_ENTRIES:
        raise Unsupported(
            f"{type(covariance).__name__} has no cheap form of this, and is too large for a dense one",
            got=f"{covariance.event_shape.numel():,} entries, more than {DENSE_ENTRIES:,}",
            remedy="Project onto the diagonal family by moments, or one layer at a time.",
        )
    return covariance.dense()


def _trace_of_ratio(top: CovarianceOperator, bottom: CovarianceOperator) -> Tensor:
    """``tr(Σ_bottom⁻¹ Σ_top)``."""
    if bottom.independent:
        return (top.diagonal() / bottom.diagonal()).sum()
    if top.independent:
        return (top.diagonal() * precision_diagonal(bottom)).sum()
    above, below = as_kronecker(top), as_kronecker(bottom)
    if above is not None and below is not None:
        left = torch.linalg.solve(below.fan_in_basis, above.fan_in_basis).square()
        right = torch.linalg.solve(below.fan_out_basis, above.fan_out_basis).square()
        return ((left @ above.spectrum @ right.mT) / below.spectrum).sum()
    return torch.linalg.solve(dense(bottom), dense(top)).diagonal(dim1=-2, dim2=-1).sum()

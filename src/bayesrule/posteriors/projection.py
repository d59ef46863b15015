"""Posterior algebra: a Gaussian posterior as the nearest one of another family, and what that loses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.linalg import MatrixView
from bayesrule.posteriors.covariance import CovarianceOperator
from bayesrule.posteriors.diagonal import Diagonal, DiagonalCovariance
from bayesrule.posteriors.eigen_kronecker import EigenKroneckerCovariance
from bayesrule.posteriors.family import Family
from bayesrule.posteriors.full import Full, FullCovariance
from bayesrule.posteriors.gaussian import GaussianPosterior
from bayesrule.posteriors.gaussian_pairs import as_kronecker, dense, kl_of_covariances, precision_diagonal
from bayesrule.posteriors.ktied import KTied, KTiedCovariance
from bayesrule.posteriors.matrix_normal import MatrixNormal, MatrixNormalCovariance
from bayesrule.posteriors.nearest_kronecker import nearest_factors, rotated_diagonal, spectral_factors
from bayesrule.posteriors.posterior import Posterior
from bayesrule.posteriors.tied_factors import nearest_in_kl, nearest_in_moments

By = Literal["kl", "moments"]
KNOWN = 'Diagonal(), KTied(rank), MatrixNormal(), Full() or "kronecker"'


@dataclass(frozen=True)
class Projection:
    """A posterior q of a simpler family, in place of p.

    Attributes:
        posterior: q, around the same mean.
        kl: ``KL(q ‖ p)`` in nats, what projection by ``"kl"`` makes least.
        kl_from: ``KL(p ‖ q)`` in nats, what projection by ``"moments"`` makes least.
        std_ratios: The least and the largest ratio of a marginal standard deviation of q to that of p.
    """

    posterior: GaussianPosterior
    kl: Tensor
    kl_from: Tensor
    std_ratios: tuple[float, float]

    def __str__(self) -> str:
        entries = self.posterior.event_shape.numel()
        low, high = self.std_ratios
        return (
            f"{self.posterior.structure}: KL(q‖p) = {float(self.kl):.4g}, KL(p‖q) = {float(self.kl_from):.4g} nats "
            f"over {entries:,} entries; standard deviations × {low:.3g} … {high:.3g}"
        )


def project(posterior: Posterior, onto: Family | Literal["kronecker"], by: By = "kl") -> Projection:
    """The member of a family that is nearest to a Gaussian posterior.

    ``"kl"`` takes the q of least KL(q ‖ p), which fits inside p: for a diagonal q, the diagonal of p's *precision*.
    ``"moments"`` takes that of least KL(p ‖ q), which covers p: p's own variances. Diagonal, full and Kronecker
    posteriors have closed forms or flip-flop to the optimum; k-tied ones go down monotonically to a local one.

    Args:
        posterior: p, without batch dimensions. Families of matrices take a matrix, or the vector of one weight's:
            ``posterior.marginal(name)`` of a posterior of several.
        onto: `br.Diagonal()`, `br.KTied(rank)`, `br.MatrixNormal()`, `br.Full()`; or ``"kronecker"``: a free spectrum
            in the eigenbases of the matrix normal's factors.
        by: Which way the KL is taken.
    """
    _check_family(onto)
    _check_posterior(posterior)
    if not isinstance(posterior, GaussianPosterior):
        raise Unsupported("Only Gaussian posteriors are projected", got=posterior.structure)
    if by not in ("kl", "moments"):
        raise InvalidArgument('by is "kl" or "moments"', got=repr(by))
    if posterior.mean.ndim != posterior.event_dim:
        raise InvalidArgument(
            "A projection is of one posterior", got=f"a batch of shape {tuple(posterior.mean.shape)}",
            remedy="Project its members one by one.",
        )  # fmt: skip
    if isinstance(onto, KTied | MatrixNormal) or onto == "kronecker":
        posterior = _as_matrix(posterior)
    source = posterior.covariance
    found = _nearest(source, onto, by)
    ratios = found.diagonal().sqrt() / source.diagonal().sqrt()
    return Projection(
        GaussianPosterior(posterior.mean, found, posterior.parts),
        kl_of_covariances(found, source), kl_of_covariances(source, found), (float(ratios.min()), float(ratios.max())),
    )  # fmt: skip


def _nearest(source: CovarianceOperator, onto: Family | str, by: By) -> CovarianceOperator:
    if isinstance(onto, Diagonal):
        variance = precision_diagonal(source).reciprocal() if by == "kl" else source.diagonal()
        return DiagonalCovariance(variance.sqrt(), source.event_dim)
    if isinstance(onto, Full):
        return FullCovariance(torch.linalg.cholesky(dense(source)), tuple(source.event_shape))
    if isinstance(onto, KTied) and isinstance(source, KTiedCovariance) and source.fan_in_factor.shape[-1] <= onto.rank:
        return source
    if isinstance(onto, KTied):
        factors = (
            nearest_in_kl(precision_diagonal(source), onto.rank) if by == "kl"
            else nearest_in_moments(source.diagonal(), onto.rank)
        )  # fmt: skip
        return KTiedCovariance(*factors)
    if isinstance(onto, MatrixNormal):
        return _matrix_normal(source, by)
    if onto == "kronecker":
        return _kronecker(source, by)
    raise Unsupported("There is no projection onto this family", got=onto, remedy=f"Use {KNOWN}.")


def _check_family(onto: object) -> None:
    if isinstance(onto, Family) or (isinstance(onto, str) and onto == "kronecker"):
        return
    got = f"the class {onto.__name__}, not one of its members" if isinstance(onto, type) else repr(onto)
    raise InvalidArgument("There is no such family to project onto", got=got, remedy=f"Use {KNOWN}.")


def _check_posterior(posterior: object) -> None:
    if not isinstance(posterior, Posterior):
        names = f" of {', '.join(map(repr, posterior))}" if isinstance(posterior, Mapping) else ""
        raise InvalidArgument(
            "A projection is of one posterior", got=f"a {type(posterior).__name__}{names}",
            remedy='Take one: br.project(br.posteriors(model)["name"], …).',
        )  # fmt: skip


def _as_matrix(posterior: GaussianPosterior) -> GaussianPosterior:
    """The same with a matrix as event: a weight alone may be the vector of its matrix, as cut from a larger vector."""
    source, parts = posterior.covariance, posterior.parts
    if source.event_dim == 2:
        return posterior
    weights = [part.name for part in parts if isinstance(part.layout, MatrixView)]
    if len(parts) != 1 or not isinstance(parts[0].layout, MatrixView):
        whole = f"of {', '.join(part.name for part in parts)}" if parts else ""
        marginal = f"Project one weight, posterior.marginal({weights[0]!r}), or use" if weights else "Use"
        raise InvalidArgument(
            "This family is one of matrices", got=f"an event of shape {tuple(source.event_shape)} {whole}".rstrip(),
            remedy=f"{marginal} Diagonal() or Full().",
        )  # fmt: skip
    shape = parts[0].layout.fan_in, parts[0].layout.fan_out
    viewed: CovarianceOperator
    if source.independent:
        viewed = DiagonalCovariance(source.diagonal().sqrt().reshape(shape))
    else:
        viewed = FullCovariance(torch.linalg.cholesky(dense(source)), shape)
    return GaussianPosterior(posterior.mean.reshape(shape), viewed, parts)


def _matrix_normal(source: CovarianceOperator, by: By) -> MatrixNormalCovariance:
    if isinstance(source, MatrixNormalCovariance):
        return source
    if source.independent:
        rows, columns = spectral_factors(source.diagonal(), by)
        return MatrixNormalCovariance(torch.diag(rows.sqrt()), torch.diag(columns.sqrt()))
    orthogonal = _orthogonal(source)
    if orthogonal is not None:
        rows, columns = spectral_factors(orthogonal.spectrum, by)
        bases = orthogonal.fan_in_basis, orthogonal.fan_out_basis
        factors = [(basis * values) @ basis.mT for basis, values in zip(bases, (rows, columns), strict=True)]
    else:
        factors = list(nearest_factors(dense(source), _matrix_shape(source), by))
    return MatrixNormalCovariance(*(torch.linalg.cholesky(factor) for factor in factors))


def _kronecker(source: CovarianceOperator, by: By) -> CovarianceOperator:
    kept = as_kronecker(source)
    if kept is not None:
        return kept
    if source.independent:
        fan_in, fan_out = (torch.eye(size, dtype=source.diagonal().dtype, device=source.diagonal().device)
                           for size in source.event_shape)  # fmt: skip
        return EigenKroneckerCovariance(fan_in, fan_out, source.diagonal())
    whole = dense(source)
    left, right = (torch.linalg.eigh(factor)[1] for factor in nearest_factors(whole, _matrix_shape(source), by))
    if by == "kl":
        return EigenKroneckerCovariance(
            left, right, rotated_diagonal(torch.linalg.inv(whole), left, right).reciprocal()
        )
    return EigenKroneckerCovariance(left, right, rotated_diagonal(whole, left, right))


def _matrix_shape(source: CovarianceOperator) -> tuple[int, int]:
    fan_in, fan_out = source.event_shape
    return fan_in, fan_out


def _orthogonal(source: CovarianceOperator) -> EigenKroneckerCovariance | None:
    """Itself, where it is a Kronecker basis with a spectrum, and the basis is orthogonal."""
    if not isinstance(source, EigenKroneckerCovariance):
        return None
    for basis in (source.fan_in_basis, source.fan_out_basis):
        identity = torch.eye(len(basis), dtype=basis.dtype, device=basis.device)
        if not torch.allclose(basis.mT @ basis, identity, atol=1e3 * torch.finfo(basis.dtype).eps):
            return None
    return source

"""Posteriors projected onto other families, against a general optimizer and dense matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch.distributions import MultivariateNormal, kl_divergence

import bayesrule as br
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.posteriors import (
    BernoulliPosterior,
    DiagonalCovariance,
    EigenKroneckerCovariance,
    FullCovariance,
    GaussianPosterior,
    KTiedCovariance,
    MatrixNormalCovariance,
    Projection,
    project,
)

M, N = 4, 3
GENERATOR = torch.Generator().manual_seed(5)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=GENERATOR)


def cholesky(size: int) -> torch.Tensor:
    root = normal(size, 2 * size)
    return torch.linalg.cholesky(root @ root.mT / size)


SOURCES = {
    "diagonal": DiagonalCovariance(normal(M, N).exp()),
    "ktied": KTiedCovariance(normal(M, 2).exp(), normal(N, 2).exp()),
    "matrix normal": MatrixNormalCovariance(cholesky(M), cholesky(N)),
    "eigen-Kronecker": EigenKroneckerCovariance(
        torch.linalg.qr(normal(M, M))[0], torch.linalg.qr(normal(N, N))[0], normal(M, N).exp()
    ),
    "skew Kronecker": EigenKroneckerCovariance(normal(M, M), normal(N, N), normal(M, N).exp()),
    "full": FullCovariance(cholesky(M * N), (M, N)),
}
POSTERIORS = {name: GaussianPosterior(normal(M, N), each) for name, each in SOURCES.items()}
FAMILIES = {
    "Diagonal": br.Diagonal(),
    "KTied": br.KTied(rank=1),
    "KTied2": br.KTied(rank=2),
    "MatrixNormal": br.MatrixNormal(),
    "kronecker": "kronecker",
    "Full": br.Full(),
}
sources = pytest.mark.parametrize("source", list(SOURCES))
ways = pytest.mark.parametrize("by", ["kl", "moments"])


def as_torch(posterior: GaussianPosterior) -> MultivariateNormal:
    return MultivariateNormal(posterior.mean.flatten(), posterior.covariance.dense())


@ways
@sources
@pytest.mark.parametrize("family", list(FAMILIES))
def test_what_was_lost_is_the_kl_both_ways(source: str, family: str, by: str) -> None:
    before = POSTERIORS[source]
    found = project(before, FAMILIES[family], by)
    assert torch.equal(found.posterior.mean, before.mean)
    q, p = as_torch(found.posterior), as_torch(before)
    torch.testing.assert_close(found.kl, kl_divergence(q, p), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(found.kl_from, kl_divergence(p, q), rtol=1e-8, atol=1e-9)
    ratios = found.posterior.stddev / before.stddev
    assert found.std_ratios == pytest.approx((ratios.min().item(), ratios.max().item()))
    assert "nats" in str(found)


def parameters(family: str) -> tuple[int, object]:
    """How many free numbers, and the covariance they stand for."""
    if family == "Diagonal":
        return M * N, lambda z: torch.diag((2 * z).exp())
    if family == "KTied":
        return M + N, lambda z: torch.diag((z[:M, None] + z[None, M:]).flatten().mul(2).exp())
    if family == "KTied2":
        return 2 * (M + N), lambda z: torch.diag(
            (z[: 2 * M].reshape(M, 2).exp() @ z[2 * M :].reshape(N, 2).exp().mT).flatten().square()
        )

    def lower(z: torch.Tensor, size: int) -> torch.Tensor:
        strict = torch.zeros(size, size, dtype=torch.float64)
        rows, columns = torch.tril_indices(size, size, -1)
        strict = strict.index_put((rows, columns), z[size:])
        return strict + torch.diag(z[:size].exp())

    count = M * (M + 1) // 2

    def matrix_normal(z: torch.Tensor) -> torch.Tensor:
        a, b = lower(z[:count], M), lower(z[count:], N)
        return torch.kron(a @ a.mT, b @ b.mT)

    return count + N * (N + 1) // 2, matrix_normal


def least(source: str, family: str, by: str) -> float:
    """The least KL that a general optimizer finds, from several starts."""
    whole = SOURCES[source].dense()
    size, covariance = parameters(family)

    def loss(z: np.ndarray) -> tuple[float, np.ndarray]:
        free = torch.tensor(z, requires_grad=True)
        zero = torch.zeros(M * N, dtype=torch.float64)
        q, p = MultivariateNormal(zero, covariance(free)), MultivariateNormal(zero, whole)
        value = kl_divergence(q, p) if by == "kl" else kl_divergence(p, q)
        value.backward()
        return value.item(), free.grad.numpy()

    rng = np.random.default_rng(0)
    starts = [rng.normal(0, 0.3, size) for _ in range(3)]
    return min(minimize(loss, start, jac=True, method="BFGS", options={"gtol": 1e-9}).fun for start in starts)


@ways
@pytest.mark.parametrize("family", ["Diagonal", "KTied", "MatrixNormal"])
@pytest.mark.parametrize("source", ["diagonal", "eigen-Kronecker", "full"])
def test_nothing_in_the_family_is_nearer(source: str, family: str, by: str) -> None:
    found = project(POSTERIORS[source], FAMILIES[family], by)
    value = (found.kl if by == "kl" else found.kl_from).item()
    assert value == pytest.approx(least(source, family, by), rel=1e-7, abs=1e-9)


@ways
@pytest.mark.parametrize("source", ["diagonal", "full"])
def test_two_ties_come_as_near_as_a_general_optimizer(source: str, by: str) -> None:
    found = project(POSTERIORS[source], br.KTied(rank=2), by)
    value = (found.kl if by == "kl" else found.kl_from).item()
    assert value <= 1.02 * least(source, "KTied2", by) + 1e-9


@ways
@pytest.mark.parametrize(
    ("source", "family"),
    [("diagonal", "Diagonal"), ("ktied", "Diagonal"), ("ktied", "KTied2"), ("matrix normal", "MatrixNormal"),
     ("matrix normal", "kronecker"), ("eigen-Kronecker", "kronecker"), ("diagonal", "kronecker"), ("full", "Full"),
     ("eigen-Kronecker", "Full")],
)  # fmt: skip
def test_a_member_of_the_family_loses_nothing(source: str, family: str, by: str) -> None:
    found = project(POSTERIORS[source], FAMILIES[family], by)
    assert found.kl.abs().item() < 1e-7
    torch.testing.assert_close(found.posterior.variance, POSTERIORS[source].variance, rtol=2e-3, atol=1e-6)


@ways
def test_a_kronecker_basis_keeps_more_than_its_factors(by: str) -> None:
    richer, poorer = (project(POSTERIORS["full"], onto, by) for onto in ("kronecker", br.MatrixNormal()))
    value = (lambda each: each.kl) if by == "kl" else (lambda each: each.kl_from)
    assert value(richer) < value(poorer)


def test_moments_keep_the_variances_and_the_kl_keeps_the_precisions() -> None:
    whole = POSTERIORS["full"]
    covering, fitting = (project(whole, br.Diagonal(), by).posterior for by in ("moments", "kl"))
    torch.testing.assert_close(covering.variance, whole.variance)
    precision = torch.linalg.inv(whole.covariance.dense()).diagonal().reshape(M, N)
    torch.testing.assert_close(fitting.variance, 1 / precision)
    assert (fitting.variance <= covering.variance).all()


def test_what_cannot_be_projected_is_refused() -> None:
    vector = GaussianPosterior(torch.zeros(3), DiagonalCovariance(torch.ones(3), 1))
    assert isinstance(project(vector, br.Diagonal()), Projection)
    with pytest.raises(InvalidArgument, match="matrices"):
        project(vector, br.KTied(1))
    with pytest.raises(Unsupported, match="Gaussian"):
        project(BernoulliPosterior(torch.zeros(2, 2), 2), br.Diagonal())
    with pytest.raises(Unsupported, match="no projection"):
        project(POSTERIORS["diagonal"], br.Point())
    with pytest.raises(InvalidArgument, match="one by one"):
        project(GaussianPosterior(torch.zeros(2, 3, 3), DiagonalCovariance(torch.ones(2, 3, 3))), br.Diagonal())
    wide = torch.ones(100, 50)
    huge = GaussianPosterior(wide, EigenKroneckerCovariance(torch.eye(100) * 2, torch.eye(50), wide))
    with pytest.raises(Unsupported, match="too large"):
        project(huge, br.MatrixNormal())

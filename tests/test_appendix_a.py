"""Appendix A of the k-tied paper: which k-tied posteriors are matrix normals.

For k = 1 all of them, with diagonal factors; for k ≥ 2 none: the best Kronecker product leaves a residual.
"""

from __future__ import annotations

import numpy as np
import scipy.stats
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bayesrule.posteriors import GaussianPosterior, KTiedCovariance, MatrixNormalCovariance
from bayesrule.priors import Normal, kl_divergence

sizes = st.integers(2, 4)
ranks = st.integers(2, 4)
seeds = st.integers(0, 10**6)
SEPARATED = 1e-2
"""The least ratio of the second to the first singular value, so that rounding is no residual."""


@st.composite
def factors(draw: st.DrawFn, rank: st.SearchStrategy[int]) -> tuple[np.ndarray, np.ndarray]:
    """Positive factors U (m × k) and V (n × k)."""
    columns = draw(rank)
    positive = st.floats(0.1, 3.0)
    return draw(arrays(float, (draw(sizes), columns), elements=positive)), draw(
        arrays(float, (draw(sizes), columns), elements=positive)
    )


def best_kronecker(covariance: np.ndarray, m: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """``min ‖Σ − Q ⊗ P‖`` for Q: m × m and P: n × n   [Van Loan & Pitsianis 1993].

    The blocks of Σ become the rows of a matrix, of which ``vec Q vec Pᵀ`` is the best approximation of rank 1. Returns
    Q, P and the singular values of that matrix.
    """
    rearranged = covariance.reshape(m, n, m, n).transpose(0, 2, 1, 3).reshape(m * m, n * n)
    left, singular, right = np.linalg.svd(rearranged)
    return singular[0] * left[:, 0].reshape(m, m), right[0].reshape(n, n), singular


@given(factors(st.just(1)), seeds)
def test_rank_one_is_a_matrix_normal_with_diagonal_factors(pair: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    """``diag(p) ⊗ diag(q) = diag(vec(q pᵀ))``."""
    (u, v), generator = pair, torch.Generator().manual_seed(seed)
    mean, noise, value = torch.randn(3, len(u), len(v), dtype=torch.float64, generator=generator)
    tied = GaussianPosterior(mean, KTiedCovariance(torch.from_numpy(u), torch.from_numpy(v)))
    roots = (torch.from_numpy(np.diag(side[:, 0])) for side in (u, v))
    kronecker = GaussianPosterior(mean, MatrixNormalCovariance(*roots))
    want = scipy.stats.matrix_normal(mean.numpy(), np.diag(u[:, 0] ** 2), np.diag(v[:, 0] ** 2)).logpdf(value.numpy())
    for posterior in (tied, kronecker):
        np.testing.assert_allclose(posterior.log_prob(value).item(), want, rtol=1e-10)
    torch.testing.assert_close(tied.from_noise(noise), kronecker.from_noise(noise), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(tied.entropy(), kronecker.entropy(), rtol=1e-12, atol=1e-12)
    prior = Normal(torch.rand(len(u), len(v), dtype=torch.float64, generator=generator) + 0.5, mean=0.3)
    torch.testing.assert_close(kl_divergence(tied, prior), kl_divergence(kronecker, prior), rtol=1e-12, atol=1e-11)


@given(factors(st.just(1)))
def test_the_best_kronecker_product_of_rank_one_is_exact_and_diagonal(pair: tuple[np.ndarray, np.ndarray]) -> None:
    covariance = KTiedCovariance(*map(torch.from_numpy, pair)).dense().numpy()
    fan_in, fan_out, singular = best_kronecker(covariance, len(pair[0]), len(pair[1]))
    np.testing.assert_allclose(np.kron(fan_in, fan_out), covariance, rtol=1e-10, atol=1e-12)
    assert singular[1] < 1e-12 * singular[0]
    for factor, side in ((fan_in, pair[0]), (fan_out, pair[1])):
        diagonal = np.diag(factor)
        np.testing.assert_allclose(factor, np.diag(diagonal), atol=1e-12 * np.abs(diagonal).max())
        np.testing.assert_allclose(diagonal / diagonal[0], (side[:, 0] / side[0, 0]) ** 2, rtol=1e-10)


@given(factors(ranks))
def test_no_kronecker_product_fits_from_rank_two_on(pair: tuple[np.ndarray, np.ndarray]) -> None:
    """The residual is what the best rank-1 fit of the variances leaves: above 0 unless ``U Vᵀ`` itself has rank 1."""
    std = np.einsum("ia,ja->ij", *pair)
    of_stds = np.linalg.svd(std, compute_uv=False)
    assume(of_stds[1] > SEPARATED * of_stds[0])
    covariance = KTiedCovariance(*map(torch.from_numpy, pair)).dense().numpy()
    fan_in, fan_out, singular = best_kronecker(covariance, *std.shape)
    residual = np.linalg.norm(covariance - np.kron(fan_in, fan_out))
    of_variances = np.linalg.svd(std**2, compute_uv=False)
    np.testing.assert_allclose(singular[: len(of_variances)], of_variances, rtol=1e-9, atol=1e-10 * of_variances[0])
    np.testing.assert_allclose(residual, np.linalg.norm(of_variances[1:]), rtol=1e-9, atol=1e-10 * of_variances[0])
    assert residual > 1e-3 * np.linalg.norm(covariance)


def test_two_by_two_by_hand() -> None:
    """``S = [[2, 1], [1, 2]]``: variances [[4, 1], [1, 4]] have singular values 5 and 3, so the residual is 3."""
    std = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64)
    covariance = KTiedCovariance(std, torch.eye(2, dtype=torch.float64)).dense().numpy()
    fan_in, fan_out, singular = best_kronecker(covariance, 2, 2)
    np.testing.assert_allclose(singular, [5, 3, 0, 0], atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(covariance - np.kron(fan_in, fan_out)), 3, rtol=1e-12)

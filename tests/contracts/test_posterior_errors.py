"""What a user gets wrong is refused with what was got and what to do."""

from __future__ import annotations

import jaxtyping
import pytest
import torch

from bayesrule.errors import BayesruleError, InvalidArgument, ShapeMismatch
from bayesrule.posteriors import (
    ClippedLowRankCovariance,
    Diagonal,
    DiagonalCovariance,
    Family,
    Full,
    FullCovariance,
    GaussianPosterior,
    KTied,
    KTiedCovariance,
    MatrixNormal,
    MatrixNormalCovariance,
    MatrixNormalDiagonal,
    MatrixNormalKroneckerDiagonalCovariance,
)

MATRIX_FAMILIES = [KTied(), MatrixNormal(), MatrixNormalDiagonal(), MatrixNormalDiagonal("free")]
SCALED_FAMILIES = [Diagonal, KTied, MatrixNormal, MatrixNormalDiagonal, Full]


def matrix(*shape: int) -> torch.Tensor:
    return torch.zeros(shape, dtype=torch.float64)


@pytest.mark.parametrize("rank", [0, -1])
def test_a_rank_below_one(rank: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"at least 1.*Got: {rank}"):
        KTied(rank=rank)


@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (2, 2)])
def test_a_rank_above_the_matrix(shape: tuple[int, int]) -> None:
    with pytest.raises(InvalidArgument, match=rf"rank at most {min(shape)}.*Got: rank 3.*Diagonal"):
        KTied(rank=3).init(matrix(*shape))


@pytest.mark.parametrize("init_std", [0.0, -0.1, float("nan"), float("inf")])
@pytest.mark.parametrize("family", SCALED_FAMILIES)
def test_a_standard_deviation_that_is_not_positive(family: type[Family], init_std: float) -> None:
    with pytest.raises(InvalidArgument, match=f"init_std must be a positive.*Got: {init_std}"):
        family(init_std=init_std)


@pytest.mark.parametrize("family", MATRIX_FAMILIES, ids=str)
def test_a_bias_given_to_a_matrix_family(family: Family) -> None:
    with pytest.raises(ShapeMismatch, match=r"fan-in × fan-out matrices.*\(3,\).*Diagonal or Point"):
        family.init(matrix(3))


def test_a_kernel_given_without_its_view() -> None:
    with pytest.raises(ShapeMismatch, match="matrix view"):
        MatrixNormal().init(matrix(4, 2, 3, 3))


@pytest.mark.parametrize("shape", [(3, 4), (4,), (2, 4, 3)])
def test_a_mean_that_does_not_fit_its_covariance(shape: tuple[int, ...]) -> None:
    covariance = DiagonalCovariance(matrix(4, 3) + 1)
    with pytest.raises(ShapeMismatch, match=r"shape \(4, 3\)"):
        GaussianPosterior(matrix(*shape), covariance)


def test_an_unknown_kind_of_diagonal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # its annotation would refuse it first
    with pytest.raises(InvalidArgument, match=r'"kronecker" or "free".*full'):
        MatrixNormalDiagonal("full")


def test_a_kronecker_diagonal_of_higher_rank() -> None:
    kronecker = MatrixNormalCovariance(torch.eye(4, dtype=torch.float64), torch.eye(3, dtype=torch.float64))
    with pytest.raises(InvalidArgument, match=r"rank 1.*rank 2"):
        MatrixNormalKroneckerDiagonalCovariance(kronecker, KTiedCovariance(matrix(4, 2) + 1, matrix(3, 2) + 1))


def test_a_full_covariance_over_too_many_entries() -> None:
    with pytest.raises(InvalidArgument, match=r"12 entries.*max_entries"):
        Full(max_entries=11).init(matrix(4, 3))


def test_a_full_factor_that_does_not_fit_the_event() -> None:
    with pytest.raises(ShapeMismatch, match=r"12 entries.*\(4, 4\)"):
        FullCovariance(torch.eye(12, dtype=torch.float64), (4, 4))


@pytest.mark.parametrize("rank", [0, 4])
def test_a_truncation_to_a_rank_the_matrix_does_not_have(rank: int) -> None:
    with pytest.raises(InvalidArgument, match=rf"ranks 1 to 3.*rank {rank}"):
        ClippedLowRankCovariance.truncate(matrix(5, 3) + 1, rank, floor=0.1)


@pytest.mark.parametrize("floor", [0.0, -1.0, float("nan")])
def test_a_floor_that_is_not_positive(floor: float) -> None:
    with pytest.raises(InvalidArgument, match="floor"):
        ClippedLowRankCovariance(matrix(5, 2), matrix(3, 2), floor)


def test_every_error_is_the_librarys_and_a_builtin_one() -> None:
    with pytest.raises(BayesruleError) as caught:
        KTied(rank=0)
    assert isinstance(caught.value, ValueError)
    assert (caught.value.what, caught.value.got) == ("The rank of a k-tied posterior must be at least 1", 0)


def test_a_rank_is_a_whole_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(InvalidArgument, match=r"whole number. Got: 1\.5"):
        KTied(rank=1.5)  # type: ignore[arg-type]

"""How much to keep: spectra, ranks by layer and by explained variance; and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.compress import rank_that_explains, spectra
from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported
from bayesrule.posteriors import Family
from compress_models import clipped, converted, std


def test_a_floor_can_be_chosen() -> None:
    lean = br.compress(converted(), rank=2, floor=0.04)
    assert std(lean, "0.weight").min() == 0.04
    assert lean.compression["0.weight"].floor == 0.04


def test_rank_by_explained_variance() -> None:
    bnn = converted(nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 20)).double(), br.Diagonal(0.05, 0.3))
    lean = br.compress(bnn, explained=0.95)
    for row in lean.compression:
        explained = np.cumsum(np.linalg.svd(std(bnn, row.name), compute_uv=False) ** 2)
        explained /= explained[-1]
        assert explained[row.rank - 1] >= 0.95 > (explained[row.rank - 2] if row.rank > 1 else 0)
    kept = br.compress(bnn, explained=1.0)
    assert all(row.rank is None for row in kept.compression)
    assert kept.compression["0.weight"].note == "rank 30 is all it has"
    assert br.compress(bnn, explained=0.995).compression["0.weight"].note.endswith("saves no numbers")


def test_ranks_by_layer() -> None:
    lean = br.compress(converted(), rank={"2": 1})
    assert [row.rank for row in lean.compression] == [None, 1, None]
    assert lean.compression["0.weight"].note == "no rank was given"


def test_explained_variance_is_that_of_numpy() -> None:
    matrix = torch.randn(3, 7, 4, dtype=torch.float64)
    for each, got in zip(matrix.numpy(), br.explained_variance(matrix).numpy(), strict=True):
        singular = np.linalg.svd(each, compute_uv=False) ** 2
        np.testing.assert_allclose(got, singular / singular.sum(), rtol=1e-12)
    assert br.explained_variance(torch.zeros(3, 2)).sum() == 0
    outer = torch.outer(torch.arange(1.0, 5.0), torch.arange(1.0, 4.0))
    torch.testing.assert_close(br.explained_variance(outer)[0].item(), 1.0)
    with pytest.raises(ShapeMismatch, match="Only a matrix"):
        br.explained_variance(torch.ones(4))
    with pytest.raises(InvalidArgument, match="finite"):
        br.explained_variance(torch.full((2, 2), torch.nan))


@pytest.mark.parametrize(("fraction", "rank"), [(0.1, 1), (0.6, 1), (0.61, 2), (0.9, 2), (0.91, 3), (1.0, 3)])
def test_the_smallest_rank_that_explains_a_fraction(fraction: float, rank: int) -> None:
    assert rank_that_explains(fraction, torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)) == rank


def test_spectra_of_means_and_stds() -> None:
    bnn = converted(posterior=br.KTied(1))
    found = spectra(bnn)
    assert list(found) == ["0.weight", "2.weight", "4.weight"]
    assert found["0.weight"].stds[0].item() == pytest.approx(1, rel=1e-12)
    want = br.explained_variance(bnn.posteriors()["0.weight"].mean)
    torch.testing.assert_close(found["0.weight"].means, want)
    assert want[0] < 0.9


@pytest.mark.parametrize(
    ("layer", "matrix"),
    [
        (nn.Conv2d(3, 4, (2, 3)), lambda weight: weight.flatten(1).T),
        (nn.ConvTranspose2d(3, 4, (2, 3)), lambda weight: weight.movedim(1, -1).flatten(0, -2)),
        (nn.Embedding(7, 4), lambda weight: weight),
        (nn.Linear(7, 4), lambda weight: weight.T),
    ],
    ids=lambda case: type(case).__name__,
)
def test_weights_are_flattened_to_fan_in_times_fan_out(layer: nn.Module, matrix: Callable[[Tensor], Tensor]) -> None:
    bnn = converted(layer.double())
    lean = br.compress(bnn, rank=2)
    before, after = (model.posteriors()["weight"] for model in (bnn, lean))
    stds = [matrix(q.split(q.stddev)["weight"]).detach().numpy() for q in (before, after)]
    want = clipped(stds[0], 2, lean.compression["weight"].floor)
    np.testing.assert_allclose(stds[1], want, rtol=1e-12)


@pytest.mark.parametrize("family", [br.MatrixNormal(), br.MatrixNormalDiagonal(), br.Full()], ids=str)
def test_correlated_posteriors_are_refused(family: Family) -> None:
    with pytest.raises(Unsupported, match=r"'0\.weight' are not") as error:
        br.compress(converted(posterior=family), rank=1)
    assert "br.Diagonal()" in error.value.remedy


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either a rank or the fraction"),
        ({"rank": 2, "explained": 0.9}, "either a rank or the fraction"),
        ({"rank": 0}, "whole number from 1 on"),
        ({"rank": True}, "whole number from 1 on"),
        ({"rank": 7}, "no weight here has a rank above 6"),
        ({"rank": {"2": 6}}, "no weight here has a rank above 5"),
        ({"rank": {"fc": 2}}, "No layer 'fc'"),
        ({"explained": 0.0}, "above 0 and at most at 1"),
        ({"explained": 1.1}, "above 0 and at most at 1"),
        ({"rank": 2, "floor": 0.0}, "floor must be a positive"),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        br.compress(converted(), **arguments)


def test_collapsed_standard_deviations_are_refused() -> None:
    bnn = converted()
    bnn.homes()["2.weight"].posterior.log_std.data[0, 0] = -torch.inf
    with pytest.raises(InvalidArgument, match=r"'2\.weight' must be positive and finite"):
        br.compress(bnn, rank=2)


def test_an_unknown_row_is_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"No weight '0\.bias'"):
        br.compress(converted(), rank=1).compression["0.bias"]


@pytest.mark.parametrize(("rank", "numbers"), [(1, 481_614), (2, 484_008), (3, 486_402)])
def test_the_papers_network_has_as_many_numbers_as_k_tied(rank: int, numbers: int) -> None:
    """784-400-400-10, mean-field 956,820   [k-tied Normal, Fig. 6]."""
    net = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))
    table = br.compress(converted(net, br.Diagonal()), rank=rank).compression
    assert (table.numbers_before, table.numbers_after) == (956_820, numbers)

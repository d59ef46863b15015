"""Low-rank standard deviations after training, against numpy's decomposition and torch's own KL."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bayesrule as br
from bayesrule.compress import Compression
from bayesrule.nn import BayesianModule
from bayesrule.posteriors import ClippedLowRankCovariance, DiagonalCovariance, KTiedCovariance
from compress_models import WIDE, clipped, converted, mlp, std, truncated


def frozen(bnn: BayesianModule) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in bnn.state_dict().items()}


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_standard_deviations_are_the_truncated_svd_above_the_floor(rank: int) -> None:
    bnn = converted()
    before = frozen(bnn)
    lean = br.compress(bnn, rank=rank)
    for name in ("0.weight", "2.weight"):
        row, want = lean.compression[name], truncated(std(bnn, name), rank)
        np.testing.assert_allclose(std(lean, name), np.maximum(want, row.floor), rtol=1e-12)
        assert row.touched == (want < row.floor).sum()
        assert row.nonpositive == (want <= 0).sum()
        singular = np.linalg.svd(std(bnn, name), compute_uv=False) ** 2
        assert row.explained == pytest.approx(singular[:rank].sum() / singular.sum(), rel=1e-12)
        assert lean.conversion[name].posterior == f"ClippedLowRank(rank={rank}, floor={row.floor!r})"
    for name, tensor in bnn.state_dict().items():
        assert torch.equal(tensor, before[name])
    for name, posterior in bnn.posteriors().items():
        assert torch.equal(lean.posteriors()[name].mean, posterior.mean)


def test_biases_and_weights_of_no_more_than_that_rank_are_kept() -> None:
    bnn = converted()
    lean = br.compress(bnn, rank=2)
    for name in ("0.bias", "2.bias", "4.bias", "4.weight"):
        assert isinstance(lean.posteriors()[name].covariance, DiagonalCovariance)
        np.testing.assert_array_equal(std(lean, name), std(bnn, name))
    assert lean.compression["4.weight"].note == "rank 2 is all it has"
    assert br.compress(bnn, rank=3).compression["4.weight"].note == "its rank is at most 2"
    assert [row.name for row in lean.compression] == ["0.weight", "2.weight", "4.weight"]


def test_numbers_and_kls_of_the_table() -> None:
    bnn = converted()
    lean = br.compress(bnn, rank=2)
    table = lean.compression
    assert isinstance(table, Compression)
    assert len(table) == 3
    row = table["0.weight"]
    assert (row.shape, row.numbers_before, row.numbers_after) == ((8, 6), 96, 8 * 6 + 2 * (8 + 6))
    assert table.numbers_before == bnn.conversion.numbers == sum(p.numel() for p in bnn.parameters())
    assert table.numbers_after == lean.conversion.numbers == sum(p.numel() for p in lean.parameters())
    for model, kl, total in ((bnn, row.kl_before, table.kl_before), (lean, row.kl_after, table.kl_after)):
        posterior = model.posteriors()["0.weight"]
        normal = torch.distributions.Normal(posterior.mean, posterior.stddev)
        prior = torch.distributions.Normal(0.0, torch.tensor(0.3, dtype=torch.float64))
        assert kl == pytest.approx(torch.distributions.kl_divergence(normal, prior).sum().item(), rel=1e-12)
        assert total == pytest.approx(br.kl(model).item(), rel=1e-12)
    assert table.touched == sum(row.touched for row in table) > 0
    text = str(table)
    assert "kept" in text
    assert "whole model" in text
    assert bnn.compression is None


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(2, 9), st.integers(2, 7), st.floats(0.01, 2.0))
def test_rank_one_is_positive_and_touched_nowhere(seed: int, fan_in: int, fan_out: int, spread: float) -> None:
    """The leading singular vectors of a positive matrix are positive   [Perron–Frobenius]."""
    family = br.Diagonal(init_std=0.01, init_spread=spread)
    linear = nn.Linear(fan_in, fan_out, dtype=torch.float64)
    bnn = br.bayesianize(linear, family, generator=torch.Generator().manual_seed(seed))
    row = br.compress(bnn, rank=1).compression["weight"]
    assert row.touched == row.nonpositive == 0


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_the_floor_never_adds_to_the_error(seed: int, rank: int) -> None:
    linear = nn.Linear(7, 5, dtype=torch.float64)
    bnn = br.bayesianize(linear, br.Diagonal(0.01, 1.0), generator=torch.Generator().manual_seed(seed))
    trained, lean = std(bnn, "weight"), br.compress(bnn, rank=rank)
    plain, floor = truncated(trained, rank), lean.compression["weight"].floor
    assert 0 < floor <= trained.min()
    assert np.all(np.abs(std(lean, "weight") - trained) <= np.abs(plain - trained) + 1e-15)
    assert torch.isfinite(br.kl(lean))


def test_the_kl_is_finite_where_truncated_entries_are_negative_and_continuous_across_the_floor() -> None:
    lean = br.compress(converted(nn.Linear(8, 6, dtype=torch.float64), br.Diagonal(0.05, 1.5)), rank=2)
    row = lean.compression["weight"]
    assert row.touched >= row.nonpositive > 0
    assert torch.isfinite(br.kl(lean))
    factor, covariance = lean.homes()["weight"].posterior.fan_in_factor, lean.posteriors()["weight"].covariance
    entry = (covariance.unclipped < covariance.floor).nonzero()[0]
    slope = covariance.fan_out_factor[entry[1], 0].detach()
    crossing = factor.data[entry[0], 0] + (covariance.floor - covariance.unclipped[tuple(entry)].detach()) / slope
    kls = []
    for step in (-1e-10, 0.0, 1e-10):
        factor.data[entry[0], 0] = crossing + step
        kls.append(br.kl(lean).item())
    assert max(kls) - min(kls) < 1e-4
    below = lean.posteriors()["weight"].covariance
    assert below.std.min() == below.floor


def test_full_rank_changes_nothing() -> None:
    bnn, x = converted(), torch.randn(9, 8, dtype=torch.float64)
    matrix = bnn.posteriors()["0.weight"].stddev.detach()
    full = ClippedLowRankCovariance.truncate(matrix, rank=6, floor=1e-9)
    np.testing.assert_allclose(full.std.numpy(), matrix.numpy(), rtol=1e-10)
    lstm = converted(nn.LSTM(3, 2).double())  # 3 × 8 and 2 × 8: the second is truncated at its full rank
    lean = br.compress(lstm, rank=2)
    assert lean.compression["weight_hh_l0"].rank == 2
    np.testing.assert_allclose(std(lean, "weight_hh_l0"), std(lstm, "weight_hh_l0"), rtol=1e-10)
    same = br.predict(br.compress(bnn, rank={"0": 6}), x, samples=5, likelihood=br.Gaussian(0.1)).mean
    torch.testing.assert_close(same, br.predict(bnn, x, samples=5, likelihood=br.Gaussian(0.1)).mean, rtol=0, atol=0)


def test_predictions_move_less_with_every_rank() -> None:
    bnn, x = converted(), torch.randn(20, 8, dtype=torch.float64)

    def draws(model: BayesianModule) -> Tensor:
        return br.predict(model, x, samples=50, likelihood=br.Gaussian(0.1)).outputs

    errors = [(draws(br.compress(bnn, rank=rank)) - draws(bnn)).square().mean().item() for rank in (1, 3, 5)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 0.1 * draws(bnn).var(0).mean()


def test_a_k_tied_model_is_truncated_only_below_its_rank() -> None:
    bnn = converted(posterior=br.KTied(3, init_std=0.05, init_spread=1.0))
    lean = br.compress(bnn, rank=2)
    want = clipped(std(bnn, "0.weight"), 2, lean.compression["0.weight"].floor)
    np.testing.assert_allclose(std(lean, "0.weight"), want, rtol=1e-12)
    same = br.compress(bnn, rank=3)
    assert isinstance(same.posteriors()["0.weight"].covariance, KTiedCovariance)
    assert same.compression["0.weight"].note == "its rank is 3 already"
    again = br.compress(lean, rank=2)
    assert again.compression["0.weight"].note == "its rank is 2 already"
    np.testing.assert_array_equal(std(again, "0.weight"), std(lean, "0.weight"))
    assert br.compress(lean, rank=1).compression["0.weight"].rank == 1


def test_a_bias_that_is_a_row_of_its_weight_is_truncated_with_it() -> None:
    bnn = converted(bias="augment")
    lean = br.compress(bnn, rank=2)
    want = clipped(std(bnn, "0.weight"), 2, lean.compression["0.weight"].floor)
    np.testing.assert_allclose(std(lean, "0.weight"), want, rtol=1e-12)
    assert lean.conversion["0.bias"].posterior == lean.conversion["0.weight"].posterior
    assert lean.conversion.numbers == sum(parameter.numel() for parameter in lean.parameters())


class Tied(nn.Module):
    """An embedding whose weight is the output layer's too, and a recurrent layer of two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.lstm = nn.Embedding(9, 5), nn.LSTM(5, 5, batch_first=True)
        self.out = nn.Linear(5, 9)
        self.out.weight = self.embed.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.lstm(self.embed(tokens))[0][:, -1])


NETWORKS = {"mlp": (mlp, {}), "augmented": (mlp, {"bias": "augment"}), "tied": (lambda: Tied().double(), {})}
INPUTS = {name: torch.randn(4, 8, dtype=torch.float64) for name in NETWORKS} | {"tied": torch.tensor([[1, 2], [3, 8]])}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_saved_and_loaded_it_is_the_same_model(network: str, rank: int, tmp_path: Path) -> None:
    build, options = NETWORKS[network]
    lean = br.compress(converted(build(), likelihood=br.Categorical(), **options), rank=rank)
    br.save(lean, tmp_path / "model")
    loaded = br.load(tmp_path / "model", into=build())
    assert str(loaded.conversion) == str(lean.conversion)
    assert "ClippedLowRank" in str(loaded.conversion)
    for name in lean.posteriors():
        np.testing.assert_array_equal(std(loaded, name), std(lean, name))
    x = INPUTS[network]
    assert torch.equal(br.predict(loaded, x, samples=7).probs, br.predict(lean, x, samples=7).probs)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_compressed_model_is_an_ordinary_one(network: str) -> None:
    """It is copied, and training it moves every parameter, in the copy alone."""
    build, options = NETWORKS[network]
    lean = br.compress(converted(build(), **options), rank=2)
    before, x = frozen(lean), INPUTS[network]
    twin = copy.deepcopy(lean)
    optimizer = torch.optim.Adam(twin.parameters(), lr=1e-2)
    start = br.kl(twin).item()
    for _ in range(10):
        optimizer.zero_grad()
        (twin(x).square().mean() + br.kl(twin)).backward()
        optimizer.step()
    assert br.kl(twin).item() < start - 1
    assert all(not torch.equal(tensor, before[name]) for name, tensor in twin.state_dict().items())
    assert all(torch.equal(tensor, before[name]) for name, tensor in lean.state_dict().items())
    assert str(twin.compression) == str(lean.compression)


def test_frozen_means_stay_frozen_and_the_generator_is_left_alone() -> None:
    bnn = converted()
    bnn.homes()["0.weight"].mean.requires_grad_(False)
    state = torch.get_rng_state()
    home = br.compress(bnn, rank=2).homes()["0.weight"]
    assert torch.equal(torch.get_rng_state(), state)
    assert not home.mean.requires_grad
    assert home.posterior.fan_in_factor.requires_grad


def test_half_precision_is_decomposed_in_double() -> None:
    bnn = converted(nn.Linear(8, 6, dtype=torch.bfloat16))
    row = br.compress(bnn, rank=1).compression["weight"]
    assert row.touched == 0
    assert br.compress(bnn, rank=2).homes()["weight"].posterior.fan_in_factor.dtype == torch.bfloat16


def test_learned_scales_shared_by_the_model_are_settled_again() -> None:
    bnn = br.bayesianize(mlp(), WIDE, br.LearnedNormal("model"))
    table = br.compress(bnn, rank=1).compression
    assert table.kl_before == pytest.approx(br.kl(bnn).item(), rel=1e-12)

"""Predictions of models: the same numbers however they are computed, and the right ones."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.linalg import MatrixView
from bayesrule.posteriors import (
    BernoulliPosterior,
    DiagonalCovariance,
    GaussianPosterior,
    MixturePosterior,
    Part,
    Posterior,
)
from bayesrule.predict import draw_weights
from predict_networks import CASES, Case, Tied, bytes_of, every_case, numbers

FAILURE_RATE = 1e-6


FAMILIES = [
    br.Diagonal(0.3),
    br.KTied(2, 0.3),
    br.MatrixNormal(0.3),
    br.MatrixNormalDiagonal("kronecker", 0.3),
    br.MatrixNormalDiagonal("free", 0.3),
    br.Full(0.3),
]


families = pytest.mark.parametrize("family", FAMILIES, ids=repr)


@every_case
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-6)])
def test_the_same_seed_gives_the_same_numbers_however_computed(
    case: Case, dtype: torch.dtype, tolerance: float
) -> None:
    bnn, inputs = case.build(dtype)
    one = bytes_of(bnn)
    expected = br.predict(bnn, inputs, 7).outputs
    assert expected.dtype == dtype
    assert expected.shape[:2] == (7, 9)
    assert expected.std(0).min() > 1e-3
    strategies = ["loop", "auto", "vmap"] if case.vmap else ["loop", "auto"]
    for strategy in strategies:
        for batch_size, draws in [(4, 3), (1, 7), (100, 1)]:
            options = {"batch_size": batch_size, "memory_limit": draws * one, "strategy": strategy}
            got = br.predict(bnn, inputs, 7, **options).outputs
            torch.testing.assert_close(got, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


@every_case
def test_more_samples_only_add_draws(case: Case) -> None:
    bnn, inputs = case.build()
    few, many = (br.predict(bnn, inputs, samples, strategy="loop").outputs for samples in (3, 8))
    assert torch.equal(few, many[:3])


@every_case
def test_other_seeds_give_other_numbers(case: Case) -> None:
    bnn, inputs = case.build()
    first, second = (br.predict(bnn, inputs, 3, seed=seed).outputs for seed in (0, 1))
    assert (first - second).abs().amin(dim=tuple(range(2, first.ndim))).max() > 1e-6
    assert not torch.equal(first[1:], second[:-1])  # nor the same draws, shifted


@every_case
def test_the_global_generator_plays_no_part_and_stays_as_it_is(case: Case) -> None:
    bnn, inputs = case.build()
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        found.append(br.predict(bnn, inputs, 4).outputs)
        assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(*found)


@every_case
def test_outputs_are_those_of_the_plain_network_at_the_drawn_weights(case: Case) -> None:
    bnn, inputs = case.build()
    plain = br.mean_module(bnn).eval()
    with torch.no_grad():
        draws = draw_weights(bnn.posteriors(), range(3), 0)
        got = br.predict(bnn, inputs, 3).outputs
        for i in range(3):
            weights = {name: tensor[i] for name, tensor in draws.items()}
            expected = torch.func.functional_call(plain, weights, inputs)
            if isinstance(plain, Tied):  # padding has no noise: its row stays the mean
                padding = (inputs[0] == 0).unsqueeze(-1)
                embedded = torch.where(padding, plain.embedding.weight[0], weights["embedding.weight"][inputs[0]])
                expected = F.linear(torch.tanh(embedded), weights["embedding.weight"], weights["out.bias"])
            torch.testing.assert_close(got[i], expected, rtol=1e-12, atol=1e-12)


@families
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bias", ["diagonal", "augment"])
def test_a_draw_is_the_same_bit_for_bit_however_asked_for(family: Any, dtype: torch.dtype, bias: Any) -> None:
    bnn = br.bayesianize(nn.Sequential(nn.Linear(17, 13), nn.Linear(13, 5)).to(dtype), family, bias=bias)
    with torch.no_grad():
        for parameter in bnn.parameters():  # away from the start, where covariances are diagonal
            parameter += 0.1 * torch.randn_like(parameter)
    check_ranges(bnn.posteriors())


def check_ranges(posteriors: dict[str, Posterior]) -> None:
    whole = draw_weights(posteriors, range(10), 3)
    for cuts in ([0, 1, 4, 10], [0, 5, 10], list(range(11))):
        pieces = [draw_weights(posteriors, range(*pair), 3) for pair in itertools.pairwise(cuts)]
        for name, drawn in whole.items():
            assert torch.equal(drawn, torch.cat([piece[name] for piece in pieces]))
    assert all(not torch.equal(drawn[0], drawn[1]) for drawn in whole.values())


def test_posteriors_with_other_noise_are_drawn_alike() -> None:
    mean = torch.randn(5, 4, dtype=torch.float64)
    part = (Part("weight", MatrixView((4, 5))),)
    components = tuple(GaussianPosterior(m, DiagonalCovariance(torch.ones_like(m)), part) for m in (mean, mean + 9))
    check_ranges({"weight": BernoulliPosterior(mean, 2, part)})
    check_ranges({"weight": MixturePosterior(torch.zeros(2, dtype=torch.float64), components)})


def test_parameters_of_one_shape_have_noise_of_their_own() -> None:
    bnn = br.bayesianize(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), br.Diagonal(0.3))
    posteriors = bnn.posteriors()
    with torch.no_grad():
        draws = draw_weights(posteriors, range(1), 0)
        first, second = (
            (draws[name][0].T - posteriors[name].mean) / posteriors[name].stddev for name in ("0.weight", "1.weight")
        )
    assert (first - second).abs().max() > 0.1


def test_one_draw_serves_every_example() -> None:
    bnn, (x,) = CASES["mlp"].build()
    same = br.predict(bnn, x[:1].expand(9, -1), 4, batch_size=2).outputs
    torch.testing.assert_close(same, same[:, :1].expand_as(same), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("family", [br.Diagonal(0.5), br.KTied(2, 0.5), br.MatrixNormal(0.5), br.Full(0.5)], ids=repr)
def test_a_linear_model_has_its_analytic_mean_and_variance(family: Any) -> None:
    net = nn.Linear(3, 2).double()
    bnn = br.bayesianize(net, family, bias="augment", likelihood=br.Gaussian(torch.tensor(0.3, dtype=torch.float64)))
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    draws, x = 2000, numbers(3)
    p = br.predict(bnn, x, draws)
    (posterior,) = bnn.posteriors().values()
    design = np.concatenate([x.numpy(), np.ones((9, 1))], axis=1)
    with torch.no_grad():
        mean = design @ posterior.mean.numpy()
        covariance = posterior.covariance.dense().numpy().reshape(4, 2, 4, 2)
    variance = np.einsum("bi,ikjk,bj->bk", design, covariance, design)
    tests = 2 * mean.size
    z = stats.norm.isf(FAILURE_RATE / tests / 2)
    assert (np.abs(p.mean.numpy() - mean) / np.sqrt(variance / draws)).max() < z
    scaled = draws * p.epistemic_std.numpy() ** 2 / variance  # χ² of draws − 1 degrees of freedom
    assert stats.chi2(draws - 1).ppf(FAILURE_RATE / tests / 2) < scaled.min()
    assert scaled.max() < stats.chi2(draws - 1).isf(FAILURE_RATE / tests / 2)
    np.testing.assert_allclose(p.aleatoric_std, 0.3, rtol=1e-12)


def test_probabilities_are_averaged_over_draws() -> None:
    bnn, (x,) = CASES["mlp"].build()
    p = br.predict(bnn, x, 6, br.Categorical())
    probs = special.softmax(p.outputs.numpy(), axis=-1)
    np.testing.assert_allclose(p.probs, probs.mean(0), rtol=1e-12)
    np.testing.assert_allclose(p.mutual_information, stats.entropy(probs.mean(0), axis=-1)
                               - stats.entropy(probs, axis=-1).mean(0), rtol=1e-9)  # fmt: skip


def test_a_sequence_has_outputs_at_every_step() -> None:
    bnn, inputs = CASES["recurrent"].build()
    p = br.predict(bnn, inputs, 6, br.Categorical())
    assert p.outputs.shape == (6, 9, 5, 2)
    assert p.entropy.shape == p.mutual_information.shape == (9, 5)

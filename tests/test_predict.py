"""Predictions of models: the same numbers however they are computed, and nothing left changed."""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from scipy import special, stats
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported
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


class Wrapped(nn.Module):
    """A layer, and a function of its output."""

    def __init__(self, layer: nn.Module, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer(x))


class Recurrent(nn.Module):
    """Outputs for every step: (examples, steps, outputs)."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


class Tied(nn.Module):
    """An embedding whose weight is the output layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(6, 3, padding_idx=0), nn.Linear(3, 6)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embedding(tokens)))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.first(x) * self.second(z)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 2))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 2))


def numbers(*shape: int) -> Tensor:
    return torch.randn(9, *shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


TOKENS = torch.randint(6, (9, 4), generator=torch.Generator().manual_seed(5))


@dataclass(frozen=True)
class Case:
    """A network to convert, and nine examples."""

    network: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]
    options: dict[str, Any] = field(default_factory=dict)
    vmap: bool = True

    def build(self, dtype: torch.dtype = torch.float64) -> tuple[Any, tuple[Tensor, ...]]:
        torch.manual_seed(11)
        bnn = br.bayesianize(self.network().to(dtype), **{"posterior": br.Diagonal(0.3), **self.options})
        return bnn, tuple(x.to(dtype) if x.is_floating_point() else x for x in self.inputs)


CASES = {
    "mlp": Case(mlp, (numbers(3),), {"posterior": br.KTied(2, 0.3)}),
    "mlp, point bias": Case(mlp, (numbers(3),), {"bias": "point"}),
    "mlp, augmented": Case(mlp, (numbers(3),), {"posterior": br.MatrixNormal(0.3), "bias": "augment"}),
    "mlp, last layer": Case(mlp, (numbers(3),), {"posterior": br.Full(0.3), "layers": "last_layer"}),
    "mixed families": Case(
        mlp, (numbers(3),), {"posterior": {"0": br.MatrixNormalDiagonal("free", 0.3), "*": br.Diagonal(0.3)}}
    ),
    "convolution": Case(convolutional, (numbers(2, 4, 4),)),
    "recurrent": Case(Recurrent, (numbers(5, 3),), vmap=False),
    "tied": Case(Tied, (TOKENS,), {"posterior": br.MatrixNormal(0.3)}),
    "sequence": Case(mlp, (numbers(4, 3),)),
    "transformer": Case(lambda: nn.TransformerEncoderLayer(4, 2, 6, batch_first=True), (numbers(3, 4),), vmap=False),
    "two inputs": Case(TwoInputs, (numbers(3), numbers(2))),
}  # fmt: skip
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def bytes_of(bnn: Any) -> int:
    return sum(q.mean.numel() * q.mean.element_size() for q in bnn.posteriors().values())


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


def test_the_model_is_evaluated_in_eval_mode_without_gradients() -> None:
    seen = []

    def watch(x: Tensor) -> Tensor:
        seen.append(torch.is_grad_enabled())
        return x

    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), Wrapped(nn.Identity(), watch))
    bnn = br.bayesianize(net.double(), br.Diagonal(0.3)).train()
    buffers = {name: buffer.clone() for name, buffer in bnn.named_buffers()}
    seen.clear()
    p = br.predict(bnn, numbers(3), 5, strategy="loop")
    assert seen == [False] * 5
    assert not p.outputs.requires_grad
    assert all(torch.equal(buffer, buffers[name]) for name, buffer in bnn.named_buffers())
    assert torch.equal(p.outputs, br.predict(bnn.eval(), numbers(3), 5, strategy="loop").outputs)  # no dropout


def failing(x: Tensor) -> Tensor:
    raise KeyError("a fault of the network's own")


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("fails", [True, False])
def test_every_training_flag_is_put_back(training: bool, fails: bool) -> None:
    norm, body = nn.BatchNorm1d(2), failing if fails else torch.relu
    net = nn.Sequential(nn.Linear(3, 2), norm, Wrapped(nn.Identity(), body), nn.Dropout())
    bnn = br.bayesianize(net.double(), br.Diagonal(0.3)).train(training)
    bnn.module[1].train(not training)  # a norm layer whose statistics are frozen
    before = {name: module.training for name, module in bnn.named_modules()}
    state = torch.get_rng_state()
    if fails:
        with pytest.raises(KeyError, match="of the network's own"):
            br.predict(bnn, numbers(3), 2)
    else:
        br.predict(bnn, numbers(3), 2)
    assert {name: module.training for name, module in bnn.named_modules()} == before
    assert torch.equal(state, torch.get_rng_state())


class Held:
    """A model that is no module, as an optimizer that holds a posterior."""

    training, batchable = True, False

    def __init__(self) -> None:
        self.net, self.likelihood = nn.Linear(3, 2).double(), br.Categorical()
        self.modes: list[bool] = []

    def posteriors(self) -> dict[str, Any]:
        mean = self.net.weight.detach()
        parts = (Part("weight", tuple(mean.shape)),)
        return {"weight": GaussianPosterior(mean.flatten(), DiagonalCovariance(torch.ones(6).double(), 1), parts)}

    def at(self, draws: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        assert not self.training
        return torch.func.functional_call(self.net, dict(draws), args, kwargs)

    def train(self, mode: bool = True) -> Any:
        self.training = mode
        self.modes.append(mode)


def test_a_model_need_not_be_a_module() -> None:
    held = Held()
    p = br.predict(held, numbers(3), 5)
    assert p.probs.shape == (9, 2)
    assert held.modes == [False, True]


def test_a_prediction_does_not_change_with_later_training() -> None:
    bnn, (x,) = CASES["mlp"].build()
    bnn.likelihood = br.Gaussian(0.3, learn=True)
    p = br.predict(bnn, x, 5)
    std, quantile, log_prob = p.std, p.quantile(0.9), p.log_prob(x[:, :2])
    assert not any(tensor.requires_grad for tensor in (std, quantile, log_prob, p.mean))
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter += 1
    assert torch.equal(p.std, std)
    assert torch.equal(p.quantile(0.9), quantile)
    assert torch.equal(p.log_prob(x[:, :2]), log_prob)
    assert bnn.likelihood.log_noise_std.requires_grad


def test_a_given_likelihood_comes_before_the_models_own() -> None:
    bnn, inputs = CASES["mlp"].build()
    bnn.likelihood = br.Gaussian(0.3)
    assert isinstance(br.predict(bnn, inputs, 2).likelihood, br.Gaussian)
    assert isinstance(br.predict(bnn, inputs, 2, br.Categorical()).likelihood, br.Categorical)


@pytest.mark.parametrize("strategy", ["loop", "vmap", "auto"])
@pytest.mark.parametrize("limit", [1, 2, 3.5, 20])
def test_drawn_weights_stay_within_the_memory_limit(strategy: Any, limit: float, monkeypatch: Any) -> None:
    bnn, inputs = CASES["mlp, augmented"].build()
    allowed, totals = int(limit * bytes_of(bnn)), []

    def recorded(*args: Any) -> dict[str, Tensor]:
        draws = draw_weights(*args)
        totals.append(sum(tensor.numel() * tensor.element_size() for tensor in draws.values()))
        return draws

    monkeypatch.setattr(importlib.import_module("bayesrule.predict.predict"), "draw_weights", recorded)
    br.predict(bnn, inputs, 50, memory_limit=allowed, strategy=strategy)
    assert sum(totals) == 50 * bytes_of(bnn)
    assert max(totals) == (bytes_of(bnn) if strategy == "loop" else math.floor(limit) * bytes_of(bnn))
    assert max(totals) <= allowed


def test_the_activations_of_many_draws_are_bounded_too() -> None:
    """However much memory the weights may take, only a few draws are evaluated at once."""
    rows = []

    class Watched(Held):
        batchable = True

        def at(self, draws: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
            batched = torch.func.debug_unwrap(draws["weight"])
            rows.append(len(batched))
            return super().at(draws, *args, **kwargs)

    br.predict(Watched(), numbers(3), 500, memory_limit=2**40)
    assert sum(rows) == 500
    assert max(rows) <= 32


def in_place(x: Tensor) -> Tensor:
    output = torch.zeros(len(x), 3, dtype=x.dtype)
    output[:, :2] = x
    return output


AWKWARD: dict[str, Callable[[Tensor], Tensor]] = {
    "in-place": in_place,
    "control flow": lambda x: x if x.sum() > 0 else -x,
    "a number": lambda x: x * x.abs().max().item(),
    "noise of its own": lambda x: x + 0 * torch.rand_like(x),
}


@pytest.mark.parametrize("function", AWKWARD.values(), ids=AWKWARD)
def test_what_has_no_batching_rule_is_looped_over(function: Callable[[Tensor], Tensor]) -> None:
    bnn = br.bayesianize(Wrapped(nn.Linear(3, 2).double(), function), br.Diagonal(0.3))
    state = torch.get_rng_state()
    looped, auto = (br.predict(bnn, numbers(3), 7, strategy=strategy).outputs for strategy in ("loop", "auto"))
    assert torch.equal(looped, auto)
    assert torch.equal(state, torch.get_rng_state())
    with pytest.raises(Unsupported, match=r'several draws at once \(torch.func.vmap\).*strategy="loop"'):
        br.predict(bnn, numbers(3), 7, strategy="vmap")


def test_recurrent_layers_refuse_vmap_by_name() -> None:
    bnn, inputs = CASES["recurrent"].build()
    with pytest.raises(Unsupported, match=r'several draws at once.*lstm.*strategy="loop"'):
        br.predict(bnn, inputs, 3, strategy="vmap")


@pytest.mark.parametrize("strategy", ["auto", "loop", "vmap"])
@pytest.mark.parametrize(
    ("function", "kind"), [(lambda x: (x, x), "tuple"), (lambda x: {"mean": x}, "dict"), (lambda x: None, "NoneType")]
)
def test_a_network_must_return_one_tensor(function: Any, kind: str, strategy: Any) -> None:
    bnn = br.bayesianize(Wrapped(nn.Linear(3, 2).double(), function), br.Diagonal(0.3))
    with pytest.raises(InvalidArgument, match=rf"returns one tensor.*a {kind}.*Wrap the network"):
        br.predict(bnn, numbers(3), 3, strategy=strategy)


@pytest.mark.parametrize("strategy", ["auto", "loop", "vmap"])
@pytest.mark.parametrize("function", [torch.mean, lambda x: x[:4], lambda x: x.T])
def test_a_network_must_keep_the_examples_first(function: Any, strategy: Any) -> None:
    bnn = br.bayesianize(Wrapped(nn.Linear(3, 2).double(), function), br.Diagonal(0.3))
    with pytest.raises(ShapeMismatch, match=r"9 examples as its first dimension.*batch_first=True"):
        br.predict(bnn, numbers(3), 3, strategy=strategy)


def test_a_fault_in_the_network_is_shown_as_it_is() -> None:
    bnn, _ = CASES["mlp"].build()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        br.predict(bnn, numbers(4), 3)


@pytest.mark.parametrize("samples", [0, -3])
def test_no_draw_is_refused(samples: int) -> None:
    bnn, inputs = CASES["mlp"].build()
    with pytest.raises(InvalidArgument, match=f"At least one draw.*samples={samples}"):
        br.predict(bnn, inputs, samples)


@pytest.mark.parametrize("strategy", ["auto", "loop", "vmap"])
def test_a_memory_limit_below_one_draw_says_what_is_needed(strategy: Any) -> None:
    bnn = br.bayesianize(nn.Linear(100, 30).double(), br.Diagonal(0.3))
    needed = 8 * (3000 + 30)
    with pytest.raises(InvalidArgument, match=r"takes 24,240 bytes.*limit of 24,239.*memory_limit to 24,240"):
        br.predict(bnn, numbers(100), 3, memory_limit=needed - 1, strategy=strategy)
    assert br.predict(bnn, numbers(100), 3, memory_limit=needed, strategy=strategy).outputs.shape == (3, 9, 30)


def test_other_arguments_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bnn, (x,) = CASES["mlp"].build()
    with pytest.raises(InvalidArgument, match="batch_size must be at least 1"):
        br.predict(bnn, x, batch_size=0)
    with pytest.raises(InvalidArgument, match=r"same, positive number of examples.*\(9, 3\), \(8, 3\)"):
        br.predict(bnn, (x, x[:8]))
    for empty in (x[:0], (x[:0], x[:0]), ()):
        with pytest.raises(InvalidArgument, match="same, positive number of examples"):
            br.predict(bnn, empty)
    with pytest.raises(InvalidArgument, match="tensors, examples first"):
        br.predict(bnn, torch.tensor(1.0))
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # which would speak first
    with pytest.raises(InvalidArgument, match=r'"auto", "loop" or "vmap".*vmpa'):
        br.predict(bnn, x, strategy="vmpa")  # type: ignore[arg-type]
    for foreign in ([x], x.numpy()):
        with pytest.raises(InvalidArgument, match=r"tensors, examples first.*torch\.as_tensor"):
            br.predict(bnn, foreign)  # type: ignore[arg-type]


def test_without_a_likelihood_prediction_gives_outputs_and_says_what_it_lacks() -> None:
    bnn, inputs = CASES["mlp"].build()
    p = br.predict(bnn, inputs, 3)
    assert p.outputs.shape == (3, 9, 2)
    with pytest.raises(InvalidArgument, match=r"needs a likelihood.*br\.predict"):
        _ = p.mean

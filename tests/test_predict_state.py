"""What a prediction leaves as it was, and what it holds at a time."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.predict import draw_weights
from predict_networks import CASES, Held, Wrapped, bytes_of, numbers


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

"""The exported network of a group-sparse one: counts by hand, equal outputs, claims, and rows that add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.experiments import EXPERIMENTS, Request, Row, reproduce
from bayesrule.experiments.mn import export
from bayesrule.experiments.mn.export import EXPORT, METRICS, difference, exported
from bayesrule.experiments.mn.networks import fully_connected
from bayesrule.experiments.mn.ordinary import train_ordinary
from bayesrule.experiments.mn.recipe import Recipe
from bayesrule.experiments.mn.training import examples
from prune_networks import masked_by_hand, model

INPUTS, HIDDEN, CLASSES = 12, (9, 8), 4
KEPT = ([1, 4, 5, 10, 11], [0, 3, 7], [2, 6, 7, 1])
"""Inputs and hidden units that the masks below leave."""


def sparse_model() -> tuple[br.BayesianModule, dict[str, Tensor]]:
    torch.manual_seed(0)
    net = fully_connected(INPUTS, HIDDEN, CLASSES)
    for parameter in net.parameters():
        nn.init.normal_(parameter)
    inputs, first, second = (torch.zeros(size).index_fill(0, torch.tensor(units), 1).bool()
                             for size, units in zip((INPUTS, *HIDDEN), KEPT, strict=True))  # fmt: skip
    every = torch.ones(CLASSES, dtype=torch.bool)
    masks = {
        "1.weight": first[:, None] & inputs,
        "3.weight": second[:, None] & first,
        "5.weight": every[:, None] & second,
    }
    return model(net, masks, bias="point", likelihood=br.Categorical()), masks


def test_what_is_exported_is_what_is_left() -> None:
    bnn, masks = sparse_model()
    x, y = torch.randn(300, INPUTS), torch.randint(CLASSES, (300,))
    found = exported(bnn, x, y, repeats=3)
    inputs, first, second = map(len, KEPT)
    weights = inputs * first + first * second + second * CLASSES
    total = INPUTS * HIDDEN[0] + HIDDEN[0] * HIDDEN[1] + HIDDEN[1] * CLASSES
    assert (found["inputs_left"], found["hidden1_left"], found["hidden2_left"]) == (inputs, first, second)
    assert found["weights_exported"] == found["multiply_adds_after"] == weights
    assert found["multiply_adds_before"] == total
    assert found["bytes_before"] == 4 * (total + sum(HIDDEN) + CLASSES)
    assert found["bytes_after"] == 4 * (weights + first + second + CLASSES) + 8 * inputs  # the indices of the inputs
    assert found["speedup"] == found["latency_ms_before"] / found["latency_ms_after"]
    assert found["latency_ms_after"] > 0
    right = (masked_by_hand(bnn, masks)(x).argmax(-1) == y).double().mean().item()
    assert found["accuracy_exported"] == pytest.approx(100 * right, abs=1e-9)


def test_outputs_are_those_of_the_masked_network(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[torch.dtype] = []

    def noted(first: nn.Module, second: nn.Module, x: Tensor) -> float:
        compared.append(first(x).dtype)
        return difference(first, second, x)

    monkeypatch.setattr(export, "difference", noted)
    bnn, _ = sparse_model()
    found = exported(bnn, torch.randn(300, INPUTS), torch.zeros(300, dtype=torch.int64), repeats=1)
    assert found["output_difference"] < 1e-13
    assert found["output_difference_float32"] < 1e-4  # other sums, which some machines round alike
    assert compared == [torch.float64, torch.float32]
    assert next(bnn.parameters()).dtype == torch.float32


def test_the_difference_is_the_largest_of_all_batches() -> None:
    x = torch.zeros(1000, 2)
    x[700, 1] = 3.0
    assert difference(nn.Identity(), nn.ReLU(), -x) == 3.0
    assert difference(nn.Identity(), nn.ReLU(), x) == 0.0


def test_an_ordinary_network_starts_where_the_others_do_and_learns() -> None:
    recipe = Recipe("fc512", "mnist", "diag", "group", 10, seed=3, synthetic=64, batch_size=8)
    data = examples(recipe, None, torch.device("cpu"))
    start = br.mean_module(recipe.build())
    state = torch.get_rng_state()
    untrained = train_ordinary(replace(recipe, epochs=0), data)
    for (name, found), expected in zip(untrained.named_parameters(), start.parameters(), strict=True):
        assert torch.equal(found, expected), name
    first, again = train_ordinary(recipe, data), train_ordinary(recipe, data)
    assert torch.equal(state, torch.get_rng_state())
    assert all(map(torch.equal, first.parameters(), again.parameters()))
    losses = [F.cross_entropy(net(data.train_x), data.train_y).item() for net in (untrained, first)]
    assert losses[1] < 0.2 * losses[0]


@pytest.mark.parametrize("method", ["diag", "mn"])
def test_rows_add_up(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    result = reproduce(EXPERIMENTS["mn/export"], Request("smoke", tmp_path / "out", methods=(method,)))
    value = {row["metric"]: row["value"] for row in result["rows"]}
    assert tuple(value) == METRICS
    assert value["weights_total"] == value["multiply_adds_before"] == 784 * 512 + 512 * 512 + 512 * 10
    best = max(value["accuracy"], value["accuracy_mean"])
    assert value["points_lost"] == pytest.approx(best - value["accuracy_exported"])
    assert value["points_below_ordinary"] == pytest.approx(value["accuracy_ordinary"] - value["accuracy_exported"])
    assert value["output_difference"] < 1e-11


def rows(method: str, speedup: float, lost: float, below: float = 0.0, difference: float = 1e-12) -> list[Row]:
    values = {"speedup": speedup, "points_lost": lost, "points_below_ordinary": below, "output_difference": difference}
    return [Row("mnist", method, "", metric, value, None, 1) for metric, value in values.items()]


@pytest.mark.parametrize(
    ("found", "fast", "beside_ordinary", "same"),
    [
        (rows("diag", 3.0, 0.49, 0.49), True, True, True),
        (rows("diag", 2.9, 0.0), False, False, True),
        (rows("diag", 4.0, 0.5), False, True, True),
        (rows("diag", 4.0, 0.1, 0.6), True, False, True),
        (rows("diag", 4.0, 0.6, 0.6) + rows("mn", 2.0, 0.0), False, False, True),  # one is fast, the other close
        (rows("diag", 1.0, 0.0) + rows("mn", 9.0, -0.1, -0.1), True, True, True),
        (rows("diag", 5.0, 0.0) + rows("mn", 5.0, 0.0, difference=2e-6), True, True, False),
    ],
)
def test_claims(found: list[Row], fast: bool, beside_ordinary: bool, same: bool) -> None:
    standings = [claim.check(found).standing == "held" for claim in EXPORT.claims[:3]]
    assert standings == [fast, beside_ordinary, same]

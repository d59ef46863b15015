"""What every optimizer that holds a posterior says of a slip, and that it goes on afterwards."""

from __future__ import annotations

import copy
import io
import math
import pickle
from contextlib import nullcontext

import jaxtyping
import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.optim import STE, NoisyKFAC
from bayesrule.optim.arguments import known_options
from optim_problems import EVERY, loss_of, make, network, regression, same, step, values

all_kinds = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shape checks of the test suite, which would speak first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def packed(optimizer) -> bytes:
    """Everything it keeps, and the weights."""
    file = io.BytesIO()
    torch.save((optimizer.state_dict(), optimizer.model.state_dict()), file)
    return file.getvalue()


@all_kinds
def test_the_documented_loop_goes_on_after_a_batch_that_is_not_finite(kind) -> None:
    broken, whole = (make(kind, network(3, 4, 2)) for _ in range(2))
    for optimizer in (broken, whole):
        step(optimizer, lambda: loss_of(optimizer))  # noqa: B023, called here
    before = broken.state_dict()
    refused = pytest.raises(InvalidArgument, match="dropped, and nothing was changed: go on with the next batch")
    with refused:
        step(broken, lambda: loss_of(broken) * math.nan)
    with broken.sampled_params():
        loss_of(broken).backward()
    with broken.sampled_params():
        (loss_of(broken) * math.inf).backward()
    with refused:
        broken.step()
    assert all(parameter.grad is None for parameter in broken.trained.values())
    assert broken.steps == 1
    torch.testing.assert_close(
        broken.state_dict()["posterior"]["groups"], before["posterior"]["groups"], rtol=0, atol=0
    )
    assert same(values(broken), values(whole))

    whole.load_state_dict(broken.state_dict())  # the refused blocks have used up noise, and nothing else
    for optimizer in (broken, whole):
        step(optimizer, lambda: loss_of(optimizer))  # noqa: B023, called here
    assert same(values(broken), values(whole))
    assert broken.steps == 2


@all_kinds
def test_it_is_neither_copied_nor_pickled_but_its_state_is(kind) -> None:
    optimizer = make(kind)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
    for attempt in (copy.deepcopy, copy.copy, pickle.dumps, lambda each: torch.save(each, io.BytesIO())):
        with pytest.raises(Unsupported, match=r"state_dict\(\) and the network's") as error:
            attempt(optimizer)
        assert str(error.value).startswith(f"{type(optimizer).__name__} cannot be copied or pickled: ")
    step(optimizer, lambda: loss_of(optimizer))
    schedule.step()
    assert optimizer.param_groups[0]["lr"] < 0.05
    assert packed(optimizer)
    assert copy.deepcopy(optimizer.state_dict())["posterior"]["steps"] == 1


@all_kinds
def test_a_param_group_that_comes_late_is_refused(kind) -> None:
    optimizer = make(kind)
    groups = len(optimizer.param_groups)
    with pytest.raises(Unsupported, match="make a new optimizer"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    assert len(optimizer.param_groups) == groups


def damaged(state: dict, name: str) -> dict:
    state = copy.deepcopy(state)
    posterior, first = state["posterior"], next(iter(state["posterior"]["groups"]))
    if name == "n_data":
        posterior["n_data"] = 51
    elif name == "state":
        posterior["groups"][first]["more"] = 0
    elif name == "plain":
        posterior["plain"]["norm.weight"] = {}
    elif name == "prior":
        posterior["prior"][first].pop("precision")
    elif name == "likelihood":
        posterior["likelihood"] = {"other": torch.ones(2)}
    elif name == "generator":
        posterior["generators"] = {"cpu": torch.zeros(3, dtype=torch.uint8)}
    elif name == "options":
        state["param_groups"][0].pop("lr")
    elif name == "param groups":
        state["param_groups"].append(state["param_groups"][0])
    elif name == "keys":
        posterior.pop("mirror")
    return state


DAMAGES = ["n_data", "state", "plain", "prior", "likelihood", "generator", "options", "param groups", "keys"]


@all_kinds
@pytest.mark.parametrize("name", DAMAGES)
def test_a_state_that_does_not_fit_changes_nothing(kind, name: str) -> None:
    saved = make(kind, lr=0.01, likelihood=br.likelihoods.GaussianGammaNoise(), seed=1)
    step(saved, lambda: loss_of(saved))
    optimizer = make(kind, likelihood=br.likelihoods.GaussianGammaNoise())
    before = packed(optimizer)
    with pytest.raises(RuntimeError if name == "generator" else InvalidArgument):
        optimizer.load_state_dict(damaged(saved.state_dict(), name))
    assert packed(optimizer) == before
    optimizer.load_state_dict(saved.state_dict())
    assert (optimizer.steps, optimizer.param_groups[0]["lr"]) == (1, 0.01)


def test_a_state_of_the_other_damping_changes_nothing() -> None:
    factored, exact = make(NoisyKFAC, lr=0.01), make(NoisyKFAC, damping="exact")
    step(factored, lambda: loss_of(factored))
    before = packed(exact)
    with pytest.raises(InvalidArgument, match="does not fit"):
        exact.load_state_dict(factored.state_dict())
    assert packed(exact) == before
    assert (exact.param_groups[0]["damping"], exact.param_groups[0]["lr"]) == ("exact", 0.05)


@all_kinds
def test_a_state_of_other_data_names_both_sizes_and_a_way(kind) -> None:
    state, optimizer = make(kind, n_data=80).state_dict(), make(kind)
    with pytest.raises(InvalidArgument, match=r"n_data=80, and this \w+ has n_data=50"):
        optimizer.load_state_dict(state)
    with pytest.raises(InvalidArgument, match="not the state of"):
        optimizer.load_state_dict([1, 2])
    state["posterior"]["n_data"] = 50
    optimizer.load_state_dict(state)
    state["posterior"].pop("n_data")  # as states were once saved
    optimizer.load_state_dict(state)


@all_kinds
def test_parameters_in_place_of_the_network(kind) -> None:
    for given in (network(3, 2).parameters(), list(network(3, 2).parameters()), "net"):
        with pytest.raises(InvalidArgument, match=f"{kind.__name__} takes a network.*not its parameters"):
            kind(given, n_data=50)


@all_kinds
def test_a_batch_with_more_examples_than_there_are(kind) -> None:
    """Who counts batches in place of examples gets a posterior that is too wide; STE has none."""
    rows = len(regression()[0])
    warned = pytest.warns(UserWarning, match=f"A batch has {rows} examples.*is {rows - 1}:")
    for n_data, context in ((rows - 1, nullcontext() if kind is STE else warned), (rows, nullcontext())):
        optimizer = make(kind, n_data=n_data)
        with context:
            step(optimizer, lambda optimizer=optimizer: loss_of(optimizer))


WRONG = {
    "n_data": [True, 0, 1.5],
    "likelihood": ["categorical", br.Categorical, 1.0],
    "prior": ["normal", 1.0, br.Normal, 0],
    "lr": ["fast", None, -0.1],
    "plain_lr": ["fast"],
    "kl_weight": ["cold", 0.0],
    "noise_lr": ["fast"],
    "seed": ["a", 1.5, True],
    "momentum": [1.5, 1.0, -0.1, "a"],
    "betas": [0.9, (0.9,), "ab", (0.9, 1.0), (0.9, "a")],
    "beta": ["a", 0.0],
    "max_kl": ["a", -1.0],
    "extra_damping": ["a"],
}


def options_of(kind) -> list[str]:
    return [name for name in known_options(kind) if name not in kind.left_out]


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in EVERY for name in WRONG if name in options_of(kind)]
)
def test_an_option_of_the_wrong_kind_is_named(kind, name: str) -> None:
    for value in WRONG[name]:
        with pytest.raises(InvalidArgument, match=name) as error:
            kind(network(3, 2), **{"n_data": 50, name: value})
        assert "Got: " in str(error.value)


@all_kinds
def test_unknown_and_missing_options_are_reported_by_the_class_that_was_called(kind) -> None:
    with pytest.raises(InvalidArgument, match=f"{kind.__name__} has no such option.*Did you mean 'lr'.*likelihood"):
        make(kind, lrr=0.1)
    with pytest.raises(InvalidArgument, match="Did you mean 'kl_weight'"):
        make(kind, kl_weigth=0.1)
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\.__init__\(\) missing.*'n_data'"):
        kind(network(3, 2))
    with pytest.raises(TypeError, match=rf"^{kind.__name__}\.__init__\(\) takes"):
        kind(network(3, 2), 50)
    assert {"n_data", "lr", "plain", "seed"} <= set(options_of(kind))
    for name in kind.left_out:
        with pytest.raises(InvalidArgument, match=f"Leave out {name}"):
            kind(network(3, 2), **{"n_data": 50, name: 1})


def test_a_seed_of_numpy_is_a_seed() -> None:
    numpy = pytest.importorskip("numpy")
    first, second = (make(NoisyKFAC, warm_up=False, seed=seed) for seed in (numpy.int64(3), 3))
    for optimizer in (first, second):
        step(optimizer, lambda: loss_of(optimizer))  # noqa: B023, called here
    assert same(values(first), values(second))
    assert type(first.state_dict()["posterior"]["seed"]) is int

"""States that do not fit an optimizer are refused whole, and say which parameter and why."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bayesrule.errors import ShapeMismatch
from bayesrule.optim import NoisyAdam, NoisyEKFAC, NoisyFull, NoisyKFAC
from optim_problems import EVERY, held, make, network, refused, regression, step

every = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
X, Y = regression()


@every
def test_a_state_of_another_optimizer_is_named(kind) -> None:
    other = NoisyAdam if kind is not NoisyAdam else NoisyKFAC
    optimizer = make(kind)
    before = held(optimizer)
    error = refused(
        lambda: optimizer.load_state_dict(make(other).state_dict()),
        f"another optimizer, and not of a {kind.__name__}. Got: a state of {other.__name__}.*Nothing was loaded",
    )
    assert "Inverse" not in str(error)
    assert held(optimizer) == before


def test_states_without_a_name_are_loaded_if_they_fit() -> None:
    old = make(NoisyKFAC, lr=0.01)
    step(old, lambda: old.nll(old.model(X), Y))
    state = old.state_dict()
    assert state["posterior"].pop("optimizer") == "NoisyKFAC"
    other = make(NoisyEKFAC)
    before = held(other)
    error = refused(lambda: other.load_state_dict(state), "state of '0.weight' does not fit that of this NoisyEKFAC")
    assert "EigenInverse" not in str(error)
    assert held(other) == before
    same = make(NoisyKFAC)
    same.load_state_dict(state)
    assert same.steps == 1


@pytest.mark.parametrize("kind", [NoisyAdam, NoisyKFAC, NoisyFull], ids=lambda kind: kind.__name__)
def test_a_state_of_another_width_says_which_parameter_and_both_shapes(kind) -> None:
    here, wider = make(kind), make(kind, network(3, 9, 2))
    before = held(here)
    error = refused(lambda: here.load_state_dict(wider.state_dict()), "'0.weight' does not fit", ShapeMismatch)
    assert "the parameter has shape (4, 3) here. Got: one of (9, 3)" in str(error)
    assert held(here) == before


@every
def test_a_state_of_as_many_numbers_in_other_shapes_is_refused(kind) -> None:
    """26 weights either way, which one joint posterior could not tell apart."""
    here, other = make(kind), make(kind, network(3, 5, 1))
    before = held(here)
    error = refused(lambda: here.load_state_dict(other.state_dict()), "does not fit", ShapeMismatch)
    assert "0.weight" in str(error)
    assert held(here) == before


@every
def test_a_state_of_parameters_with_other_names_is_refused(kind) -> None:
    here, other = make(kind), make(kind, nn.Sequential(*network(3, 4, 2)[::2]))
    before = held(here)
    error = refused(lambda: here.load_state_dict(other.state_dict()), f"not the state of a {kind.__name__}")
    assert "1.weight" in str(error.got)
    assert held(here) == before


@every
def test_a_state_without_shapes_is_loaded_if_it_fits(kind) -> None:
    state, optimizer = make(kind, lr=0.01).state_dict(), make(kind)
    assert state["posterior"].pop("shapes")["0.weight"] == (4, 3)
    optimizer.load_state_dict(state)
    assert optimizer.param_groups[0]["lr"] == 0.01


@every
def test_a_state_in_single_precision_for_a_network_in_half(kind) -> None:
    single, half = (make(kind, network(3, 4, 2, dtype=dtype)) for dtype in (torch.float32, torch.bfloat16))
    before = held(half)
    error = refused(lambda: half.load_state_dict(single.state_dict()), "has no '0.weight'")
    assert "same precision" in error.remedy
    assert held(half) == before


@every
def test_a_state_of_another_kl_weight_is_refused(kind) -> None:
    """It would be as much wider or narrower."""
    here, other = make(kind), make(kind, kl_weight=0.1)
    before, state = held(here), other.state_dict()
    error = refused(lambda: here.load_state_dict(state), "saved with kl_weight=0.1, and this .* has kl_weight=1.0")
    assert 'state["posterior"]["kl_weight"] = 1.0' in error.remedy
    assert held(here) == before
    state["posterior"]["kl_weight"] = 1.0
    here.load_state_dict(state)

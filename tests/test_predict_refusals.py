"""What has no rule for batches of weights, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported
from predict_networks import CASES, Wrapped, numbers


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


@pytest.mark.parametrize("samples", [0, -3, 1.5])
def test_what_is_no_number_of_draws_is_refused(samples: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
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

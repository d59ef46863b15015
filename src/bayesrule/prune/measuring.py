"""What a network costs, and what it is worth."""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from bayesrule.errors import InvalidArgument
from bayesrule.likelihoods import Categorical, Likelihood
from bayesrule.timing import Turn, interleaved, processor_clock

Evaluate = Callable[[nn.Module], Mapping[str, float]] | Iterable[Any]
"""Measures a network: a function of it, or batches, each a pair of inputs and targets."""
REPEATS = 15
"""Calls that are timed, at least."""
WARM_UPS = 2


def stored_bytes(module: nn.Module) -> int:
    """Of its parameters and buffers, tied ones once."""
    return sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients inside; every module's mode is put back."""
    modes = {each: each.training for each in module.modules()}
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for each, mode in modes.items():
            each.training = mode


def multiply_adds(module: nn.Module, inputs: tuple[Any, ...]) -> float:
    """Of matrix products and convolutions, for each example of the batch."""
    with evaluating(module), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops() / 2 / len(inputs[0])


def seconds(modules: Sequence[nn.Module], inputs: tuple[Any, ...], repeats: int = 0) -> list[float]:
    """Median processor time of a forward pass in evaluation, as `processor_seconds` takes it."""
    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(evaluating(module))
        return processor_seconds([partial(module, *inputs) for module in modules], repeats)


def cpu_seconds(modules: Sequence[nn.Module], inputs: tuple[Any, ...]) -> list[float]:
    """The same on the CPU, wherever the networks are."""
    here = tree_map_only(Tensor, Tensor.cpu, inputs)
    return seconds([copy.deepcopy(module).cpu() for module in modules], here)


def processor_seconds(calls: Sequence[Callable[[], object]], repeats: int = 0) -> list[float]:
    """Median time that each call takes of one CPU thread.

    Time in which the thread had to wait for other programs does not count, as it would by the clock on the wall. The
    calls are warmed up, and take turns in changing order, so that none of them is always the first.

    Args:
        calls: What to time.
        repeats: How often; never less often than `REPEATS`.
    """
    turns = {str(number): Turn(call) for number, call in enumerate(calls)}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        times = interleaved(turns, processor_clock, rounds=max(repeats, REPEATS), warm_ups=WARM_UPS)
    finally:
        torch.set_num_threads(threads)
    return [statistics.median(taken.tolist()) for taken in times.values()]


def measures(modules: list[nn.Module], evaluate: Evaluate, likelihood: Likelihood | None) -> list[dict[str, float]]:
    """What the function says of each network; of batches the NLL and, for classes, the accuracy.

    The function gets copies in evaluation mode: whatever it does to them, the networks stay as they are.
    """
    if callable(evaluate):
        return [dict(evaluate(copy.deepcopy(module).eval())) for module in modules]
    if likelihood is None:
        raise InvalidArgument(
            "Batches can only be measured by the model's likelihood, and it has none", got="evaluate=batches",
            remedy="Give br.bayesianize a likelihood, or evaluate= a function of the network.",
        )  # fmt: skip
    batches = [_batch(each) for each in evaluate]
    if not batches:
        raise InvalidArgument("There are no batches to measure the networks on", got="an empty iterable")
    return [_measured(module, batches, likelihood) for module in modules]


def _batch(given: object) -> tuple[Tensor, Tensor]:
    """A pair of inputs and targets; what else an iterable may hold is refused."""
    if isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(part, Tensor) for part in given):
        inputs, targets = given
        if targets.ndim:
            return inputs, targets
    parts = given if isinstance(given, tuple | list) else [given]
    got = [
        f"a tensor of shape {tuple(part.shape)}" if isinstance(part, Tensor) else type(part).__name__ for part in parts
    ]
    raise InvalidArgument(
        "evaluate= takes an iterable of batches, each a pair of tensors (inputs, targets)",
        got=f"{' and '.join(got)} where a batch should be",
        remedy="Write evaluate=[(x, y)] for one batch, or give a DataLoader, or a function of the network.",
    )  # fmt: skip


def _measured(module: nn.Module, batches: list[tuple[Tensor, Tensor]], likelihood: Likelihood) -> dict[str, float]:
    log_prob, right, rows = 0.0, 0, 0
    with evaluating(module):
        for x, y in batches:
            outputs = module(x)
            log_prob += float(likelihood.log_prob(outputs, y).sum())
            right += int((outputs.argmax(-1) == y).sum()) if isinstance(likelihood, Categorical) else 0
            rows += len(y)
    found = {"nll": -log_prob / rows}
    return {**found, "accuracy": right / rows} if isinstance(likelihood, Categorical) else found

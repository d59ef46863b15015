"""What a network costs, and what it is worth."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bayesrule.errors import InvalidArgument
from bayesrule.likelihoods import Categorical, Likelihood

Evaluate = Callable[[nn.Module], Mapping[str, float]] | Iterable[tuple[Tensor, Tensor]]
"""Measures a network: a function of it, or batches of inputs and targets."""
REPEATS = 15


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


def seconds(modules: list[nn.Module], inputs: tuple[Any, ...], repeats: int = REPEATS) -> list[float]:
    """Median time of a forward pass on one thread; the networks take turns, so that a busy moment hits all of them."""
    threads = torch.get_num_threads()
    times: list[list[float]] = [[] for _ in modules]
    torch.set_num_threads(1)
    try:
        for repeat in range(repeats + 2):
            for module, kept in zip(modules, times, strict=True):
                with evaluating(module):
                    start = time.perf_counter()
                    module(*inputs)
                    if repeat >= 2:  # the first passes warm up
                        kept.append(time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return [statistics.median(kept) for kept in times]


def measures(modules: list[nn.Module], evaluate: Evaluate, likelihood: Likelihood | None) -> list[dict[str, float]]:
    """What the function says of each network; of batches the NLL and, for classes, the accuracy."""
    if callable(evaluate):
        return [dict(evaluate(module)) for module in modules]
    if likelihood is None:
        raise InvalidArgument(
            "Batches can only be measured by the model's likelihood, and it has none", got="evaluate=batches",
            remedy="Give br.bayesianize a likelihood, or evaluate= a function of the network.",
        )  # fmt: skip
    batches = list(evaluate)
    if not batches:
        raise InvalidArgument("There are no batches to measure the networks on", got="an empty iterable")
    return [_measured(module, batches, likelihood) for module in modules]


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

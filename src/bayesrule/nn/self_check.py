"""The end of a conversion: are the outputs really random, in every mode?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bayesrule.errors import BayesruleError
from bayesrule.nn.bayesian_module import BayesianModule
from bayesrule.nn.layer import BayesianLayer

SMALL = 1 << 20
"""Weights up to this many entries are drawn twice for the check."""


class ConversionError(BayesruleError, RuntimeError):
    """A converted network does not behave as one."""


def check_random(bnn: BayesianModule, example: Any = None) -> None:
    """Every drawn weight differs between passes; given an example, so do the outputs in train, eval and no_grad."""
    with _rng_untouched():
        for layer in bnn.modules():
            if isinstance(layer, BayesianLayer):
                _check_layer(layer)
        if example is not None:
            _check_outputs(bnn, example if isinstance(example, tuple) else (example,))


def _check_layer(layer: BayesianLayer) -> None:
    for name, full in layer.qualified.items():
        small = layer._home(name)().mean.numel() <= SMALL
        if name in layer._parameters or (small and torch.equal(getattr(layer, name), getattr(layer, name))):
            raise ConversionError(f"{full} is not random after conversion")


def _check_outputs(bnn: BayesianModule, inputs: tuple[Any, ...]) -> None:
    training = bnn.training
    try:
        for mode in (True, False):
            for quiet in (False, True):
                bnn.train(mode)
                with torch.no_grad() if quiet else nullcontext():
                    first, second = (_tensors(bnn(*inputs)) for _ in range(2))
                if all(torch.equal(a, b) for a, b in zip(first, second, strict=True)):
                    where = ("train" if mode else "eval") + (" under no_grad" if quiet else "")
                    raise ConversionError(
                        f"The outputs of the converted network are not random in {where}",
                        remedy="Some module reads raw weights; convert other layers, or report this network.",
                    )
    finally:
        bnn.train(training)


def _tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]


@contextmanager
def _rng_untouched() -> Iterator[None]:
    with torch.random.fork_rng():
        yield

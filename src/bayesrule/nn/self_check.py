"""The end of a conversion: are the outputs really random, in every mode?"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from bayesrule.errors import BayesruleError
from bayesrule.nn.bayesian_module import BayesianModule
from bayesrule.nn.layer import BayesianLayer
from bayesrule.nn.untouched import untouched

SMALL = 1 << 20
"""Weights up to this many entries are drawn for the check."""
ATTEMPTS = 20
"""Draws that are compared with the first before it is called constant: a single half-precision number may repeat."""


class ConversionError(BayesruleError, RuntimeError):
    """A converted network does not behave as one."""


def check_random(bnn: BayesianModule, example: Any = None) -> None:
    """Every drawn weight differs between passes; with an example, so do the outputs in train, eval and no_grad."""
    with untouched(bnn):
        for layer in bnn.modules():
            if isinstance(layer, BayesianLayer):
                _check_layer(layer)
        if example is not None:
            _check_outputs(bnn, example if isinstance(example, tuple) else (example,))


def _check_layer(layer: BayesianLayer) -> None:
    for name, full in layer.qualified.items():
        home = layer._home(name)
        if name in layer._parameters or (home.mean.numel() <= SMALL and _constant(layer, name)):
            raise ConversionError(
                f"{full} is not random after conversion", got=f"{home.posterior.family} in {home.mean.dtype}",
                remedy="Use an init_std that this precision can tell from zero.",
            )  # fmt: skip


def _constant(layer: BayesianLayer, name: str) -> bool:
    first = getattr(layer, name)
    return all(torch.equal(first, getattr(layer, name)) for _ in range(ATTEMPTS))


def _check_outputs(bnn: BayesianModule, inputs: tuple[Any, ...]) -> None:
    for mode in (True, False):
        for quiet in (False, True):
            bnn.train(mode)
            with torch.no_grad() if quiet else nullcontext():
                first, second = (_floats(bnn(*inputs)) for _ in range(2))
            if first and all(torch.equal(a, b) for a, b in zip(first, second, strict=True)):
                where = ("train" if mode else "eval") + (" under no_grad" if quiet else "")
                raise ConversionError(
                    f"The outputs of the converted network are not random in {where}",
                    remedy="Some module reads raw weights; convert other layers, or report this network.",
                )


def _floats(output: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]

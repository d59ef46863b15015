"""KLs of which values and gradients are found together, and all of a model as one node."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bayesrule.cuda_graphs import DIVERGENCE, total_beside
from bayesrule.errors import InvalidArgument
from bayesrule.kernels.plain_gradients import to_be_differentiated

Parameters = tuple[Tensor, ...]
Terms = tuple[tuple[Tensor, float], ...]
"""Of each parameter a tensor and a number, as which the KL's gradient is kept."""
ValueAndTerms = tuple[float | Tensor, Terms]
Slopes = Callable[[Tensor, Parameters], tuple[Tensor | None, ...]]
"""Gives the same from the KL's own gradient and the parameters, by plain operations that can be differentiated."""


class LinkedKL(NamedTuple):
    """A KL and how its gradient reaches its parameters.

    Attributes:
        value: A number on a CPU; elsewhere a tensor, for which nobody has to wait.
        inputs: The link of a tap, which has been told the rest; or the parameters themselves.
        terms: What the KL adds to the gradients of these parameters, times its own gradient.
        differentiable: Gives the same where it is to be differentiated in its turn.
    """

    value: float | Tensor
    inputs: Parameters
    terms: Terms = ()
    differentiable: Slopes | None = None


def sum_linked(kls: Sequence[LinkedKL]) -> Tensor:
    """The sum of KLs on one device and in one precision, as one node."""
    return _Total.apply(kls, *(tensor for kl in kls for tensor in kl.inputs))


_version = attrgetter("_version")


def versions_of(parameters: Sequence[Tensor]) -> list[int]:
    """What `check_unchanged` compares."""
    try:
        return list(map(_version, parameters))
    except RuntimeError:  # a model that was made in inference mode, whose tensors have none, and no gradients
        return []


def check_unchanged(parameters: Sequence[Tensor], versions: list[int]) -> None:
    """Refuse to find the gradient of values that are gone."""
    if versions_of(parameters) != versions:
        raise changed_in_place()


def changed_in_place() -> InvalidArgument:
    """What to say of it."""
    return InvalidArgument(
        "A parameter was changed in place between a forward pass and its backward pass",
        remedy="Call the optimizer's step after backward().",
    )


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kls: Sequence[LinkedKL], *inputs: Tensor) -> Tensor:
        ctx.kls, ctx.versions = kls, versions_of(inputs)
        values: list[Any] = [kl.value for kl in kls]
        if isinstance(values[0], Tensor):
            return total_beside(DIVERGENCE, values)
        return torch.tensor(math.fsum(values), dtype=inputs[0].dtype, device=inputs[0].device)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        check_unchanged([tensor for kl in ctx.kls for tensor in kl.inputs], ctx.versions)
        if to_be_differentiated(gradient):
            found = (
                [gradient] if kl.differentiable is None else kl.differentiable(gradient, kl.inputs) for kl in ctx.kls
            )
            return None, *(slope for slopes in found for slope in slopes)
        terms = [term for kl in ctx.kls for term in kl.terms]
        scaled = iter(_scaled(terms, gradient.item()) if terms else ())
        return None, *(next(scaled) if kl.terms else gradient for kl in ctx.kls for _ in kl.inputs)


def _scaled(terms: list[tuple[Tensor, float]], by: float) -> Sequence[Tensor]:
    return torch._foreach_mul([tensor for tensor, _ in terms], [number * by for _, number in terms])

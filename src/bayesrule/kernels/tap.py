"""One gradient for parameters that a layer and a KL share: the KL's part is added into the layer's, in place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from bayesrule.cuda_graphs import DIVERGENCE, Moment, made_beside, this_moment, total_beside
from bayesrule.errors import InvalidArgument
from bayesrule.kernels.sums import add_multiples, cast_with_squares

Slopes = Callable[[Tensor, tuple[Tensor, ...]], tuple[Tensor | None, ...]]


@dataclass
class KLSlopes:
    """What a KL adds to the gradients of its parameters, times its own gradient; nothing before it is computed.

    Attributes:
        terms: For each parameter a tensor and a number, as which the KL's gradient is kept.
        differentiable: Gives the same from the KL's own gradient and the parameters, by plain operations.
        squares: Numbers whose sum is that of the mean's squares, where the layer's cast found them.
        forget: Told when the node is run backwards, after which no KL needs to find it.
        shared: Whether the mean's gradient from the layer may be somebody else's too, and must not be written over.
    """

    terms: tuple[tuple[Tensor, float], ...] | None = None
    differentiable: Slopes | None = None
    squares: Tensor | None = None
    forget: Callable[[KLSlopes], None] | None = None
    shared: bool = False


@dataclass(frozen=True)
class Tapped:
    """What a tap gives.

    Attributes:
        tensors: The parameters for a layer, the first in the precision that it asked for.
        link: A number whose gradient is that of the KL: zero on a CPU, elsewhere one that nobody reads.
        slopes: Where the KL leaves what it adds to the parameters' gradients.
        since: When they were given, in a graph that is being recorded: a KL need not wait for what came after.
        parameters: The parameters themselves.
    """

    tensors: tuple[Tensor, ...]
    link: Tensor
    slopes: KLSlopes
    since: Moment | None
    parameters: tuple[Tensor, ...]

    @property
    def values(self) -> tuple[Tensor, ...]:
        """The parameters' own values, without gradients."""
        return tuple(parameter.detach() for parameter in self.parameters)


@dataclass
class ParameterTap:
    """Keeps, from a layer's forward pass to the KL of the same step, the node through which both reach the parameters.

    A KL's gradient in a mean is the mean times a number. Two gradients of a weight's size would have to be made and
    added; through one node, the number meets the layer's gradient there. Nothing is kept for the node's own gradient
    but the parameters, so it may be run any number of times, and the layer and the KL may be differentiated apart.
    """

    _kept: tuple[Tapped, list[tuple[int, int]]] | None = field(default=None, repr=False)

    def take(self, parameters: tuple[Tensor, ...], dtype: torch.dtype | None = None, *, kl: bool = False) -> Tapped:
        """The parameters behind the node.

        A layer must be one that gives them gradients of its own making, not shared with other tensors.

        Args:
            parameters: All leaves, the mean first.
            dtype: In which precision a layer wants the mean; whichever there is where none is given.
            kl: Whether a KL asks, which has a node for itself or with a layer.
        """
        kept, self._kept = self._kept, None
        states = [(parameter._version, parameter.data_ptr()) for parameter in parameters]
        if kept is not None and kept[1] == states and _same(kept[0].parameters, parameters):
            # Another tensor may share a parameter's memory, and other memory be put under a parameter.
            fits = dtype in (None, kept[0].tensors[0].dtype)
            if fits and not (kl and kept[0].slopes.terms is not None):
                return kept[0]
        slopes = KLSlopes(forget=self._forget)
        *tensors, link = _Tap.apply(slopes, parameters[0].dtype if dtype is None else dtype, *parameters)
        tapped = Tapped(tuple(tensors), link, slopes, this_moment(), parameters)
        self._kept = tapped, states
        return tapped

    def _forget(self, slopes: KLSlopes) -> None:
        """A KL that has no use for the node must not keep the graph of a pass alive until the next one."""
        if self._kept is not None and self._kept[0].slopes is slopes:
            self._kept = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and files of a model begin without a pass."""
        return ParameterTap, ()


def _same(some: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


@dataclass(frozen=True)
class StoredParameters:
    """A posterior's parameters as they are kept, the mean first (a weight's fan-out × fan-in), and their tap."""

    parameters: tuple[Tensor, ...]
    tap: ParameterTap

    def take(self, dtype: torch.dtype | None = None, *, kl: bool = False) -> Tapped | None:
        """As `ParameterTap.take`; None where no gradient is asked for, of all of them."""
        wanted = all(parameter.requires_grad and parameter.is_leaf for parameter in self.parameters)
        return self.tap.take(self.parameters, dtype, kl=kl) if wanted and torch.is_grad_enabled() else None


def layer_tensors(
    mean: Tensor, stored: StoredParameters | None, others: tuple[Tensor, ...], dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """A layer's weight, fan-out × fan-in, and its other parameters, so that a KL can share their gradients."""
    tapped = None if stored is None else stored.take(dtype)
    return (mean.mT.to(dtype), *others) if tapped is None else tapped.tensors


@dataclass(frozen=True)
class LinkedKL:
    """A KL whose gradient reaches its parameters through a tap.

    Attributes:
        value: A number on a CPU; elsewhere a tensor, for which nobody has to wait.
        link: Of the tap.
    """

    value: float | Tensor
    link: Tensor


def linked(
    tapped: Tapped, value: float | Tensor, terms: tuple[tuple[Tensor, float], ...], differentiable: Slopes
) -> LinkedKL:
    """A KL of this value, of which the tap is told what it adds to the parameters' gradients, as in `KLSlopes`."""
    tapped.slopes.terms, tapped.slopes.differentiable = terms, differentiable
    if isinstance(value, Tensor):
        made_beside(DIVERGENCE, value)
    return LinkedKL(value, tapped.link)


def sum_linked(kls: Sequence[LinkedKL]) -> Tensor:
    """The sum of KLs on one device and in one precision, as one node."""
    return _LinkedSum.apply([kl.value for kl in kls], *(kl.link for kl in kls))


class _LinkedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: list[Any], *links: Tensor) -> Tensor:
        ctx.count = len(links)
        if isinstance(values[0], Tensor):
            return total_beside(DIVERGENCE, values)
        return links[0].new_full((), math.fsum(values))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(ctx.count * [gradient])


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slopes: KLSlopes, dtype: torch.dtype, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.slopes, ctx.parameters = slopes, parameters
        ctx.versions = [parameter._version for parameter in parameters]
        mean, *others = (parameter.detach() for parameter in parameters)
        weight, slopes.squares = cast_with_squares(mean, dtype)
        return weight, *others, _zero(mean.dtype).detach() if mean.device.type == "cpu" else mean.new_empty(())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        *of_tensors, of_kl = gradients
        if ctx.slopes.forget is not None:
            ctx.slopes.forget(ctx.slopes)
        found = of_tensors if of_kl is None else _joined(ctx, of_tensors, of_kl)
        dtypes = (parameter.dtype for parameter in ctx.parameters)
        return (
            None,
            None,
            *(None if each is None else each.to(dtype) for each, dtype in zip(found, dtypes, strict=True)),
        )


@lru_cache(maxsize=8)
def _zero(dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.zeros((), dtype=dtype, device="cpu")


def _joined(ctx: Any, gradients: list[Tensor | None], of_kl: Tensor) -> list[Tensor]:
    if [parameter._version for parameter in ctx.parameters] != ctx.versions:
        raise InvalidArgument(
            "A parameter was changed in place between a forward pass and its backward pass",
            remedy="Call the optimizer's step after backward().",
        )
    if torch.is_grad_enabled():
        slopes = ctx.slopes.differentiable(of_kl, ctx.parameters)
        return [slope if each is None else each + slope for each, slope in zip(gradients, slopes, strict=True)]
    return add_multiples(gradients, ctx.slopes.terms, of_kl, in_place=not ctx.slopes.shared)

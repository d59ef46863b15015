"""One gradient for parameters that a layer and a KL share: the KL's part is added into the layer's, in place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from threading import get_ident
from typing import Any

import torch
from torch import Tensor

from bayesrule.cuda_graphs import DIVERGENCE, Moment, beside, made_beside, this_moment
from bayesrule.kernels.left_slope import LeftSlope
from bayesrule.kernels.linked_kl import (
    LinkedKL,
    Parameters,
    Slopes,
    Terms,
    ValueAndTerms,
    check_unchanged,
    versions_of,
)
from bayesrule.kernels.plain_gradients import to_be_differentiated
from bayesrule.kernels.sums import add_multiples, cast_with_squares

FEWEST_ENTRIES = 1 << 17
"""Of a mean on a CPU, above which a pass over it costs more than a node."""


@dataclass
class KLSlopes:
    """What a KL adds to the gradients of its parameters, times its own gradient; nothing before it is computed.

    Attributes:
        terms: As in `LinkedKL`.
        differentiable: Likewise.
        squares: Numbers whose sum is that of the mean's squares, where the layer's cast found them.
        forget: Told when the node is run backwards, after which no KL needs to find it.
        shared: Whether the mean's gradient from the layer may be somebody else's too, and must not be written over.
    """

    terms: Terms | None = None
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

    _kept: tuple[Tapped, tuple[int, list[tuple[int, int]]]] | None = field(default=None, repr=False)
    left: LeftSlope = field(default_factory=LeftSlope, repr=False)

    def take(self, parameters: tuple[Tensor, ...], dtype: torch.dtype | None = None, *, kl: bool = False) -> Tapped:
        """The parameters behind the node.

        A layer must be one that gives them gradients of its own making, not shared with other tensors.

        Args:
            parameters: All leaves, the mean first.
            dtype: In which precision a layer wants the mean; whichever there is where none is given.
            kl: Whether a KL asks, which has a node for itself or with a layer.
        """
        kept, self._kept = self._kept, None
        state = get_ident(), [(parameter._version, parameter.data_ptr()) for parameter in parameters]
        if kept is not None and kept[1] == state and _same(kept[0].parameters, parameters):
            # Another tensor may share a parameter's memory, and other memory be put under a parameter.
            fits = dtype in (None, kept[0].tensors[0].dtype)
            if fits and not (kl and kept[0].slopes.terms is not None):
                return kept[0]
        slopes = KLSlopes(forget=self._forget)
        *tensors, link = _Tap.apply(slopes, parameters[0].dtype if dtype is None else dtype, *parameters)
        tapped = Tapped(tuple(tensors), link, slopes, this_moment(), parameters)
        self._kept = tapped, state
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

    @property
    def few(self) -> bool:
        """Whether gradients of a layer and a KL are better added than brought together: of few entries, on a CPU."""
        mean = self.parameters[0]
        return mean.is_cpu and mean.numel() < FEWEST_ENTRIES

    def take(self, dtype: torch.dtype | None = None, *, kl: bool = False) -> Tapped | None:
        """As `ParameterTap.take`; None where no gradient is asked for, of all of them, and where they are few."""
        if self.few or not torch.is_grad_enabled():
            return None
        wanted = all(parameter.requires_grad and parameter.is_leaf for parameter in self.parameters)
        return self.tap.take(self.parameters, dtype, kl=kl) if wanted else None

    def for_layer(self, dtype: torch.dtype | None = None) -> tuple[Tensor, ...]:
        """The parameters, the mean in the precision that a layer asks for, so that a KL can share their gradients."""
        tapped = self.take(dtype)
        if tapped is not None:
            return tapped.tensors
        mean, *others = self.parameters
        return (mean if dtype is None else mean.to(dtype)), *others


def layer_tensors(
    mean: Tensor, stored: StoredParameters | None, others: tuple[Tensor, ...], dtype: torch.dtype
) -> tuple[Tensor, ...]:
    """A layer's weight, fan-out × fan-in, and its other parameters, from where they are stored if that is known."""
    return (mean.mT.to(dtype), *others) if stored is None else stored.for_layer(dtype)


def linked(
    stored: StoredParameters, found: Callable[[Parameters, Tensor | None], ValueAndTerms], differentiable: Slopes
) -> LinkedKL | None:
    """A KL whose gradient meets a layer's in the tap, or has a node of its own where parameters are few.

    Args:
        stored: The parameters.
        found: Gives the KL's value, and what it adds to the gradients, from these and from numbers whose sum is that of
            the mean's squares, where they are known.
        differentiable: As in `LinkedKL`.
    """
    if stored.few:
        with torch.no_grad():
            value, terms = found(stored.parameters, None)
        return LinkedKL(value, stored.parameters, terms, differentiable)
    tapped = stored.take(kl=True)
    if tapped is None:
        return None
    with beside(DIVERGENCE, tapped.since) as done:
        value, terms = found(tapped.values, tapped.slopes.squares)
    done()
    tapped.slopes.terms, tapped.slopes.differentiable = terms, differentiable
    if isinstance(value, Tensor):
        made_beside(DIVERGENCE, value)
    return LinkedKL(value, (tapped.link,))


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, slopes: KLSlopes, dtype: torch.dtype, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.slopes, ctx.parameters = slopes, parameters
        ctx.versions = versions_of(parameters)
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
    check_unchanged(ctx.parameters, ctx.versions)
    if to_be_differentiated(of_kl, *gradients):
        slopes = ctx.slopes.differentiable(of_kl, ctx.parameters)
        return [slope if each is None else each + slope for each, slope in zip(gradients, slopes, strict=True)]
    return add_multiples(gradients, ctx.slopes.terms, of_kl, in_place=not ctx.slopes.shared)

"""One gradient for a mean that a layer and a KL share: the KL's part is added into the layer's, in place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument


class MeanTap:
    """Keeps, from a layer's forward pass to the KL of the same step, the node through which both reach the mean.

    A KL's gradient in the mean is the mean times a number. Two gradients of a weight's size would have to be made and
    added; through one node, the number meets the layer's gradient there. Nothing is kept for the node's own gradient
    but the mean, so it may be run any number of times, and the layer and the KL may be differentiated apart.
    """

    def __init__(self) -> None:
        self._kept: tuple[Tensor, Tensor, Tensor, tuple[int, int]] | None = None

    def take(self, mean: Tensor, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor]:
        """The mean for a layer, and a zero whose gradient is the factor of the mean in the mean's gradient.

        The layer must be one that gives the mean a gradient of its own making, not one shared with other tensors.

        Args:
            mean: The parameter.
            dtype: In which precision the layer wants it; whichever there is where none is given.
        """
        kept, self._kept = self._kept, None
        state = mean._version, mean.data_ptr()
        # Another tensor may share the mean's memory, and other memory be put under the mean.
        if kept is not None and kept[2] is mean and kept[3] == state and dtype in (None, kept[0].dtype):
            return kept[:2]
        tapped, zero = _Tap.apply(mean, mean.dtype if dtype is None else dtype)
        self._kept = tapped, zero, mean, state
        return tapped, zero

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and files of a model begin without a pass."""
        return MeanTap, ()


@dataclass(frozen=True)
class StoredMean:
    """A mean as it is kept, fan-out × fan-in, and its tap."""

    parameter: Tensor
    tap: MeanTap

    def take(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor] | None:
        """As `MeanTap.take`; None where no gradient of the parameter is asked for."""
        parameter = self.parameter
        tapped = torch.is_grad_enabled() and parameter.requires_grad and parameter.is_leaf
        return self.tap.take(parameter, dtype) if tapped else None


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.mean, ctx.version = mean, mean._version
        return mean.detach().to(dtype), mean.new_zeros(())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, factor: Tensor | None) -> tuple[Tensor | None, None]:
        return _joined(ctx, gradient, factor), None


def _joined(ctx: Any, gradient: Tensor | None, factor: Tensor | None) -> Tensor | None:
    mean = ctx.mean
    if factor is None:
        return gradient if gradient is None else gradient.to(mean.dtype)
    if mean._version != ctx.version:
        raise InvalidArgument(
            "A mean was changed in place between a forward pass and its backward pass",
            remedy="Call the optimizer's step after backward().",
        )
    if gradient is None:
        return mean * factor
    if torch.is_grad_enabled() or gradient.dtype != mean.dtype:
        return torch.addcmul(gradient, mean, factor)
    if gradient.device.type == "cpu":
        return gradient.add_(mean, alpha=factor.item())
    return gradient.addcmul_(mean, factor)

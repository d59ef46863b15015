"""Gradients as a graph of plain operations, where they are to be differentiated in their turn."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def gradients_again(
    inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None], slopes: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """The gradients of the inputs that want one.

    Args:
        inputs: Of a node.
        outputs: What plain operations made of them.
        slopes: The gradients of the outputs, None where nobody used one.
    """
    wanted = [tensor for tensor in inputs if tensor is not None and tensor.requires_grad]
    told = [each for each in zip(outputs, slopes, strict=True) if each[1] is not None]
    values, gradients = zip(*told, strict=True)
    found = iter(torch.autograd.grad(values, wanted, gradients, create_graph=True, allow_unused=True))
    return tuple(next(found) if tensor is not None and tensor.requires_grad else None for tensor in inputs)

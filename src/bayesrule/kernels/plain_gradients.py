"""Gradients as a graph of plain operations, where they are to be differentiated in their turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from bayesrule.forward_mode import in_forward_mode


def to_be_differentiated(*gradients: Tensor | None) -> bool:
    """Whether a node's gradient takes plain operations: for a further derivative, or of a batch of gradients."""
    if torch.is_grad_enabled() or in_forward_mode() or torch._C._functorch.peek_interpreter_stack() is not None:
        return True
    return any(each is not None and torch._C._functorch.is_legacy_batchedtensor(each) for each in gradients)


def gradients_again(
    inputs: Sequence[Tensor | None], reference: Callable[..., Any], slopes: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """The gradients of the inputs that want one.

    Args:
        inputs: Of a node.
        reference: The node in plain operations: its outputs, or its only one.
        slopes: The gradients of the outputs, None where nobody used one.
    """
    further = torch.is_grad_enabled()
    with torch.enable_grad():  # by names of their own: an input may have come about by another one
        named = [each.view_as(each) if each is not None and each.requires_grad else each for each in inputs]
        outputs = reference(*named)
    wanted = [each for each in named if each is not None and each.requires_grad]
    told = [each for each in zip([outputs] if isinstance(outputs, Tensor) else outputs, slopes, strict=True)
            if each[1] is not None]  # fmt: skip
    values, gradients = zip(*told, strict=True)
    found = iter(torch.autograd.grad(values, wanted, gradients, create_graph=further, allow_unused=True))
    return tuple(next(found) if each is not None and each.requires_grad else None for each in named)

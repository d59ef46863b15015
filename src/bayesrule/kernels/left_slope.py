"""A KL's part of a mean's gradient, left to the layer whose node will run later in the same backward pass.

A KL's gradient in a mean is the mean times a number. To give it to autograd takes a tensor of the weight's size, and a
sum with the layer's; the layer adds it to its own in place. Autograd runs nodes in the opposite order of their making,
so a KL that was asked for after a forward pass comes first; where it does not, it gives its gradient itself.
"""

from __future__ import annotations

from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor


class LeftSlope:
    """Knows the last node of a layer that will take what KLs of the same mean leave; the node keeps it."""

    def __init__(self) -> None:
        self._last: tuple[ReferenceType[Any], ReferenceType[Tensor]] | None = None

    def expect(self, node: Any, mean: Tensor) -> None:
        """A layer's node is made, and will take what is left for this mean when it runs, if it ever does."""
        node.left, node.ran_in = (-1, 0.0), -1
        if any(node.needs_input_grad):
            self._last = ref(node), ref(mean)

    def leave(self, mean: Tensor, multiple: float) -> bool:
        """Leave so many times the mean in the backward pass under way; whether somebody will take it."""
        if self._last is None:
            return False
        node, expected = self._last[0](), self._last[1]()
        task = torch._C._current_graph_task_id()
        if node is None or expected is not mean or node.ran_in == task:
            return False
        if not torch._C._will_engine_execute_node(node):
            return False
        before, left = node.left
        node.left = task, multiple + (left if before == task else 0.0)
        return True


def taken(node: Any) -> float:
    """What was left in this backward pass for the node that now runs."""
    task = torch._C._current_graph_task_id()
    (left_in, left), node.left, node.ran_in = node.left, (-1, 0.0), task
    return left if left_in == task else 0.0

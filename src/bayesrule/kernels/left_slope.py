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
    """Between a layer's node and the KLs of the same parameters: what the latter leave, in which backward pass."""

    def __init__(self) -> None:
        self._node: ReferenceType[Any] | None = None
        self._parameter: ReferenceType[Tensor] | None = None
        self._ran_in, self._left_in, self._left = -1, -1, 0.0

    def expect(self, node: Any, mean: Tensor) -> None:
        """A layer's node is made, and will take what is left for this mean when it runs."""
        self._node, self._parameter, self._ran_in = ref(node), ref(mean), -1

    def leave(self, mean: Tensor, multiple: float) -> bool:
        """Leave so many times the mean, and say whether somebody will take it; the node runs after who asks."""
        node = None if self._node is None or self._parameter is None else self._node()
        task = torch._C._current_graph_task_id()
        if node is None or self._parameter() is not mean or self._ran_in == task:  # type: ignore[misc]
            return False
        if not torch._C._will_engine_execute_node(node):
            return False
        self._left = multiple + (self._left if self._left_in == task else 0.0)
        self._left_in = task
        return True

    def take(self, node: Any) -> float:
        """What was left in this pass for the node that now runs."""
        task = torch._C._current_graph_task_id()
        if self._node is None or self._node() is not node:
            return 0.0
        self._ran_in = task
        left, self._left = (self._left if self._left_in == task else 0.0), 0.0
        return left

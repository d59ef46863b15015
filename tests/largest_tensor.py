"""How much memory a computation takes, by a count and not by a clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LargestTensor(TorchDispatchMode):
    """Records the entries of the largest tensor that any operation inside it makes, forward or backward.

    A view of an argument, or an argument changed in place, is not made.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        given = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor) and _storage(leaf) not in given]
        self.entries = max(self.entries, *(leaf.numel() for leaf in made), 0)
        return result


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()

"""The work in a step, counted rather than timed: operations, bytes and random numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import FlopCounterMode

from bayesrule.bench.memory import held_bytes

aten = torch.ops.aten
RANDOM = ("normal", "randn", "uniform", "rand", "random", "randint", "bernoulli")
"""Beginnings of the names of operators that draw."""


def _recurrent(x: Any, *weights: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Products of a fused recurrent layer, of which torch has no count: every step of every sequence by every weight.

    Args:
        x: The shape of the input, with sequences and steps first.
        weights: Among other arguments the shapes of the weights, one by one or in a list.
        out_shape: That of the output.
        **kwargs: Further arguments of the operator.
    """
    listed = weights[0] if weights and isinstance(weights[0], list) else weights[:2]
    return 2 * math.prod(x[:2]) * sum(math.prod(shape) for shape in listed if len(shape) == 2)


def _recurrent_backward(x: Any, *weights: Any, out_shape: Any = None, **kwargs: Any) -> int:
    """Gradients of the input and of the weights: twice as many."""
    return 2 * _recurrent(x, *weights)


RECURRENT: dict[Any, Any] = {
    aten.mkldnn_rnn_layer: _recurrent,
    aten.mkldnn_rnn_layer_backward: _recurrent_backward,
    aten._cudnn_rnn: _recurrent,
    aten._cudnn_rnn_backward: _recurrent_backward,
}


@dataclass(frozen=True)
class Work:
    """What a step does, whatever the machine.

    Attributes:
        flops: Floating-point operations of matrix products and convolutions, forward and backward.
        moved_bytes: What all operators together read and wrote. Code that fuses operators moves less.
        least_bytes: What no implementation of the step can avoid: everything that is held is read, and all but the
            batch written.
        drawn: Random numbers.
    """

    flops: int
    moved_bytes: int
    least_bytes: int
    drawn: int


def work_of(step: Callable[[], object], state: Iterable[Tensor], batch: Iterable[Tensor]) -> Work:
    """Counted while the step runs once, operator by operator.

    An operator of the library's own counts as one: its inputs and outputs, and no operations inside.

    Args:
        step: What is counted.
        state: The tensors that it changes: parameters, and what the optimizer remembers of them.
        batch: The tensors that it only reads.
    """
    flops, traffic = FlopCounterMode(display=False, custom_mapping=RECURRENT), _Traffic()
    with flops, traffic:
        step()
    least = 2 * held_bytes(state) + held_bytes(batch)
    return Work(flops.get_total_flops(), traffic.moved, least, traffic.drawn)


class _Traffic(TorchDispatchMode):
    """Adds up the bytes of every operator's inputs and outputs, and the random numbers among these."""

    def __init__(self) -> None:
        super().__init__()
        self.moved = self.drawn = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if not _makes_a_view(func):
            made = _tensors(outputs)
            self.moved += sum(map(_bytes, _tensors((args, kwargs)) + made))
            if func.overloadpacket.__name__.startswith(RANDOM):
                self.drawn += sum(tensor.numel() for tensor in made)
        return outputs


def _makes_a_view(func: Any) -> bool:
    """Whether the outputs are the inputs' memory, seen otherwise, and nothing is moved."""
    aliases = [value.alias_info for value in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, Tensor)]


def _bytes(tensor: Tensor) -> int:
    """An expanded tensor is no larger than its memory."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())

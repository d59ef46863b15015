"""States that stay in the same memory: what recorded work reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from bayesrule.optim.plain import PlainState
from bayesrule.optim.rule import State

COUNTS = ("steps", "estimates")
"""Fields of a state that count: numbers on the device in a buffer."""


def leaves(value: Any) -> Iterator[Tensor]:
    """The tensors in a state, in the order of its fields."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple):
        for each in value:
            yield from leaves(each)
    else:
        for name in _names(type(value)):  # type: ignore[arg-type]  # types are hashable
            yield from leaves(getattr(value, name))


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind)) if is_dataclass(kind) else ()


def buffered(state: Any) -> Any:
    """A copy whose tensors have their own memory, laid out as they were, and whose counts are numbers on the device."""
    return _rebuilt(
        state, Tensor.clone,
        lambda count, own: torch.as_tensor(count, dtype=torch.float64, device=next(leaves(own)).device),
    )  # fmt: skip


def counted(state: Any) -> Any:
    """The state with its counts as plain numbers, as a state that is not in a buffer has them."""
    return _rebuilt(state, lambda tensor: tensor, lambda count, own: int(count))


def _rebuilt(value: Any, tensor: Callable[[Tensor], Tensor], count: Callable[[Any, Any], Any]) -> Any:
    """A state with other tensors and counts; a count is also told whose it is."""
    if isinstance(value, Tensor):
        return tensor(value)
    if isinstance(value, tuple):
        return tuple(_rebuilt(each, tensor, count) for each in value)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    found = {each.name: _rebuilt(getattr(value, each.name), tensor, count) for each in fields(value)}
    if isinstance(value, State | PlainState):
        found |= {name: count(found[name], value) for name in COUNTS if name in found}
    return replace(value, **found)


def differences(old: Any, new: Any) -> Iterator[tuple[Tensor, Tensor | float]]:
    """Tensors of a buffer, each with what is to be written over it."""
    if isinstance(old, Tensor):
        if old is not new:
            yield old, new
    elif isinstance(old, tuple):
        for before, after in zip(old, new, strict=True):
            yield from differences(before, after)
    elif is_dataclass(old):
        for each in fields(old):
            yield from differences(getattr(old, each.name), getattr(new, each.name))


def copy_all(pairs: Iterable[tuple[Tensor, Tensor | float]]) -> None:
    """Write over the first of each pair, many at once where they are of one kind."""
    kinds: dict[tuple[torch.dtype, torch.dtype], tuple[list[Tensor], list[Tensor]]] = {}
    for old, new in pairs:
        if not isinstance(new, Tensor):
            old.fill_(new)
            continue
        into, out_of = kinds.setdefault((old.dtype, new.dtype), ([], []))
        into.append(old)
        out_of.append(new)
    for into, out_of in kinds.values():
        torch._foreach_copy_(into, out_of)

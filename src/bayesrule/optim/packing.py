"""States as plain containers of tensors and numbers, for `state_dict`, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch


def pack(value: Any) -> Any:
    """A frozen state as dictionaries and lists."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: pack(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [pack(each) for each in value]
    return value.clone() if isinstance(value, Tensor) else value


def unpack(template: Any, packed: Any) -> Any:
    """The state that `pack` was given, with the template's types, dtypes and devices; refused where it does not fit."""
    if is_dataclass(template) and not isinstance(template, type):
        names = [field.name for field in fields(template)]
        if not isinstance(packed, Mapping) or set(packed) != set(names):
            raise InvalidArgument(
                f"The state here consists of {', '.join(sorted(names))}",
                got=sorted(packed) if isinstance(packed, Mapping) else type(packed).__name__,
                remedy="Make the optimizer with the arguments it was saved with.",
            )
        return type(template)(**{name: unpack(getattr(template, name), packed[name]) for name in names})
    if isinstance(template, tuple):
        if len(template) != len(packed):
            raise ShapeMismatch(f"{len(template)} entries are kept here", got=len(packed))
        return tuple(unpack(each, saved) for each, saved in zip(template, packed, strict=True))
    if isinstance(template, Tensor):
        if template.shape != packed.shape:
            raise ShapeMismatch(
                f"A tensor of shape {tuple(template.shape)} is kept here", got=f"one of {tuple(packed.shape)}",
                remedy="Load it into an optimizer of the same network.",
            )  # fmt: skip
        return packed.detach().to(template).clone()
    return packed

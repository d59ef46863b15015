"""Positive tensors of a frozen value that are given by their logarithms, and computed when first asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

Value = TypeVar("Value")


class GivenByLogarithms:
    """Mixed into a frozen dataclass: fused code reads the logarithms and never needs the tensors themselves."""

    logarithms: Mapping[str, Tensor]
    _differentiable: bool

    @classmethod
    def of_logarithms(cls: type[Value], logarithms: Mapping[str, Tensor], **fields: Any) -> Value:
        """The value with these fields, those that have a logarithm instead being its exponential."""
        if torch.compiler.is_compiling():  # compilers drop what nobody reads by themselves
            return cls(**{name: tensor.exp() for name, tensor in logarithms.items()}, **fields)
        value = object.__new__(cls)
        kept = {**fields, "logarithms": logarithms, "_differentiable": torch.is_grad_enabled()}
        for name, field in kept.items():
            object.__setattr__(value, name, field)
        return value

    def log(self, name: str) -> Tensor:
        """The logarithm of a field."""
        given = self._given()
        return given[name] if name in given else getattr(self, name).log()

    def shape_of(self, name: str) -> torch.Size:
        """The shape of a field."""
        given = self._given()
        return (given[name] if name in given else getattr(self, name)).shape

    def _given(self) -> Mapping[str, Tensor]:
        found: Mapping[str, Tensor] = {} if torch.compiler.is_compiling() else self.__dict__.get("logarithms", {})
        return found

    def __getattr__(self, name: str) -> Tensor:
        """The exponential, kept for the next time, and as differentiable as the value was when it was made."""
        given = self.__dict__.get("logarithms", {})
        if name not in given:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}", name=name, obj=self)
        if torch.compiler.is_compiling():
            return given[name].exp()
        with torch.set_grad_enabled(self._differentiable):
            tensor: Tensor = given[name].exp()
        if torch._C._functorch.peek_interpreter_stack() is None:  # what a transformation makes ends with it
            object.__setattr__(self, name, tensor)
        return tensor

"""Where a network's numbers stop being finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from bayesrule.errors import BayesruleError


class TrainingDiverged(BayesruleError, ArithmeticError):  # noqa: N818, the base says it is an error
    """The loss is not finite."""


def first_broken(model: nn.Module, inputs: tuple[Any, ...]) -> str:
    """The parameter, or else the layer's output, that is not finite first."""
    for name, parameter in model.named_parameters():
        if not _finite(parameter):
            return f"parameter {name}"
    found: list[str] = []
    handles = [
        module.register_forward_hook(lambda _, __, output, name=name: _note(found, name, output))
        for name, module in model.named_modules()
        if not any(True for _ in module.children()) or name
    ]
    try:
        with torch.no_grad():
            model(*inputs)
    finally:
        for handle in handles:
            handle.remove()
    if found:
        return f"the output of layer {found[0]}"
    return "the loss itself" if all(_finite(leaf) for leaf in tree_leaves(inputs)) else "the inputs"


def _note(found: list[str], name: str, output: Any) -> None:
    if not found and not all(_finite(leaf) for leaf in tree_leaves(output)):
        found.append(name)


def _finite(value: Any) -> bool:
    return not (isinstance(value, Tensor) and value.is_floating_point()) or bool(torch.isfinite(value).all())

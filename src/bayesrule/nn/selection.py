"""Which layers become Bayesian, and what each of them gets."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, TypeVar

from torch import nn

from bayesrule.errors import InvalidArgument

Choice = TypeVar("Choice")
Selector: TypeAlias = str | type[nn.Module] | Callable[[str, nn.Module], bool]
"""A preset, a name pattern, a module type, or a predicate of (name, module)."""
PerLayer: TypeAlias = Choice | Mapping[Selector, Choice]
"""One thing for every layer, or one for each of several selectors."""

PRESETS = ("all", "last_layer", "attention")


def select(modules: Mapping[str, nn.Module], selectors: Selector | Iterable[Selector]) -> set[str]:
    """Names of the modules that any of the selectors takes.

    Args:
        modules: The modules that can be made Bayesian, by name, in the order they are registered.
        selectors: ``"all"``, ``"last_layer"`` (the last one registered), ``"attention"``, a shell pattern on the
            module's name, a module type, a predicate, or several of these.
    """
    if isinstance(selectors, str | type) or callable(selectors):
        selectors = [selectors]
    chosen: set[str] = set()
    for selector in selectors:
        matches = _matches(modules, selector)
        if not matches:
            raise InvalidArgument(
                f"No layer matches {selector!r}", got=f"layers {', '.join(map(repr, modules)) or '(none)'}",
                remedy=_suggest(selector, modules),
            )  # fmt: skip
        chosen.update(matches)
    return chosen


def choose(option: PerLayer[Choice], name: str, modules: Mapping[str, nn.Module]) -> Choice:
    """What one layer gets: the option itself, or the first entry of a mapping whose selector takes the layer."""
    if not isinstance(option, Mapping):
        return option
    for selector, value in option.items():
        if name in _matches(modules, selector):
            return value
    raise InvalidArgument(
        f"No entry for layer {name!r}", got=f"entries {list(option)}", remedy='Add one for "*", which takes the rest.'
    )


def check_selectors(option: object, modules: Mapping[str, nn.Module]) -> None:
    """Refuse a mapping with an entry that takes no layer at all: most likely a misspelt name."""
    if isinstance(option, Mapping):
        for selector in option:
            if selector != "*":
                select(modules, selector)


def _matches(modules: Mapping[str, nn.Module], selector: Selector) -> list[str]:
    if selector == "all":
        return list(modules)
    if selector == "last_layer":
        return list(modules)[-1:]
    if selector == "attention":
        return [name for name, module in modules.items() if isinstance(module, nn.MultiheadAttention)] + [
            name for name in modules if _inside_attention(name, modules)
        ]
    if isinstance(selector, str):
        return fnmatch.filter(modules, selector)
    if isinstance(selector, type):
        return [name for name, module in modules.items() if isinstance(module, selector)]
    return [name for name, module in modules.items() if selector(name, module)]


def _inside_attention(name: str, modules: Mapping[str, nn.Module]) -> bool:
    parent = name.rpartition(".")[0]
    return isinstance(modules.get(parent), nn.MultiheadAttention)


def _suggest(selector: Selector, modules: Mapping[str, nn.Module]) -> str:
    if isinstance(selector, str):
        near = difflib.get_close_matches(selector, [*modules, *PRESETS], n=1, cutoff=0.5) or difflib.get_close_matches(
            selector, modules, n=1, cutoff=0.0
        )
        if near:
            return f"Did you mean {near[0]!r}?"
    return "Give a preset, a shell pattern on layer names, a module type, or a predicate of (name, module)."

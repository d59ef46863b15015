"""Parameters as torch's param groups: those given, the rest, and those without a posterior."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

PLAIN_PREFIX = "likelihood."
"""Before the names of the likelihood's own parameters."""


def torch_groups(
    trained: Mapping[str, nn.Parameter],
    plain: set[str],
    plain_lr: float,
    given: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, int], list[dict[str, Any]]]:
    """The param groups of torch, and in which of them each parameter is: those given, the rest, and the plain ones."""
    names = {id(parameter): name for name, parameter in trained.items()}
    placed: dict[str, int] = {}
    groups: list[dict[str, Any]] = []

    def add(options: Mapping[str, Any], parameters: Iterable[Tensor]) -> None:
        own = [parameter for parameter in parameters if id(parameter) in names]
        if own:
            placed.update({names[id(parameter)]: len(groups) for parameter in own})
            groups.append({**options, "params": own})

    for group in given:
        chosen = group["params"]
        add(group, [chosen] if isinstance(chosen, Tensor) else list(chosen))
    rest = [(name, parameter) for name, parameter in trained.items() if name not in placed]
    without = {name for name, _ in rest if name in plain or name.startswith(PLAIN_PREFIX)}
    add({}, [parameter for name, parameter in rest if name not in without])
    add({"lr": plain_lr}, [parameter for name, parameter in rest if name in without])
    return placed, groups

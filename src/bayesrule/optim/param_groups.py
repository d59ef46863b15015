"""Parameters as torch's param groups: those given, the rest, and those without a posterior."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.data.names import nearest
from bayesrule.errors import InvalidArgument
from bayesrule.optim.arguments import check_step_size
from bayesrule.optim.group import Group

PLAIN_PREFIX = "likelihood."
"""Before the names of the likelihood's own parameters."""

EXAMPLE = 'Write param_groups=[{"params": net[0].parameters(), "lr": 1e-3}].'


def checked_groups(
    model: nn.Module, likelihood: nn.Module | None, given: object, options: Sequence[str]
) -> list[dict[str, Any]]:
    """The groups given, with lists of parameters for whatever names them; refused where they make no sense.

    Args:
        model: The network, whose parameters and modules ``"params"`` may hold, or name.
        likelihood: The same of the likelihood's, by names that start with `PLAIN_PREFIX`.
        given: The user's.
        options: What a group may choose.
    """
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise InvalidArgument("param_groups is a list of dicts", got=_kind(given), remedy=EXAMPLE)
    homes = {"": model} if likelihood is None else {"": model, PLAIN_PREFIX: likelihood}
    known: dict[str, Any] = {}
    for prefix, home in homes.items():
        for named in (home.named_modules(remove_duplicate=False), home.named_parameters(remove_duplicate=False)):
            known |= {f"{prefix}{name}": each for name, each in named if name}
    return [_checked_group(group, known, options) for group in given]


def _checked_group(group: object, known: Mapping[str, Any], options: Sequence[str]) -> dict[str, Any]:
    if not isinstance(group, Mapping) or "params" not in group:
        got = list(group) if isinstance(group, Mapping) else _kind(group)
        raise InvalidArgument('Each of param_groups is a dict that has "params"', got=got, remedy=EXAMPLE)
    unknown = [str(name) for name in group if name not in ("params", *options)]
    if unknown:
        raise InvalidArgument(
            "A param group has no such option", got=", ".join(unknown),
            remedy=f"{''.join(nearest(name, options) for name in unknown)}It may have {', '.join(options)}.",
        )  # fmt: skip
    if "lr" in group:
        check_step_size("lr of a param group", group["lr"])
    parameters = {id(each): each for each in _parameters(group["params"], known)}
    foreign = parameters.keys() - {id(each) for each in known.values()}
    if foreign:
        raise InvalidArgument(
            "A param group has parameters that are not the network's",
            got=f"shapes {[tuple(parameters[each].shape) for each in foreign][:4]}",
            remedy="Take parameters, or their names, from the network that the optimizer is made with.",
        )
    chosen = {name: tuple(value) if isinstance(value, list) else value for name, value in group.items()}
    return {**chosen, "params": list(parameters.values())}


def _parameters(chosen: object, known: Mapping[str, Any]) -> Iterator[Tensor]:
    """Those of a parameter, a module, a name of either, or any collection of them."""
    if isinstance(chosen, Tensor):
        yield chosen
    elif isinstance(chosen, nn.Module):
        yield from _parameters(chosen.parameters(), known)
    elif isinstance(chosen, str):
        if chosen not in known:
            raise InvalidArgument(
                "A param group names modules or parameters of the network", got=repr(chosen),
                remedy=f"{nearest(chosen, known)}See dict(net.named_parameters()).",
            )  # fmt: skip
        yield from _parameters(known[chosen], known)
    elif isinstance(chosen, Iterable):
        items = list(chosen)
        named = isinstance(chosen, tuple) and [type(each) for each in items] == [str, nn.Parameter]
        for each in items[1:] if named else items:
            yield from _parameters(each, known)
    else:
        raise InvalidArgument(
            '"params" of a param group are parameters, modules, or names of them', got=_kind(chosen), remedy=EXAMPLE
        )


def check_placement(groups: Iterable[Group], placed: Mapping[str, int]) -> None:
    """Refuse to part what shares a posterior."""
    for group in groups:
        names = [part.name for part in group.parts]
        if len({placed[name] for name in names}) > 1:
            raise InvalidArgument(
                f"Parameters that share the posterior {group.name!r} must be in one param group", got=names,
                remedy="Put all of them into one, or none of them.",
            )  # fmt: skip


def _kind(value: object) -> str:
    return f"an object of type {type(value).__name__}"


def torch_groups(
    trained: Mapping[str, nn.Parameter],
    plain: set[str],
    plain_lr: float,
    given: Iterable[Mapping[str, Any]],
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
        add(group, group["params"])
    rest = [(name, parameter) for name, parameter in trained.items() if name not in placed]
    without = {name for name, _ in rest if name in plain or name.startswith(PLAIN_PREFIX)}
    add({}, [parameter for name, parameter in rest if name not in without])
    add({"lr": plain_lr}, [parameter for name, parameter in rest if name in without])
    return placed, groups


def alike(names: Iterable[str], placement: Mapping[str, int], trained: Mapping[str, Tensor]) -> list[list[str]]:
    """Groups of one rule and step size on one device."""
    found: dict[tuple[int, torch.device], list[str]] = {}
    for name in names:
        found.setdefault((placement[name], trained[name].device), []).append(name)
    return list(found.values())

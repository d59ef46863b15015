"""Whether a saved state fits an optimizer: asked before anything of it is loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.optim.packing import unpack
from bayesrule.random import keyed_generator

KEPT = frozenset(("steps", "skipped_steps", "groups", "plain", "masters", "prior", "generators", "seed", "mirror",
                  "likelihood"))  # fmt: skip
"""What every saved state has."""
AS_SAVED = "Make the optimizer with the network and arguments it was saved with. Nothing was loaded."


def check_saved(
    state: Any, kind: str, groups: Collection[str], plain: Collection[str], sizes: Mapping[str, float]
) -> None:
    """Refuse the state of another optimizer, of another network, or of another ``n_data`` or ``kl_weight``."""
    saved = state.get("posterior") if isinstance(state, Mapping) else None
    whole = isinstance(saved, Mapping) and set(saved) >= KEPT
    if saved is not None and whole and saved.get("optimizer", kind) != kind:
        raise InvalidArgument(
            f"This is the state of another optimizer, and not of a {kind}", got=f"a state of {saved['optimizer']}",
            remedy=f"Make a {saved['optimizer']} with the network and arguments it was saved with. Nothing was loaded.",
        )  # fmt: skip
    if saved is None or not whole or set(saved["groups"]) != set(groups) or set(saved["plain"]) != set(plain):
        shown = sorted(saved["groups"]) if saved is not None and whole else type(state).__name__
        raise InvalidArgument(f"This is not the state of a {kind} of this network", got=shown, remedy=AS_SAVED)
    for name, own in sizes.items():
        if saved.get(name, own) != own:
            raise InvalidArgument(
                f"The state was saved with {name}={saved[name]}, and this {kind} has {name}={own}", got=saved[name],
                remedy=f"Make the optimizer with {name}={saved[name]}; or, if the change is meant, say so by "
                f'state["posterior"]["{name}"] = {own}. Nothing was loaded.',
            )  # fmt: skip


def shapes_of(parameters: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """What `check_shapes` compares."""
    return {name: tuple(parameter.shape) for name, parameter in parameters.items()}


def check_shapes(saved: Mapping[str, Any], kind: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse the state of a network with other parameters: a joint posterior has but their number."""
    there = saved.get("shapes", shapes)
    if set(there) != set(shapes):
        other = sorted(set(there) ^ set(shapes))
        raise InvalidArgument(
            f"This is not the state of a {kind} of this network: parameters have other names", got=other,
            remedy=AS_SAVED,
        )  # fmt: skip
    for name, shape in shapes.items():
        if tuple(there[name]) != shape:
            raise ShapeMismatch(
                f"The saved state of {name!r} does not fit that of this {kind}: the parameter has shape {shape} here",
                got=f"one of {tuple(there[name])}", remedy=AS_SAVED,
            )  # fmt: skip


def fitted(kind: str, templates: Mapping[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
    """What was saved, by the name of a group or parameter, in the templates' form; refused where it does not fit."""
    found = {}
    for name, template in templates.items():
        if name not in saved:
            raise InvalidArgument(
                f"The saved state has no {name!r} in float32, which a {kind} keeps for a parameter in half precision",
                got=sorted(saved),
                remedy="Make the optimizer with a network of the same precision as the saved one. Nothing was loaded.",
            )
        try:
            found[name] = unpack(template, saved[name])
        except InvalidArgument as error:
            raise type(error)(
                f"The saved state of {name!r} does not fit that of this {kind}: {error.what}", got=error.got,
                remedy=AS_SAVED,
            ) from None  # fmt: skip
    return found


def check_options(state: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], names: Collection[str]) -> None:
    """Refuse param groups of other sizes, or without an option that a rule needs."""
    saved = state["param_groups"]
    sizes, own = ([len(group["params"]) for group in each] for each in (saved, groups))
    if sizes != own:
        raise InvalidArgument(
            "The saved state has other param groups", got=f"{sizes} parameters, where here are {own}",
            remedy="Make the optimizer with the same param_groups and plain. Nothing was loaded.",
        )  # fmt: skip
    missing = sorted({name for group in saved for name in names if name not in group})
    if missing:
        raise InvalidArgument(
            "The saved state is of another algorithm: its param groups lack options", got=missing,
            remedy="Make the optimizer of the class it was saved from. Nothing was loaded.",
        )  # fmt: skip


def check_tensors(likelihood: nn.Module, saved: Mapping[str, Any]) -> None:
    """Refuse the tensors of another likelihood."""
    have, given = ({name: tuple(value.shape) for name, value in each.items() if isinstance(value, Tensor)}
                   for each in (likelihood.state_dict(), saved))  # fmt: skip
    if have != given:
        raise InvalidArgument(
            f"The saved state has another likelihood than {type(likelihood).__name__}", got=given,
            remedy="Make the optimizer with the likelihood it was saved with. Nothing was loaded.",
        )  # fmt: skip


def own_generator(device: torch.device, seed: int) -> torch.Generator:
    """An optimizer's stream of noise on a device."""
    return keyed_generator(device, seed, "optimizer", str(device.type))


def put_into(
    generators: dict[torch.device, torch.Generator], saved: Mapping[torch.device, torch.Generator], seed: int
) -> None:
    """Streams go on where the saved ones are, those of devices that were not saved at their start.

    Generators stay the same objects: the noise of data-parallel processes has been given one.
    """
    for device in {*generators, *saved}:
        state = (saved[device] if device in saved else own_generator(device, seed)).get_state()
        generators.setdefault(device, torch.Generator(device)).set_state(state)


def restored_generators(saved: Mapping[str, Tensor], seed: int) -> dict[torch.device, torch.Generator]:
    """Streams that go on where they were."""
    generators = {torch.device(name): own_generator(torch.device(name), seed) for name in saved}
    for name, state in saved.items():
        generators[torch.device(name)].set_state(state.cpu())
    return generators

"""How a masked network can be cut, or why it cannot."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.prune.layers import Obstacle, uncuttable
from bayesrule.prune.plan import Cut, cuts
from bayesrule.prune.tracing import WEIGHTS_REMEDY, shapes_of, trace
from bayesrule.prune.walk import Walk

REMEDY = f'{WEIGHTS_REMEDY} structure="auto" cuts the layers that can be cut, and only masks the others.'


@torch.no_grad()
def plan_cuts(
    masked: nn.Module,
    masks: Mapping[str, Tensor],
    example: tuple[Any, ...] | None,
    *,
    strict: bool,
    select_inputs: bool,
) -> tuple[tuple[Cut, ...], dict[str, str]]:
    """The cuts, and why layers were left whole, by their names.

    Args:
        masked: The network, dropped weights being zero; it stays as it is.
        masks: Of its weights.
        example: Inputs, for the shapes in between.
        strict: Refuse where a layer must be left whole.
        select_inputs: Let layers pick the inputs of the network that they still read.
    """
    net = copy.deepcopy(masked).cpu().eval()
    layers = {name.rpartition(".")[0] for name in masks}
    if not any(True for _ in net.children()):
        whole = uncuttable(net, None, set(masks))
        if whole and strict:
            raise _refusal(net, whole)
        return (), _notes(whole)
    try:
        graph = trace(net)
    except Unsupported as error:
        if strict:
            raise
        return (), dict.fromkeys(layers, f"{error.what}: {error.got}")
    whole = uncuttable(net, graph, set(masks))
    refused = {layer: obstacle for layer, obstacle in whole.items() if layer in layers}
    if refused and strict:
        raise _refusal(net, refused)
    inputs = None if example is None else tree_map_only(Tensor, Tensor.cpu, example)
    walk = Walk(net, graph, shapes_of(net, graph, inputs), whole)
    if walk.constant_outputs:
        empty = [name for name, mask in masks.items() if not bool(mask.any())]
        raise InvalidArgument(
            "The outputs would no longer depend on the inputs",
            got=f"no weight left in {', '.join(empty) or 'some path'}",
            remedy="Raise the threshold, lower the target sparsity, or train longer.",
        )  # fmt: skip
    held = _held_fast(walk, layers)
    if held and strict:
        raise _refusal(net, held)
    return cuts(walk, select_inputs=select_inputs), _notes({**held, **refused})


def _notes(obstacles: Mapping[str, Obstacle]) -> dict[str, str]:
    return {layer: obstacle.note(layer) for layer, obstacle in obstacles.items()}


def _held_fast(walk: Walk, layers: set[str]) -> dict[str, Obstacle]:
    """Layers with dropped units that an operation needs nevertheless."""
    found: dict[str, Obstacle] = {}
    for pin in walk.pins:
        if not pin.refused or not bool(pin.dropped.any()):
            continue
        for layer, space in walk.writers.items():
            if layer in layers and walk.spaces.find(space) == walk.spaces.find(pin.space):
                why = f"{int(pin.dropped.sum())} of its units have been dropped, but {pin.where} needs every one"
                found.setdefault(layer, Obstacle(layer, why))
    return found


def _refusal(net: nn.Module, obstacles: Mapping[str, Obstacle]) -> Unsupported:
    """All that stands in the way; what does so for the same reason is named together."""
    alike: dict[str, list[str]] = {}
    for obstacle in dict.fromkeys(obstacles.values()):
        kind = type(net.get_submodule(obstacle.module)).__name__
        alike.setdefault(obstacle.why, []).append(f"{obstacle.module!r} ({kind})" if obstacle.module else f"({kind})")
    reasons = [(", ".join(names), why) for why, names in alike.items()]
    count = sum(map(len, alike.values()))
    if count == 1:
        ((name, why),) = reasons
        what = f"{'The network' if '' in obstacles else 'Layer'} {name} cannot be pruned structurally: {why}"
    else:
        what = f"{count} layers cannot be pruned structurally. " + "; ".join(f"{n}: {why}" for n, why in reasons)
    return Unsupported(what, remedy=REMEDY)

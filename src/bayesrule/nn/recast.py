"""The posteriors of a converted network replaced by others around the same means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from bayesrule.nn.conversion import Conversion, ConvertedParameter, Recipe, describe
from bayesrule.nn.home import Home
from bayesrule.nn.layer import BayesianLayer
from bayesrule.posteriors import Family, Point, Variational


def layers_of_groups(module: nn.Module, recipe: Recipe) -> dict[str, str]:
    """By group name, the layer that gave the group its family: of a tied weight, the first of its owners."""
    layers: dict[str, str] = {}
    for name, family in recipe.posterior.items():
        layer = module.get_submodule(name)
        if isinstance(layer, BayesianLayer) and not isinstance(family, Point):
            for local in layer.homes:
                layers.setdefault(layer._home(local).name, name)
    return layers


def settle(home: Home, family: Family, parameters: Mapping[str, Tensor]) -> None:
    """Give a home a posterior of another family. Changes the home: callers own it.

    Args:
        home: The home; its mean stays.
        family: Of the new posterior.
        parameters: The family's unconstrained tensors besides the mean.
    """
    before = home.posterior
    learns = any(parameter.requires_grad for key, parameter in before.named_parameters() if key != "mean")
    # `init` draws a start that is not used: from a generator of its own, so that torch's stay as they are.
    generator = torch.Generator(home.mean.device)
    after = Variational(family, home.mean, before.parts, generator=generator).train(before.training)
    after.mean = before.mean
    for key, value in parameters.items():
        parameter = after.get_parameter(key)
        parameter.data.copy_(value)
        parameter.requires_grad_(learns)
    home.posterior = after


def recast_table(
    conversion: Conversion, homes: Mapping[str, Home], families: Mapping[str, Family], notes: Mapping[str, str]
) -> Conversion:
    """The table once homes have been settled anew.

    Args:
        conversion: The table before.
        homes: The homes, by group.
        families: The new families, by layer.
        notes: What to say of the groups that changed.
    """
    groups = {part.name: group for group, home in homes.items() for part in home.posterior.parts}

    def changed(row: ConvertedParameter) -> ConvertedParameter:
        group = groups.get(row.name)
        if group is None or group not in notes:
            return row
        posterior = homes[group].posterior
        if group != row.name:
            return replace(row, posterior=describe(posterior.family))
        numbers = sum(parameter.numel() for parameter in homes[group].parameters())
        note = "; ".join(filter(None, (row.note, notes[group])))
        return replace(row, posterior=describe(posterior.family), numbers=numbers, note=note)

    recipe = replace(conversion.recipe, posterior={**conversion.recipe.posterior, **families})
    return Conversion(tuple(changed(row) for row in conversion), recipe)

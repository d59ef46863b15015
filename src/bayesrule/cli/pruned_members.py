"""Members of a model of a table made smaller: units cut, what is left keeps its posterior."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from bayesrule.nn import BayesianModule, mean_module
from bayesrule.nn.conversion import ConvertedParameter, describe
from bayesrule.nn.home import Home
from bayesrule.nn.saving import module_config, rebuild
from bayesrule.prune import Cut, Pruning, marginal_parameters, prune


@torch.no_grad()
def pruned_member(
    member: BayesianModule, threshold: float | None, target_sparsity: float | None
) -> tuple[BayesianModule, Pruning]:
    """A perceptron without the units that pruning cuts, whose network at the mean is the pruned one.

    The posterior of what is left is the marginal of the one before, around the means of the pruned network: a weight
    that was dropped alone has the mean zero and keeps its noise. Inputs all stay, since the table has them.
    """
    small = prune(member, threshold, target_sparsity=target_sparsity, select_inputs=False)
    pruning = cast(Pruning, small.pruning)
    cuts, plain = {cut.layer: cut for cut in pruning.cuts}, mean_module(member)
    with torch.random.fork_rng():  # a conversion starts from noise that is overwritten here
        lean = rebuild(module_config(member), small)
    homes = lean.homes()
    for name, home in member.homes().items():
        layer, _, local = name.rpartition(".")
        _fill(home, homes[name], small.get_parameter(name), _kept(plain, cuts.get(layer), layer, local))
    rows = tuple(_resized(row, homes[row.name], small.get_parameter(row.name)) for row in lean.conversion)
    lean.conversion = replace(lean.conversion, rows=rows)
    return lean, pruning


def _resized(row: ConvertedParameter, home: Home, parameter: Tensor) -> ConvertedParameter:
    numbers = sum(each.numel() for each in home.parameters())
    return replace(row, shape=tuple(parameter.shape), numbers=numbers, posterior=describe(home.posterior.family))


def _kept(plain: nn.Module, cut: Cut | None, layer: str, local: str) -> tuple[Tensor, Tensor]:
    """Rows and columns that are left of a weight; of a bias, the columns."""
    linear = cast(nn.Linear, plain.get_submodule(layer))
    rows = torch.arange(linear.in_features if local == "weight" else 1)
    columns = torch.arange(linear.out_features)
    if cut is not None and cut.inputs is not None and local == "weight":
        rows = torch.tensor(cut.inputs)
    return rows, columns if cut is None or cut.outputs is None else torch.tensor(cut.outputs)


def _fill(before: Home, after: Home, mean: Tensor, kept: tuple[Tensor, Tensor]) -> None:
    own = dict(after.posterior.named_parameters())
    own.pop("mean").copy_(mean)
    tensors = marginal_parameters(before(), dict(before.posterior.named_parameters()), own, *kept)
    for name, tensor in tensors.items():
        own[name].copy_(tensor)

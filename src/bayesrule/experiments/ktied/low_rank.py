"""Standard deviations replaced by low-rank ones after training, and what that does   [Section 2.4]."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from bayesrule.compress import compress, spectra
from bayesrule.experiments.context import Context
from bayesrule.experiments.ktied import measuring, settings
from bayesrule.experiments.ktied.measuring import Cell
from bayesrule.experiments.ktied.training import train_recipe
from bayesrule.experiments.rows import Row
from bayesrule.nn import BayesianModule

LAYERS = {
    "mnist": {"dense_1": "1.weight", "dense_2": "3.weight", "dense_3": "5.weight"},
    "cifar-100": {"dense_1": "7.weight", "dense_2": "9.weight"},
    "imdb": {"kernel": "lstm.weight_ih_l0", "recurrent_kernel": "lstm.weight_hh_l0"},
    "cifar-10": {
        "stem": "0.weight",
        **{
            f"block_{block}_{part}": f"{block}.{part}.weight"
            for block in range(1, 5)
            for part in ("projection", "conv1", "conv2")
        },
        "dense": "9.weight",
    },
}
"""The weights that are analysed: dense ones, and in the ResNet convolutions too   [App. D.3]."""


def rank_of(method: str) -> int | None:
    """``"2-tied"``: 2; mean-field has none."""
    rank = method.partition("-")[0]
    return int(rank) if rank.isdigit() else None


def compressed(bnn: BayesianModule, dataset: str, method: str) -> BayesianModule:
    """The model with the standard deviations of its analysed weights at the method's rank; others stay free."""
    rank = rank_of(method)
    if rank is None:
        return bnn
    owners = bnn.layers()
    return compress(bnn, {owners[weight]: rank for weight in LAYERS[dataset].values()})


def measured(context: Context, dataset: str, run: str, method: str, seed: int) -> dict[str, float]:
    """The scores of one trained model at one rank, how far its spectra are concentrated, and what the floor touched."""

    def compute() -> dict[str, float]:
        recipe = settings.recipe(context, dataset, run, "mean-field", seed)
        lean = compressed(train_recipe(context, recipe).bnn, dataset, method)
        found = {name: spectrum for name, spectrum in spectra(lean).items() if name in LAYERS[dataset].values()}
        return {
            **measuring.scored(context, lean, recipe),
            "floored_entries": 0 if rank_of(method) is None else lean.compression.touched,
            "parameters": sum(parameter.numel() for parameter in lean.parameters() if parameter.requires_grad),
            "std_top1_min": min(float(spectrum.stds[0]) for spectrum in found.values()),
            "mean_top1_max": max(float(spectrum.means[0]) for spectrum in found.values()),
        }

    return context.cell(dataset, run, method, seed, compute=compute)


def rows(
    run: str,
    metrics: Callable[[str], Sequence[str]],
    context: Context,
    more: Callable[[Cell, Cell], Cell] | None = None,
) -> list[Row]:
    """Every rank on every data set; ``more`` adds numbers to a cell, given mean-field's of the same seed."""
    found = []
    for dataset in context.datasets:
        seeds = settings.seeds(context, dataset, run)
        for method in context.methods:
            cells: list[Cell] = [measured(context, dataset, run, method, seed) for seed in seeds]
            if more is not None:
                free = [measured(context, dataset, run, "mean-field", seed) for seed in seeds]
                cells = [{**cell, **more(cell, other)} for cell, other in zip(cells, free, strict=True)]
            found += measuring.score_rows(cells, metrics(dataset), dataset=dataset, method=method)
    return found


@torch.no_grad()
def std_matrices(bnn: BayesianModule, dataset: str, layer: str, ranks: Sequence[int]) -> dict[str, Tensor]:
    """The fan-in × fan-out standard deviations of a layer, and those at each rank, on the CPU."""
    weight = LAYERS[dataset][layer]
    owner = bnn.layers()[weight]
    models = {"mean-field": bnn} | {f"{rank}-tied": compress(bnn, {owner: rank}) for rank in ranks}
    return {name: model.posteriors()[weight].stddev.detach().double().cpu() for name, model in models.items()}

"""How close low-rank standard deviations come to the free ones, as numbers and as heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bayesrule.experiments.context import Context
from bayesrule.experiments.ktied import settings
from bayesrule.experiments.ktied.drawing import draw_heat_maps
from bayesrule.experiments.ktied.low_rank import rank_of, std_matrices
from bayesrule.experiments.ktied.training import train_recipe
from bayesrule.experiments.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

RANKS = ("1-tied", "2-tied", "3-tied")


def rows(context: Context, run: str, layers: Sequence[str]) -> list[Row]:
    """``‖S − S_k‖ / ‖S‖`` for each layer; mean and standard error over seeds."""
    found = []
    for dataset in context.datasets:
        seeds = settings.seeds(context, dataset, run)
        cells = [_errors(context, dataset, run, layers, seed) for seed in seeds]
        found += [
            Row.over([cell[f"{layer} {method}"] for cell in cells], dataset=dataset, method=method, variant="",
                     metric=f"{layer}_relative_error")
            for method in context.methods
            for layer in layers
        ]  # fmt: skip
    return found


def _errors(context: Context, dataset: str, run: str, layers: Sequence[str], seed: int) -> dict[str, float]:
    def compute() -> dict[str, float]:
        bnn = train_recipe(context, settings.recipe(context, dataset, run, "mean-field", seed)).bnn
        values: dict[str, float] = {}
        for layer in layers:
            matrices = std_matrices(bnn, dataset, layer, _ranks(context))
            free = matrices["mean-field"]
            values |= {
                f"{layer} {method}": float((matrices[method] - free).norm() / free.norm()) for method in context.methods
            }
        return values

    return context.cell(dataset, run, seed, "errors", *context.methods, compute=compute)


def figure(context: Context, dataset: str, run: str, layers: Sequence[str]) -> Figure:
    """Heat maps of the first seed's matrices."""
    seed = settings.seeds(context, dataset, run)[0]
    bnn = train_recipe(context, settings.recipe(context, dataset, run, "mean-field", seed)).bnn
    return draw_heat_maps({layer: std_matrices(bnn, dataset, layer, _ranks(context)) for layer in layers})


def _ranks(context: Context) -> list[int]:
    return [rank for method in context.methods if (rank := rank_of(method)) is not None]

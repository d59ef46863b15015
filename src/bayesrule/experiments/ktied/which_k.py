"""Beyond the paper: which k does a network need? Trained and truncated ranks, and two automatic choices by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bayesrule.compress import compress
from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment
from bayesrule.experiments.ktied import measuring, settings
from bayesrule.experiments.ktied.claims import claim, increasing, within_fraction
from bayesrule.experiments.ktied.drawing import panels, plain_ticks
from bayesrule.experiments.ktied.evaluation import evaluate
from bayesrule.experiments.ktied.low_rank import LAYERS
from bayesrule.experiments.ktied.measuring import SCORES
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.rank_choice import ranks_by_loss
from bayesrule.experiments.ktied.recipe import Recipe
from bayesrule.experiments.ktied.settings import presets
from bayesrule.experiments.ktied.training import train_recipe
from bayesrule.experiments.rows import Row
from bayesrule.nn import BayesianModule

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETS, RUN = ("mnist",), "converged"
CANDIDATES = (1, 2, 3, 4, 8, 16, 32)
TRAINED = tuple(f"{rank}-tied" for rank in CANDIDATES if rank < 10)  # the last layer has ten columns
TRUNCATED = tuple(f"rank-{rank}" for rank in CANDIDATES)
BY_VARIANCE = {"explained-99%": 0.99, "explained-99.9%": 0.999}
BY_ELBO, TOLERANCE = "by-elbo", 0.05
"""The −ELBO may rise by this part of itself."""
METHODS = ("mean-field", *TRAINED, *TRUNCATED, *BY_VARIANCE, BY_ELBO)
SMALL = ("mean-field", "1-tied", "2-tied", "rank-1", "rank-2", "explained-99%", BY_ELBO)
DRAWN = {"negative_elbo": "−ELBO per test example", "nll": "NLL of the ensemble"}
MARKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "trained": ("o-C0", TRAINED), "truncated": ("s-C1", TRUNCATED), "99 % of the variance": ("^C2", ("explained-99%",)),
    "99.9 % of the variance": ("vC2", ("explained-99.9%",)), "chosen by the ELBO": ("*C3", (BY_ELBO,)),
    "mean-field": ("Dk", ("mean-field",)),
}  # fmt: skip
"""How the methods are drawn."""
METRICS = (*SCORES, "parameters", "floored_entries", *(f"rank_{layer}" for layer in LAYERS["mnist"]))


def run(context: Context) -> list[Row]:
    """Scores, parameters and the rank of each layer; one seed."""
    return [
        row
        for dataset in context.datasets
        for method in context.methods
        for row in measuring.score_rows([_measured(context, dataset, method)], METRICS, dataset=dataset, method=method)
    ]


def _measured(context: Context, dataset: str, method: str) -> dict[str, float]:
    posterior = method if method in TRAINED else "mean-field"
    recipe = settings.recipe(context, dataset, RUN, posterior, settings.seeds(context, dataset, RUN)[0])

    def compute() -> dict[str, float]:
        bnn = _lean(context, train_recipe(context, recipe).bnn, recipe, dataset, method)
        table = bnn.compression
        ranks = {layer: _rank(bnn, weight) for layer, weight in LAYERS[dataset].items()}
        return {
            **measuring.scored(context, bnn, recipe),
            "parameters": sum(parameter.numel() for parameter in bnn.parameters() if parameter.requires_grad),
            "floored_entries": 0 if table is None else table.touched,
            **{f"rank_{layer}": rank for layer, rank in ranks.items()},
        }

    return context.cell(dataset, method, recipe.seed, compute=compute)


def _lean(context: Context, bnn: BayesianModule, recipe: Recipe, dataset: str, method: str) -> BayesianModule:
    """The model of a method, from the trained one."""
    if method in TRUNCATED:
        return _truncated(bnn, dataset, int(method.partition("-")[2]))
    if method in BY_VARIANCE:
        return compress(bnn, explained=BY_VARIANCE[method])
    if method != BY_ELBO:
        return bnn
    loss = partial(_validation_loss, context, recipe)
    allowed = TOLERANCE * abs(loss(bnn))
    ranks = ranks_by_loss(bnn, loss, _candidates(bnn, dataset), allowed)
    return compress(bnn, ranks) if ranks else bnn


def _candidates(bnn: BayesianModule, dataset: str) -> dict[str, list[int]]:
    """The ranks below the full one of each analysed layer."""
    posteriors, owners = bnn.posteriors(), bnn.layers()
    return {
        owners[name]: [rank for rank in CANDIDATES if rank < min(posteriors[name].mean.shape)]
        for name in LAYERS[dataset].values()
    }


def _truncated(bnn: BayesianModule, dataset: str, rank: int) -> BayesianModule:
    """All layers that can have more than this rank at it; a layer too small for it stays free."""
    return compress(bnn, {layer: rank for layer, ranks in _candidates(bnn, dataset).items() if rank in ranks})


def _validation_loss(context: Context, recipe: Recipe, bnn: BayesianModule) -> float:
    data = measuring.test_data(context, recipe)
    scores = evaluate(bnn, recipe, data, valid=True, draws=context.preset.settings["draws"])
    return scores["negative_elbo"].value


def _rank(bnn: BayesianModule, weight: str) -> int:
    """Columns of a weight's factors; of free standard deviations the most that the matrix can have."""
    parameters = dict(bnn.homes()[weight].posterior.named_parameters())
    factors = [value for name, value in parameters.items() if "fan_in" in name]
    return factors[0].shape[-1] if factors else min(bnn.posteriors()[weight].mean.shape)


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """−ELBO and NLL against the numbers that the standard deviations take; above, the rank of all layers."""
    values = {(row.method, row.metric): row.value for row in rows}
    if ("mean-field", "parameters") not in values:
        return {}
    means = values["mean-field", "parameters"] / 2
    spent = {
        method: (values[method, "parameters"] - means) / 1e3 for method, metric in values if metric == "parameters"
    }
    figure, axes = panels(2, width=4.6, height=3.8)
    for axis, (metric, label) in zip(axes, DRAWN.items(), strict=True):
        for kind, (style, methods) in MARKS.items():
            present = [method for method in methods if method in spent]
            axis.plot(
                [spent[method] for method in present], [values[method, metric] for method in present], style, label=kind
            )
        axis.set(xlabel="thousand numbers for standard deviations", ylabel=label, xscale="log", yscale="log")
        plain_ticks(axis.xaxis)
        plain_ticks(axis.yaxis)
        ranks = {int(method.partition("-")[2]): spent[method] for method in TRUNCATED if method in spent}
        above = axis.secondary_xaxis("top")
        above.set_xticks(list(ranks.values()), [str(rank) for rank in ranks])
        above.set_xticks([], minor=True)
        above.set_xlabel("rank")
    axes[1].legend(frameon=False, fontsize="small")
    return {"trade-off": figure}


WHICH_K = Experiment(
    id="ktied/which-k",
    title="Which k does a network need?",
    presets=presets(
        SETS, METHODS, [RUN], smoke_methods=SMALL,
        quick_methods=("mean-field", "2-tied", *TRUNCATED, *BY_VARIANCE, BY_ELBO),
    ),
    methods=METHODS,
    datasets=lambda data: SETS,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(
        claim(
            "ranks chosen by the ELBO keep mean-field's −ELBO to a tenth",
            [("mnist", method, "negative_elbo") for method in ("mean-field", BY_ELBO)], within_fraction(0.1),
        ),
        claim(
            "and take fewer parameters",
            [("mnist", method, "parameters") for method in (BY_ELBO, "mean-field")], increasing,
        ),
        claim(
            "a trained rank 2 has a lower −ELBO than a truncated one",
            [("mnist", method, "negative_elbo") for method in ("2-tied", "rank-2")], increasing,
        ),
    ),
    published=published("which_k"),
    devices=("cuda", "cpu"),
    figures=figures,
)  # fmt: skip

"""Table 3: auto-encoders of binarized MNIST whose encoder predicts a diagonal, matrix normal or full covariance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Verdict
from bayesrule.experiments.mn.claims import by_method, judged, told
from bayesrule.experiments.mn.settings import AUTO_ENCODER, QUICK_AUTO_ENCODER, TRIAL_AUTO_ENCODER, presets
from bayesrule.experiments.mn.vae_images import draw_images
from bayesrule.experiments.mn.vae_training import VAERecipe, elbo, images, log_likelihood, train_vae
from bayesrule.experiments.rows import Row
from bayesrule.report.numbers import plural

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DATASET = "binarized-mnist"
METHODS = ("diag", "mn", "mv")
SIZES = (40, 9)
MEASURED = ("log_likelihood", "elbo", "importance_samples", "epochs", "best_epoch", "seconds")
METRICS = tuple(f"{metric}_z{size}" for size in SIZES for metric in MEASURED)
CLOSE = 1.5


def recipe(context: Context, method: str, size: int) -> VAERecipe:
    """All seeds of a family and a size of the code: they train side by side."""
    settings = context.preset.settings
    return VAERecipe(
        method, size, settings["epochs"], settings["anneal_epochs"], settings["patience"],
        seeds=tuple(context.seed + number for number in range(settings["seeds"])),
        synthetic=settings.get("synthetic", 0), train=settings.get("train", 0),
    )  # fmt: skip


def run(context: Context) -> list[Row]:
    """Every family and both sizes of the code; each of these is a cell, with all its seeds."""
    variant = f"at most {plural(context.preset.settings['epochs'], 'epoch')}"
    return [
        Row.over(values, dataset=DATASET, method=method, variant=variant, metric=f"{metric}_z{size}")
        for method in context.methods
        for size in SIZES
        for metric, values in _measured(context, recipe(context, method, size)).items()
    ]


def _measured(context: Context, recipe: VAERecipe) -> dict[str, list[float]]:
    """By metric, a number for each seed."""
    settings = context.preset.settings

    def compute() -> dict[str, float]:
        found = train_vae(context, recipe)
        test = images(context.data, context.device, recipe.synthetic).test
        test = test[: settings["images"] or len(test)]
        count = len(recipe.seeds)
        values = {
            "log_likelihood": log_likelihood(found.bnn, test, settings["samples"], context.seed),
            "elbo": elbo(found.bnn, test, settings["elbo_draws"]),
            "importance_samples": [settings["samples"]] * count,
            "epochs": found.record["epochs"],
            "best_epoch": found.record["best_epoch"],
            "seconds": [found.record["seconds"]] * count,
        }
        return {f"{metric} {number}": value for metric in MEASURED for number, value in enumerate(values[metric])}

    cell = context.cell(DATASET, recipe.family, recipe.size, compute=compute)
    return {metric: [cell[f"{metric} {number}"] for number in range(len(recipe.seeds))] for metric in MEASURED}


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """Reconstructions and samples of every family's first seed, by size of the code."""
    found = {}
    for size in SIZES:
        models = {method: train_vae(context, recipe(context, method, size)).bnn for method in context.methods}
        test = images(context.data, context.device, context.preset.settings.get("synthetic", 0)).test
        found[f"table3_z{size}"] = draw_images(models, test, context.seed)
    return found


def _close(metric: str) -> Callable[[Sequence[Row]], Verdict]:
    def check(rows: Sequence[Row]) -> Verdict:
        found = [row for row in rows if row.metric == metric and row.paper is not None]
        if {row.method for row in found} != set(METHODS):
            return Verdict("not measured", f"needs {', '.join(METHODS)}")
        shortfalls = {row.method: (row.paper or 0.0) - row.value for row in found}
        detail = ", ".join(f"{told(row)} (paper {row.paper:g})" for row in found)
        return Verdict.of(max(shortfalls.values()) <= CLOSE, detail)

    return check


def _ordered(metric: str) -> Callable[[Sequence[Row]], Verdict]:
    def check(rows: Sequence[Row]) -> Verdict:
        found = by_method(rows, metric)
        if set(found) != set(METHODS):
            return Verdict("not measured", f"needs {', '.join(METHODS)}")
        steps = [judged(found[better], found[worse], 1, 0.0) for better, worse in (("mn", "diag"), ("mv", "mn"))]
        return Verdict.of(all(step.standing == "held" for step in steps), "; ".join(step.detail for step in steps))

    return check


TABLE3 = Experiment(
    id="mn/table3",
    title="Auto-encoders of binarized MNIST by the covariance that the encoder predicts",
    presets=presets(
        DATASET, METHODS, quick=QUICK_AUTO_ENCODER, paper=AUTO_ENCODER, smoke=TRIAL_AUTO_ENCODER
    ),
    methods=METHODS,
    datasets=lambda folder: (DATASET,),
    metrics=lambda dataset: METRICS,
    run=run,
    claims=tuple(
        claim
        for size in SIZES
        for claim in (
            Claim(
                f"|z| = {size}: log-likelihoods at most {CLOSE} nats below the paper's",
                _close(f"log_likelihood_z{size}"),
            ),
            Claim(f"|z| = {size}: log-likelihood of DIAG < MN < MV", _ordered(f"log_likelihood_z{size}")),
        )
    ),
    published=Path(__file__).with_name("table3.json"),
    devices=("cuda", "cpu"),
    figures=figures,
)  # fmt: skip

"""Beyond the paper: mean-field and 2-tied by local noise beside weight sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment
from bayesrule.experiments.ktied import convergence, measuring, settings
from bayesrule.experiments.ktied.claims import claim, increasing, times_first
from bayesrule.experiments.ktied.drawing import draw_curves
from bayesrule.experiments.ktied.measuring import SCORES
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.recipe import Recipe
from bayesrule.experiments.ktied.settings import presets
from bayesrule.experiments.ktied.training import epoch_seconds, train_recipe
from bayesrule.experiments.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SETS, RUN = ("mnist",), "converged"
METHODS = ("mean-field", "mean-field-local", "2-tied", "2-tied-local")
METRICS = (*SCORES, "snr_median_1000", "step_ms", "steps_to_target", "seconds_to_target", "target")


def recipe_of(context: Context, dataset: str, method: str) -> Recipe:
    """The converged run of a posterior, with local noise if the method says so; the first seed."""
    posterior = method.removesuffix("-local")
    seed = settings.seeds(context, dataset, RUN)[0]
    return settings.recipe(
        context, dataset, RUN, posterior, seed, estimator="weight" if posterior == method else "local"
    )


def run(context: Context) -> list[Row]:
    """Scores at the end, and the time to the −ELBO that all methods reach: steps needed × time of a step.

    Steps are timed apart from training, in turns, so that what else the machine did meanwhile does not count.
    """
    rows = []
    for dataset in context.datasets:
        times = _step_times(context, dataset)
        curves = _curves(context, dataset)
        target = max(min(curve.values()) for curve in curves.values())
        for method, curve in curves.items():
            steps = min(step for step, value in curve.items() if value <= target)
            cell = {
                **_scores(context, dataset, method), "step_ms": 1e3 * times[method], "steps_to_target": steps,
                "seconds_to_target": steps * times[method], "target": target,
            }  # fmt: skip
            rows += measuring.score_rows([cell], METRICS, dataset=dataset, method=method)
    return rows


def _scores(context: Context, dataset: str, method: str) -> dict[str, float]:
    recipe = recipe_of(context, dataset, method)

    def compute() -> dict[str, float]:
        return measuring.scored(context, train_recipe(context, recipe).bnn, recipe)

    ratios = convergence.measured(context, recipe)
    return context.cell(dataset, method, recipe.seed, compute=compute) | {"snr_median_1000": ratios["snr_median_1000"]}


def _curves(context: Context, dataset: str) -> dict[str, dict[float, float]]:
    return {
        method: convergence.curve(convergence.measured(context, recipe_of(context, dataset, method)))
        for method in context.methods
    }


def _step_times(context: Context, dataset: str) -> dict[str, float]:
    """Seconds of a step, as training takes it: medians over the epochs of short runs that take turns."""

    def compute() -> dict[str, float]:
        timing = context.preset.settings["timing"]
        found: dict[str, list[float]] = {method: [] for method in context.methods}
        for _ in range(timing["rounds"]):
            for method in context.methods:
                found[method] += epoch_seconds(context, recipe_of(context, dataset, method), timing["epochs"])
        return {method: median(seconds) for method, seconds in found.items()}

    return context.cell(dataset, "step times", *context.methods, compute=compute)


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """−ELBO by steps."""
    found = {
        dataset: {method: [curve] for method, curve in _curves(context, dataset).items()}
        for dataset in context.datasets
    }
    return {"curves": draw_curves(found, x="step", y="−ELBO per validation example", logarithmic=True)}


def _faster(posterior: str) -> list[tuple[str, str, str]]:
    return [("mnist", method, "seconds_to_target") for method in (f"{posterior}-local", posterior)]


LOCAL = Experiment(
    id="ktied/local",
    title="Local noise beside weight sampling, mean-field and 2-tied",
    presets=presets(SETS, METHODS, [RUN], parts=["timing"]),
    methods=METHODS,
    datasets=lambda data: SETS,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(
        claim("2-tied: local noise reaches the same −ELBO in less time", _faster("2-tied"), increasing),
        claim("mean-field: local noise reaches the same −ELBO in less time", _faster("mean-field"), increasing),
        claim(
            "local noise has at least mean-field's signal-to-noise ratio at step 1000",
            [("mnist", method, "snr_median_1000") for method in ("mean-field", "mean-field-local")], times_first(1.0),
        ),
    ),
    published=published("local"),
    devices=("cuda", "cpu"),
    figures=figures,
)  # fmt: skip

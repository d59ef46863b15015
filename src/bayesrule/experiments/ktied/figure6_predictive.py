"""Figure 6, left: models trained with k-tied posteriors beside mean-field."""

from __future__ import annotations

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment
from bayesrule.experiments.ktied import measuring, settings
from bayesrule.experiments.ktied.claims import claim, increasing, within
from bayesrule.experiments.ktied.counts import parameters
from bayesrule.experiments.ktied.measuring import DRAW_SPREAD, SCORES, SPREADS
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.settings import MODEL_OF, POSTERIORS, THREE, presets
from bayesrule.experiments.ktied.training import train_recipe
from bayesrule.experiments.rows import Row

RUN = "annealed"
METRICS = (*SCORES, "parameters", DRAW_SPREAD, *SPREADS)


def run(context: Context) -> list[Row]:
    """Scores over seeds; the parameters are those of the full network in every preset."""
    rows = []
    for dataset in context.datasets:
        for method in context.methods:
            numbers = {"parameters": float(parameters(MODEL_OF[dataset], method))}
            seeds = settings.seeds(context, dataset, RUN)
            cells = [measured(context, dataset, RUN, method, seed) | numbers for seed in seeds]
            rows += measuring.score_rows(cells, METRICS, dataset=dataset, method=method)
    return rows


def measured(context: Context, dataset: str, run: str, method: str, seed: int) -> dict[str, float]:
    """The test scores of one trained model."""

    def compute() -> dict[str, float]:
        recipe = settings.recipe(context, dataset, run, method, seed)
        return measuring.scored(context, train_recipe(context, recipe).bnn, recipe)

    return context.cell(dataset, run, method, seed, compute=compute)


def _claims(dataset: str) -> tuple[Claim, ...]:
    return (
        claim(
            f"{dataset}: 2- and 3-tied within {BOUNDS[dataset]:g} points of mean-field's accuracy",
            [(dataset, method, "accuracy") for method in ("mean-field", "2-tied", "3-tied")], within(BOUNDS[dataset]),
        ),
        claim(
            f"{dataset}: 3-tied takes fewer parameters than mean-field",
            [(dataset, method, "parameters") for method in ("3-tied", "mean-field")], increasing,
        ),
    )  # fmt: skip


BOUNDS = {"mnist": 0.3, "cifar-100": 1.0, "imdb": 1.5}
"""In points. The paper's own differences are up to 0.1, 0.4 and 1.3."""

FIGURE6_PREDICTIVE = Experiment(
    id="ktied/figure6-predictive",
    title="k-tied Normal, Figure 6 left: training with k-tied posteriors",
    presets=presets(THREE, POSTERIORS, [RUN]),
    methods=POSTERIORS,
    datasets=lambda data: THREE,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=tuple(stated for dataset in THREE for stated in _claims(dataset)),
    published=published("figure6_predictive"),
    devices=("cuda", "cpu"),
)

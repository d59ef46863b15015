"""Table 2: standard deviations truncated to low rank after training, three models."""

from __future__ import annotations

from functools import partial

from bayesrule.experiments.experiment import Claim, Experiment
from bayesrule.experiments.ktied import low_rank
from bayesrule.experiments.ktied.claims import at_least, at_most, claim, times_first, within, within_fraction
from bayesrule.experiments.ktied.measuring import DRAW_SPREAD, SCORES, SPREADS
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.settings import POSTERIORS, THREE, presets

RUN = "converged"
METRICS = (*SCORES, "floored_entries", DRAW_SPREAD, *SPREADS)


def _of(dataset: str) -> tuple[Claim, ...]:
    """The directions that hold for every model."""
    return (
        claim(
            f"{dataset}: rank 2 changes mean-field's NLL by less than 15 %",
            [(dataset, "mean-field", "nll"), (dataset, "2-tied", "nll")], within_fraction(0.15),
        ),
        claim(
            f"{dataset}: rank 2 changes mean-field's accuracy by less than 0.3 points",
            [(dataset, "mean-field", "accuracy"), (dataset, "2-tied", "accuracy")], within(0.3),
        ),
        claim(
            f"{dataset}: rank 1 hurts the ELBO visibly, by more than 10 %",
            [(dataset, "mean-field", "negative_elbo"), (dataset, "1-tied", "negative_elbo")], times_first(1.1),
        ),
        claim(
            f"{dataset}: rank 1 hurts the ELBO more than ranks 2 and 3",
            [(dataset, method, "negative_elbo") for method in ("1-tied", "2-tied", "3-tied")],
            lambda one, *more: (one > max(more), ", ".join(f"{value:.4g}" for value in (one, *more))),
        ),
    )  # fmt: skip


TABLE2 = Experiment(
    id="ktied/table2",
    title="k-tied Normal, Table 2: low-rank standard deviations after training",
    presets=presets(THREE, POSTERIORS, [RUN]),
    methods=POSTERIORS,
    datasets=lambda data: THREE,
    metrics=lambda dataset: METRICS,
    run=partial(low_rank.rows, RUN, lambda dataset: METRICS),
    claims=(
        claim("mnist: mean-field accuracy at least 97.2 %", [("mnist", "mean-field", "accuracy")], at_least(97.2)),
        claim("mnist: mean-field NLL at most 0.115", [("mnist", "mean-field", "nll")], at_most(0.115)),
        *(stated for dataset in THREE for stated in _of(dataset)),
    ),
    published=published("table2"),
    devices=("cuda", "cpu"),
)

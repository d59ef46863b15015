"""Table 1: how many numbers each variational family takes, for the three networks of Fig. 6."""

from __future__ import annotations

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment, Preset
from bayesrule.experiments.ktied.claims import claim
from bayesrule.experiments.ktied.counts import FORMULAS, by_formula, parameters
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.settings import MODEL_OF, POSTERIORS, THREE
from bayesrule.experiments.rows import Row

METRICS = ("parameters",)
EXACT = {
    "mnist": (956_820, 481_614, 484_008, 486_402),
    "cifar-100": (4_405_320, 2_262_188, 2_267_408, 2_272_628),
    "imdb": (2_822_785, 2_692_993, 2_694_273, 2_695_553),
}
"""What the rounded counts of Fig. 6 must be: mean-field, k = 1, 2, 3."""


def run(context: Context) -> list[Row]:
    """Families the package trains are counted in the converted network, the others by formula."""
    return [
        Row(name, method, "", "parameters", float(count(MODEL_OF[name], method)), None, 1)
        for name in context.datasets
        for method in context.methods
    ]


def count(model: str, method: str) -> int:
    """Trainable numbers of the whole model."""
    return parameters(model, method) if method in POSTERIORS else by_formula(model, method)


def _counts(*found: float) -> tuple[bool, str]:
    wanted = [float(number) for name in THREE for number in EXACT[name]]
    return list(found) == wanted, ", ".join(f"{number:,.0f}" for number in found)


def _preset(*, synthetic: bool) -> Preset:
    return Preset(THREE, tuple(FORMULAS), synthetic=synthetic)


TABLE1 = Experiment(
    id="ktied/table1",
    title="k-tied Normal, Table 1: parameters of variational families",
    presets={"smoke": _preset(synthetic=True), "quick": _preset(synthetic=False), "paper": _preset(synthetic=False)},
    methods=tuple(FORMULAS),
    datasets=lambda data: THREE,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(
        claim(
            "the counts behind the rounded ones of Figure 6, exactly",
            [(name, method, "parameters") for name in THREE for method in POSTERIORS],
            _counts,
        ),
    ),
    published=published("table1"),
)

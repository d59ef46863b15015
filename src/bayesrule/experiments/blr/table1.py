"""Table 1: every algorithm from the one rule, beside an independent computation of the same."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bayesrule.experiments.blr import conjugate, dropout, inference, nonconjugate, optimizers
from bayesrule.experiments.blr.problems import Size
from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Preset, Verdict
from bayesrule.experiments.rows import Row

PROBLEMS = "problems"
METRICS = ("deviation", "tier")
LIBRARY, TRANSCRIPTION, QUADRATURE = 1, 2, 3
"""Tiers A, B and C: a library we did not write, its equations a second time in NumPy, quadrature or brute force."""
CLOSE = 1e-8


@dataclass(frozen=True)
class Comparison:
    """One algorithm beside an independent computation.

    Attributes:
        measure: The largest difference of iterates, or of the fixed point.
        tier: Of what it is compared with.
        beside: The same, in words.
        packages: What must be installed for it.
    """

    measure: Callable[[Size], float]
    tier: int
    beside: str
    packages: tuple[str, ...] = ()


SKLEARN, STATSMODELS, SCIPY = ("sklearn",), ("statsmodels",), ("scipy",)

TABLE: dict[str, Comparison] = {
    "gradient-descent": Comparison(optimizers.gradient_descent, LIBRARY, "torch.optim.SGD, iterates"),
    "newton": Comparison(optimizers.newton, LIBRARY, "statsmodels Logit, Newton iterates", STATSMODELS),
    "multimodal": Comparison(optimizers.multimodal, TRANSCRIPTION, "Eqs. 29, 30, 69-71, iterates"),
    "sgd": Comparison(optimizers.sgd, LIBRARY, "torch.optim.SGD with momentum, iterates"),
    "rmsprop": Comparison(optimizers.rmsprop, LIBRARY, "torch.optim.RMSprop, iterates"),
    "adam": Comparison(optimizers.adam, LIBRARY, "torch.optim.Adam, iterates"),
    "dropout": Comparison(dropout.dropout, LIBRARY, "nn.Dropout with SGD and RMSprop, iterates; Eqs. 42, 43"),
    "ste": Comparison(optimizers.straight_through, LIBRARY, "torch.optim.SGD through a sign, iterates"),
    "ogn": Comparison(optimizers.ogn, TRANSCRIPTION, "Eqs. 44, 45, iterates"),
    "vogn": Comparison(optimizers.vogn, TRANSCRIPTION, "Eqs. 45, 46, iterates with the same noise"),
    "bayesbinn": Comparison(optimizers.bayesbinn, TRANSCRIPTION, "Eq. 52, iterates with the same noise"),
    "conjugate-bayes": Comparison(
        conjugate.conjugate,
        LIBRARY,
        "scikit-learn Ridge, FactorAnalysis, PCA, GaussianProcessRegressor; statsmodels KalmanSmoother",
        SKLEARN + STATSMODELS,
    ),
    "laplace": Comparison(inference.laplace, LIBRARY, "statsmodels Logit, mean and covariance", STATSMODELS),
    "em": Comparison(
        inference.expectation_maximization, LIBRARY, "scikit-learn GaussianMixture, iterates; online EM", SKLEARN
    ),
    "svi": Comparison(
        inference.stochastic_vi, LIBRARY, "scikit-learn LatentDirichletAllocation, online iterates", SKLEARN
    ),
    "vmp": Comparison(inference.message_passing, LIBRARY, "scikit-learn BayesianGaussianMixture, iterates", SKLEARN),
    "nonconjugate-vmp": Comparison(
        nonconjugate.nonconjugate_message_passing, TRANSCRIPTION, "Knowles and Minka's Algorithm 1, iterates"
    ),
    "nonconjugate-vi": Comparison(
        nonconjugate.nonconjugate_vi,
        QUADRATURE,
        "roots of Eqs. 25, 26, 31 on a grid; iterates of Eqs. 29, 30",
        SCIPY,
    ),
    "exponential-weights": Comparison(
        inference.exponential_weights, TRANSCRIPTION, "the multiplicative update, iterates"
    ),
}
"""The 18 algorithms of the paper's Table 1, and one more that its Sec. 5.4 names."""

ROWS = tuple(name for name in TABLE if name != "exponential-weights")


def run(context: Context) -> list[Row]:
    """Each comparison is a cell."""
    settings = context.preset.settings
    size = Size(settings["examples"], settings["steps"], context.seed)
    return [row for name in context.methods for row in _rows(context, name, size)]


def _rows(context: Context, name: str, size: Size) -> list[Row]:
    comparison = TABLE[name]
    missing = [package for package in comparison.packages if importlib.util.find_spec(package) is None]
    if missing:
        context.skipped.append(f"{name} on {PROBLEMS}: {', '.join(missing)} not installed; extra `test` has it")
        return []
    values = context.cell(name, compute=lambda: {"deviation": comparison.measure(size), "tier": comparison.tier})
    return [
        Row.over([values[metric]], dataset=PROBLEMS, method=name, variant=comparison.beside, metric=metric)
        for metric in METRICS
    ]


def _values(rows: Sequence[Row], metric: str) -> dict[str, float]:
    return {row.method: row.value for row in rows if row.metric == metric and row.method in ROWS}


def _all_measured(rows: Sequence[Row]) -> Verdict:
    count = len(_values(rows, "deviation"))
    return Verdict.of(count == len(ROWS), f"{count} of {len(ROWS)}")


def _close(rows: Sequence[Row]) -> Verdict:
    deviations = _values(rows, "deviation")
    close = [name for name, value in deviations.items() if value < CLOSE]
    worst = max(deviations, key=deviations.__getitem__, default="none")
    return Verdict.of(
        len(close) >= 15, f"{len(close)} of {len(ROWS)}; the largest, {worst}, {deviations.get(worst, 0):.1e}"
    )


def _close_to_libraries(rows: Sequence[Row]) -> Verdict:
    deviations, tiers = _values(rows, "deviation"), _values(rows, "tier")
    count = sum(value < CLOSE and tiers[name] == LIBRARY for name, value in deviations.items())
    return Verdict.of(count >= 10, f"{count} of {len(ROWS)}")


CLAIMS = (
    Claim("Table 1 has 18 algorithms, and the rule yields them all", _all_measured),
    Claim("At least 15 agree with an independent computation within 1e-8", _close),
    Claim("Of these, at least 10 with a library that is not ours", _close_to_libraries),
)

METHODS = tuple(TABLE)
TABLE1 = Experiment(
    id="blr/table1",
    title="Bayesian learning rule, Table 1: algorithms from one equation, beside independent computations",
    presets={
        "smoke": Preset((PROBLEMS,), METHODS, {"examples": 40, "steps": 5}, synthetic=True),
        "quick": Preset((PROBLEMS,), METHODS, {"examples": 60, "steps": 30}),
        "paper": Preset((PROBLEMS,), METHODS, {"examples": 200, "steps": 100}),
    },
    methods=METHODS,
    datasets=lambda data: (PROBLEMS,),
    metrics=lambda dataset: METRICS,
    run=run,
    drawn=True,
    claims=CLAIMS,
    published=Path(__file__).with_name("table1.json"),
    packages=("scipy", "scikit-learn", "statsmodels"),
)

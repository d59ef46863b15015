"""When a matrix normal posterior beats a diagonal one: sparse linear regressions, every term in closed form.

A matrix normal has the covariances that correlated inputs ask for; but its variances have rank one, ``s = a bᵀ``, so it
cannot be sure of one weight and unsure of its neighbours, which ARD asks for. Both are varied here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Preset, Verdict
from bayesrule.experiments.mn.section41 import NOISE_PRECISION, expected_log_likelihood, fitted
from bayesrule.experiments.rows import Row
from bayesrule.posteriors import Diagonal, Family, GaussianPosterior, MatrixNormal
from bayesrule.priors import ARD, GroupARD, Prior, kl_divergence
from bayesrule.random import keyed_generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILIES: dict[str, Family] = {"diag": Diagonal(), "mn": MatrixNormal()}
PRIORS: dict[str, Prior] = {"ard": ARD(), "group": GroupARD("both")}
METRICS = ("negative_elbo", "weights_left", "weight_error")
"""Nats for each weight; the share whose noise does not dominate; the mean's relative squared error."""
NOISE_DOMINATES = 3.0
LEAST_CHANGE = 1e-7
"""Of the bound, in nats: deviations of weights that have gone keep falling, at a gain that vanishes."""
Pattern = Literal["weights", "rows"]


@dataclass(frozen=True)
class Condition:
    """What is varied.

    Attributes:
        correlation: Of neighbouring inputs, ρ; of those k apart ρᵏ.
        density: Share of the true weights that are not zero.
        pattern: Whether single weights are zero, or whole rows.
        prior: One of `PRIORS`.
    """

    correlation: float
    density: float
    pattern: Pattern
    prior: str

    @property
    def variant(self) -> str:
        """Its name among the rows."""
        return f"{self.prior}, ρ {self.correlation:g}, {self.density:.0%} of {self.pattern}"


@dataclass(frozen=True)
class SparseRegression:
    """A regression with several outputs, its true weights and a prior whose scales are learned."""

    x: Tensor
    y: Tensor
    weight: Tensor
    prior: Prior

    @classmethod
    def drawn(cls, condition: Condition, inputs: int, outputs: int, examples: int, seed: int) -> SparseRegression:
        """Weights that are not zero are standard normal."""
        generator = keyed_generator(torch.device("cpu"), "sparse regression", seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=torch.float64, generator=generator)

        apart = torch.arange(inputs, dtype=torch.float64)
        covariance = condition.correlation ** (apart[:, None] - apart).abs()
        x = normal(examples, inputs) @ torch.linalg.cholesky(covariance).mT
        mask_shape = (inputs, 1) if condition.pattern == "rows" else (inputs, outputs)
        mask = torch.rand(mask_shape, generator=generator, dtype=torch.float64) < condition.density
        weight = normal(inputs, outputs) * mask
        y = x @ weight + normal(examples, outputs) / NOISE_PRECISION**0.5
        return cls(x, y, weight, PRIORS[condition.prior])

    def negative_elbo(self, posterior: GaussianPosterior) -> Tensor:
        """``KL − E_q log p(Y | W)`` at the prior's best scales."""
        return kl_divergence(posterior, self.prior) - expected_log_likelihood(posterior, self.x, self.y)


def measure(family: Family, problem: SparseRegression) -> dict[str, float]:
    """From the least-squares weights: at a mean of zero learned scales have a stationary point."""
    start = torch.linalg.lstsq(problem.x, problem.y).solution
    found = fitted(family, problem.negative_elbo, start, LEAST_CHANGE)
    left = (found.variance / found.mean.square()).log() < NOISE_DOMINATES
    error = (found.mean - problem.weight).square().sum() / problem.weight.square().sum()
    return {
        "negative_elbo": problem.negative_elbo(found).item() / start.numel(),
        "weights_left": left.double().mean().item(),
        "weight_error": error.item(),
    }


def conditions(context: Context) -> list[Condition]:
    """All combinations; single weights under a prior for each weight, whole rows under one for rows and columns."""
    settings = context.preset.settings
    patterns: tuple[tuple[Pattern, str], ...] = (("weights", "ard"), ("rows", "group"), ("rows", "ard"))
    varied = product(patterns, settings["correlations"], settings["densities"])
    return [Condition(correlation, density, *pattern) for pattern, correlation, density in varied]


def run(context: Context) -> list[Row]:
    """Every family on several problems of every condition; each of these is a cell."""
    shape, problems = context.preset.settings["shape"], context.preset.settings["problems"]
    rows = []
    for condition, method in product(conditions(context), context.methods):
        found = [
            context.cell(
                condition.variant, method, number,
                compute=partial(_cell, condition, method, shape, context.seed + number),
            )
            for number in range(problems)
        ]  # fmt: skip
        named = {"dataset": "regression", "method": method, "variant": condition.variant}
        rows += [Row.over([cell[metric] for cell in found], metric=metric, **named) for metric in METRICS]
    return rows


def _cell(condition: Condition, method: str, shape: Sequence[int], seed: int) -> dict[str, float]:
    inputs, outputs, examples = shape
    return measure(FAMILIES[method], SparseRegression.drawn(condition, inputs, outputs, examples, seed))


def gains(rows: Sequence[Row], prior: str, pattern: Pattern) -> dict[tuple[float, str], float]:
    """Nats for each weight by which the matrix normal's bound is better, by correlation and density."""
    wanted: dict[str, dict[str, float]] = {
        row.variant: {} for row in rows if row.variant.startswith(prior) and row.variant.endswith(pattern)
    }
    for row in rows:
        if row.variant in wanted and row.metric == "negative_elbo":
            wanted[row.variant][row.method] = row.value
    result = {}
    for variant, by_method in wanted.items():
        if {"diag", "mn"} <= set(by_method):
            _, correlation, density = variant.split(", ")
            key = float(correlation.removeprefix("ρ ")), density.split(" ")[0]
            result[key] = by_method["diag"] - by_method["mn"]
    return result


def _always(prior: str, pattern: Pattern) -> Claim:
    def check(rows: Sequence[Row]) -> Verdict:
        found = gains(rows, prior, pattern)
        if not found:
            return Verdict("not measured", "needs diag and mn")
        told = ", ".join(f"ρ {c:g} {d}: {gain:+.3f}" for (c, d), gain in sorted(found.items()))
        return Verdict.of(all(gain > 0 for gain in found.values()), told)

    return Claim(f"mn has the better bound everywhere, zeros in {pattern}, {prior} prior", check)


def _grows(prior: str, pattern: Pattern) -> Claim:
    def check(rows: Sequence[Row]) -> Verdict:
        found = gains(rows, prior, pattern)
        by_density: dict[str, list[float]] = {}
        for (_, density), gain in sorted(found.items()):
            by_density.setdefault(density, []).append(gain)
        if not found:
            return Verdict("not measured", "needs diag and mn")
        rising = all(each == sorted(each) for each in by_density.values())
        told = "; ".join(f"{d}: " + ", ".join(f"{g:+.3f}" for g in each) for d, each in by_density.items())
        return Verdict.of(rising, told)

    return Claim(f"the more correlated the inputs, the more mn gains, zeros in {pattern}, {prior} prior", check)


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """The gain by correlation, a line for each density, a panel for each pattern and prior."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    panels: tuple[tuple[str, Pattern], ...] = (("ard", "weights"), ("group", "rows"), ("ard", "rows"))
    for axes, (prior, pattern) in zip(figure.subplots(1, len(panels), sharey=True), panels, strict=True):
        found = gains(rows, prior, pattern)
        for density in dict.fromkeys(density for _, density in sorted(found, key=lambda key: float(key[1][:-1]))):
            points = sorted((correlation, gain) for (correlation, own), gain in found.items() if own == density)
            axes.plot(*zip(*points, strict=True), marker="o", label=f"{density} not zero")
        axes.axhline(0, color="grey", linewidth=0.8)
        axes.set(title=f"zeros in {pattern}, {prior} prior", xlabel="correlation of inputs, ρ")
        axes.set_ylabel("nats a weight that mn is ahead")
    axes.legend(frameon=False)
    return {"crossover": figure}


CROSSOVER = Experiment(
    id="mn/crossover",
    title="When a matrix normal posterior beats a diagonal one",
    presets={
        "smoke": Preset(
            ("regression",), tuple(FAMILIES),
            {"shape": [4, 3, 40], "problems": 1, "correlations": [0.9], "densities": [0.5]}, synthetic=True,
        ),
        "quick": Preset(
            ("regression",), tuple(FAMILIES),
            {"shape": [12, 8, 100], "problems": 3, "correlations": [0.0, 0.5, 0.9, 0.99], "densities": [0.1, 0.5, 1.0]},
        ),
        "paper": Preset(
            ("regression",), tuple(FAMILIES),
            {"shape": [16, 12, 150], "problems": 5, "correlations": [0.0, 0.5, 0.8, 0.9, 0.95, 0.99],
             "densities": [0.1, 0.3, 1.0]},
        ),
    },
    methods=tuple(FAMILIES),
    datasets=lambda folder: ("regression",),
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(
        _grows("ard", "weights"), _grows("group", "rows"), _always("ard", "weights"), _always("group", "rows"),
    ),
    published=Path(__file__).with_name("section41.json"),
    figures=figures,
)  # fmt: skip
"""Goes beyond the paper, which claims that the matrix normal is better throughout."""

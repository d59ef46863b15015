"""Table 2: families, and how exactly their two coordinate systems are dual to each other."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Preset, Verdict
from bayesrule.experiments.rows import Row
from bayesrule.expfam import (
    FAMILIES,
    Expectation,
    ExponentialFamily,
    Natural,
    gradient_in_expectation,
)
from bayesrule.random import FromGenerator

MEMBERS = "random members"
METRICS = ("round_trip", "gradient", "bregman", "entropy_gradient")
"""|λ(μ(λ)) − λ|; |∇A by autograd − by differences|; |D_A − D_A*|, both of them the KL; |∇_μ H + λ + ∇_μ E log h|."""
SMALL = 1e-7
BY_NAME = {type(family).__name__: family for family in FAMILIES}
LIKE = torch.zeros((), dtype=torch.float64)


def duality_errors(family: ExponentialFamily, members: int, seed: int) -> dict[str, float]:
    """The largest of each error over random members, relative where values exceed 1."""
    noise = FromGenerator(torch.Generator().manual_seed(seed))
    first, second = (family.random_natural(noise, LIKE, (members,), dim=2, classes=3, length=3) for _ in range(2))
    mu, other = family.to_expectation(first), family.to_expectation(second)
    entropy = gradient_in_expectation(family, lambda point: family.entropy(family.to_natural(point)), first)
    return {
        "round_trip": _error(family.to_natural(mu), first),
        "gradient": _difference_error(family, first, mu),
        "bregman": _relative(_dual_bregman(family, mu, other), family.kl(first, second)),
        "entropy_gradient": _error(entropy + family.base.gradient(first), -first),
    }


def _dual_bregman(family: ExponentialFamily, first: Expectation, second: Expectation) -> Tensor:
    """D_A*(μ₁ ‖ μ₂) = A*(μ₁) − A*(μ₂) − ⟨μ₁ − μ₂, ∇A*(μ₂)⟩   (below Eq. 20)."""

    def conjugate(mu: Expectation) -> Tensor:
        natural = family.to_natural(mu)
        return family.inner(natural, mu) - family.log_partition(natural)

    return conjugate(first) - conjugate(second) - family.inner(family.to_natural(second), first - second)


def _difference_error(family: ExponentialFamily, natural: Natural, mu: Expectation) -> float:
    """⟨v, ∇A⟩ against a central difference of A of fourth order, along random directions v."""
    noise = FromGenerator(torch.Generator().manual_seed(1))
    direction = family.space.project(natural.map(lambda value: noise(tuple(value.shape), "normal", value)))
    step = 2e-5

    def along(t: float) -> Tensor:
        return family.log_partition(natural + t * step * direction)

    slope = (8 * (along(1) - along(-1)) - (along(2) - along(-2))) / (12 * step)
    return _relative(slope, family.inner(direction, mu))


def _error(got: Natural, wanted: Natural) -> float:
    return max(_relative(value, wanted[name]) for name, value in got.items)


def _relative(got: Tensor, wanted: Tensor) -> float:
    return ((got - wanted).abs() / (1 + wanted.abs())).max().item()


def run(context: Context) -> list[Row]:
    """Each family is a cell."""
    members = context.preset.settings["members"]
    rows = []
    for name in context.methods:
        values = context.cell(name, compute=partial(duality_errors, BY_NAME[name], members, context.seed))
        rows += [
            Row.over([values[metric]], dataset=MEMBERS, method=name, variant="", metric=metric) for metric in METRICS
        ]
    return rows


def _small(rows: Sequence[Row]) -> Verdict:
    worst = max(rows, key=lambda row: row.value)
    return Verdict.of(worst.value < SMALL, f"the largest is {worst.value:.1e}, {worst.metric} of {worst.method}")


METHODS = tuple(BY_NAME)
TABLE2 = Experiment(
    id="blr/table2",
    title="Bayesian learning rule, Table 2: exponential families and their duality",
    presets={
        "smoke": Preset((MEMBERS,), METHODS, {"members": 3}, synthetic=True),
        "quick": Preset((MEMBERS,), METHODS, {"members": 100}),
        "paper": Preset((MEMBERS,), METHODS, {"members": 1000}),
    },
    methods=METHODS,
    datasets=lambda data: (MEMBERS,),
    metrics=lambda dataset: METRICS,
    run=run,
    drawn=True,
    claims=(Claim("λ and μ are dual in every family: all four errors are below 1e-7", _small),),
    published=Path(__file__).with_name("table2.json"),
)

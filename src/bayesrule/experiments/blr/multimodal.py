"""Section 3.2: a mixture candidate finds several minima in one run; alone, its components repeat each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule import algorithms
from bayesrule.experiments.blr.optimizers import double_wells
from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Preset, Verdict
from bayesrule.experiments.rows import Row
from bayesrule.expfam import GaussianFull, Loss, of_function

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = ("minima_found", "share_at_a_minimum")
METHODS = ("mixture", "gradient-descent")
NEAR = 0.3
Points = Float[Tensor, "points 2"]


@dataclass(frozen=True)
class Surface:
    """A loss in the plane, its minima, and how candidates start: a cloud of that width, and their first precision."""

    loss: Loss
    minima: tuple[tuple[float, float], ...]
    spread: float
    precision: float
    rate: float


def himmelblau() -> Loss:
    """Himmelblau's function, a tenth of it: four minima of equal depth."""
    return of_function(lambda t: 0.1 * ((t[0] ** 2 + t[1] - 11) ** 2 + (t[0] + t[1] ** 2 - 7) ** 2))


SURFACES = {
    "himmelblau": Surface(
        himmelblau(),
        ((3.0, 2.0), (-2.805118, 3.131312), (-3.779310, -3.283186), (3.584428, -1.848126)),
        spread=0.5, precision=0.5, rate=0.05,
    ),
    "double-wells": Surface(
        double_wells(),
        tuple((first, second) for first in (-1.024, 0.974) for second in (-1.0, 1.0)),
        spread=0.2, precision=1.0, rate=0.05,
    ),
}  # fmt: skip


def starts(surface: Surface, components: int, seed: int) -> Points:
    """A cloud about the origin."""
    generator = torch.Generator().manual_seed(seed)
    return surface.spread * torch.randn(components, 2, generator=generator, dtype=torch.float64)


def solutions(surface: Surface, method: str, begin: Points, steps: int) -> Points:
    """Where the candidates end: the components of one mixture, or as many runs of their own."""
    if method == "mixture":
        mixture, natural = algorithms.uniform_mixture(begin, surface.precision)
        *_, last = islice(algorithms.multimodal(surface.loss, mixture, natural, surface.rate), steps)
        return GaussianFull().mean(last)
    ends = []
    for start in begin:
        *_, theta = islice(algorithms.gradient_descent(surface.loss, start, surface.rate), steps)
        ends.append(theta)
    return torch.stack(ends)


def counted(surface: Surface, ends: Points) -> dict[str, float]:
    """How many minima some candidate is near, and which share of the candidates is near one."""
    minima = torch.tensor(surface.minima, dtype=ends.dtype)
    near = (ends.unsqueeze(1) - minima).norm(dim=-1) < NEAR
    return {
        "minima_found": near.any(0).sum().item(),
        "share_at_a_minimum": near.any(1).double().mean().item(),
    }


def run(context: Context) -> list[Row]:
    """Each surface, method and start is a cell."""
    settings, rows = context.preset.settings, []
    for dataset, method in product(context.datasets, context.methods):
        cells = [
            context.cell(
                dataset, method, number, compute=partial(_cell, dataset, method, context.seed + number, settings)
            )
            for number in range(settings["starts"])
        ]
        variant = f"{settings['components']} candidates"
        rows += [
            Row.over([cell[metric] for cell in cells], dataset=dataset, method=method, variant=variant, metric=metric)
            for metric in METRICS
        ]
    return rows


def _cell(dataset: str, method: str, seed: int, settings: Mapping[str, int]) -> dict[str, float]:
    surface = SURFACES[dataset]
    begin = starts(surface, settings["components"], seed)
    return counted(surface, solutions(surface, method, begin, settings["steps"]))


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """The surfaces, with where both methods end from the first cloud."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(context.datasets), 4), layout="constrained")
    settings = context.preset.settings
    for axes, dataset in zip(
        figure.subplots(1, len(context.datasets), squeeze=False)[0], context.datasets, strict=True
    ):
        surface = SURFACES[dataset]
        reach = 1.3 * max(abs(value) for point in surface.minima for value in point)
        line = torch.linspace(-reach, reach, 60, dtype=torch.float64)
        grid = torch.cartesian_prod(line, line)
        height = torch.func.vmap(surface.loss)(grid).reshape(60, 60).mT
        axes.contourf(line, line, (height - height.min() + 0.1).log(), levels=20, cmap="Blues_r")
        begin = starts(surface, settings["components"], context.seed)
        axes.plot(*begin.mT, ".", color="grey", label="start")
        for method, mark in zip(context.methods, ("o", "x"), strict=False):
            ends = solutions(surface, method, begin, settings["steps"])
            axes.plot(*ends.mT, mark, fillstyle="none", color="C1" if mark == "o" else "black", label=method)
        axes.set(title=dataset, xlim=(-reach, reach), ylim=(-reach, reach), xlabel="θ₁", ylabel="θ₂")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return {"minima": figure}


def _more_minima(rows: Sequence[Row]) -> Verdict:
    found = {(row.dataset, row.method): row.value for row in rows if row.metric == "minima_found"}
    pairs = {
        dataset: (found[dataset, "mixture"], found[dataset, "gradient-descent"])
        for dataset in SURFACES
        if {(dataset, method) for method in METHODS} <= set(found)
    }
    if not pairs:
        return Verdict("not measured", "both methods are needed")
    detail = "; ".join(f"{name}: {ours:.1f} against {theirs:.1f} of 4" for name, (ours, theirs) in pairs.items())
    return Verdict.of(all(ours >= theirs and ours > 1 for ours, theirs in pairs.values()), detail)


MULTIMODAL = Experiment(
    id="blr/multimodal",
    title="Bayesian learning rule, Section 3.2: minima found in one run by the components of a mixture",
    presets={
        "smoke": Preset(tuple(SURFACES), METHODS, {"components": 3, "starts": 1, "steps": 5}, synthetic=True),
        "quick": Preset(tuple(SURFACES), METHODS, {"components": 8, "starts": 5, "steps": 80}),
        "paper": Preset(tuple(SURFACES), METHODS, {"components": 8, "starts": 20, "steps": 150}),
    },
    methods=METHODS,
    datasets=lambda data: tuple(SURFACES),
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(
        Claim(
            "One run of a mixture finds several minima, and no fewer than its components would on their own",
            _more_minima,
        ),
    ),
    published=Path(__file__).with_name("multimodal.json"),
    figures=figures,
)

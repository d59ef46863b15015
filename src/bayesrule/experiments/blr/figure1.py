"""Figure 1: beside a wall, and between a sharp and a flat minimum, the Bayesian solution is the more robust one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bayesrule.algorithms import descend
from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Preset, Verdict
from bayesrule.experiments.rows import Row
from bayesrule.expfam import Delta, GaussHermite, GaussianFull, Hessian, Loss, of_function

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METRICS = ("solution", "loss", "loss_when_shaken", "bayesian_objective")
METHODS = ("deterministic", "bayesian")
ORDER = 60
SHAKE = 0.3
FLAT, SHARP = 1.5, -2.0


@dataclass(frozen=True)
class Landscape:
    """A loss on the line, means and precision the search starts from, and the part of the line to draw."""

    loss: Loss
    starts: tuple[float, ...]
    precision: float
    window: tuple[float, float]


def _wall(theta: Tensor) -> Tensor:
    """ℓ = exp(−8θ) + ½θ: steep on the left of its minimum, flat on the right."""
    return (torch.exp(-8 * theta) + 0.5 * theta).sum()


def _sharp_and_flat(theta: Tensor) -> Tensor:
    """A deep well of width 0.1 and a shallower one of width 1."""
    sharp = 6 * torch.exp(-0.5 * ((theta - SHARP) / 0.1).square())
    flat = 5 * torch.exp(-0.5 * (theta - FLAT).square())
    return (0.05 * theta.square() - sharp - flat).sum()


LANDSCAPES = {
    "wall": Landscape(of_function(_wall), (0.5, 1.0), 16.0, (-0.2, 3.0)),
    "sharp-and-flat": Landscape(of_function(_sharp_and_flat), (-2.5, -2.02, -1.5, -0.5, 0.5, 2.0), 1.0, (-4.0, 4.0)),
}


def solve(landscape: Landscape, method: str, steps: int) -> tuple[float, float]:
    """Mean and precision of the best of several runs of the rule: by the loss at the mean, or by E_q[ℓ] − H(q).

    Both are Newton's row of Table 1 with ρ = 0.2; the deterministic one takes derivatives at the mean, the Bayesian one
    averages them over q.
    """
    family, where = GaussianFull(), Delta() if method == "deterministic" else GaussHermite(ORDER)
    found = []
    for start in landscape.starts:
        natural = family.from_mean_precision(
            torch.tensor([start]).double(), landscape.precision * torch.eye(1).double()
        )
        run = descend(family, natural, lambda t: landscape.loss, where, Hessian(), 0.2, line_search=True)
        *_, last = islice(run, steps)
        mean, precision = (value.item() for value in family.to_mean_precision(last))
        value = at(landscape.loss, mean) if method == "deterministic" else objective(landscape.loss, mean, precision)
        found.append((value, mean, precision))
    return min(found)[1:]


def at(loss: Loss, theta: float) -> float:
    """ℓ(θ)."""
    return loss(torch.tensor([theta]).double()).item()


def expected(loss: Loss, mean: float, precision: float) -> float:
    """E[ℓ] under N(mean, 1/precision)."""
    family = GaussianFull()
    natural = family.from_mean_precision(torch.tensor([mean]).double(), torch.tensor([[precision]]).double())
    points, weights = GaussHermite(ORDER)(family, natural, lambda shape, law, like: like.new_zeros(shape))
    return (weights @ torch.func.vmap(loss)(points)).item()


def objective(loss: Loss, mean: float, precision: float) -> float:
    """E_q[ℓ] − H(q)   (Eq. 2)."""
    family = GaussianFull()
    natural = family.from_mean_precision(torch.tensor([mean]).double(), torch.tensor([[precision]]).double())
    return expected(loss, mean, precision) - family.entropy(natural).item()


def measure(landscape: Landscape, method: str, steps: int) -> dict[str, float]:
    """The solution, its loss, the same when it is shaken, and the Bayesian objective."""
    mean, precision = solve(landscape, method, steps)
    return {
        "solution": mean,
        "loss": at(landscape.loss, mean),
        "loss_when_shaken": expected(landscape.loss, mean, SHAKE**-2),
        "bayesian_objective": objective(landscape.loss, mean, precision),
    }


def run(context: Context) -> list[Row]:
    """Each landscape and method is a cell."""
    rows, steps = [], context.preset.settings["steps"]
    for dataset, method in product(context.datasets, context.methods):
        values = context.cell(dataset, method, compute=partial(measure, LANDSCAPES[dataset], method, steps))
        rows += [
            Row.over([values[metric]], dataset=dataset, method=method, variant="", metric=metric) for metric in METRICS
        ]
    return rows


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """Both panels: the loss, and the solutions on it."""
    from matplotlib.figure import Figure

    solution = {(row.dataset, row.method): row.value for row in rows if row.metric == "solution"}
    figure = Figure(figsize=(4.5 * len(context.datasets), 3), layout="constrained")
    for axes, dataset in zip(
        figure.subplots(1, len(context.datasets), squeeze=False)[0], context.datasets, strict=True
    ):
        landscape = LANDSCAPES[dataset]
        line = torch.linspace(*landscape.window, 600, dtype=torch.float64)
        axes.plot(line, torch.func.vmap(landscape.loss)(line.unsqueeze(-1)), color="grey")
        for method, colour in zip(METHODS, ("black", "C1"), strict=True):
            if (dataset, method) in solution:
                theta = solution[dataset, method]
                axes.plot(theta, at(landscape.loss, theta), "o", color=colour, label=method)
        axes.set(title=dataset, xlabel="θ", ylabel="loss")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return {"robustness": figure}


def _found(rows: Sequence[Row], metric: str) -> dict[tuple[str, str], float]:
    return {(row.dataset, row.method): row.value for row in rows if row.metric == metric}


def _away_from_the_wall(rows: Sequence[Row]) -> Verdict:
    found = _found(rows, "solution")
    if not {("wall", method) for method in METHODS} <= set(found):
        return Verdict("not measured", "both methods are needed")
    bayes, plain = found["wall", "bayesian"], found["wall", "deterministic"]
    return Verdict.of(bayes > plain + 0.5, f"{bayes:.3f} against {plain:.3f}, the wall to the left")


def _flat(rows: Sequence[Row]) -> Verdict:
    found = _found(rows, "solution")
    if not {("sharp-and-flat", method) for method in METHODS} <= set(found):
        return Verdict("not measured", "both methods are needed")
    bayes, plain = found["sharp-and-flat", "bayesian"], found["sharp-and-flat", "deterministic"]
    held = abs(bayes - FLAT) < 0.5 and abs(plain - SHARP) < 0.1
    return Verdict.of(held, f"{bayes:.3f} against {plain:.3f}; the flat minimum is near {FLAT}, the sharp near {SHARP}")


def _robust(rows: Sequence[Row]) -> Verdict:
    found = _found(rows, "loss_when_shaken")
    names = [name for name in LANDSCAPES if {(name, method) for method in METHODS} <= set(found)]
    if not names:
        return Verdict("not measured", "both methods are needed")
    detail = "; ".join(f"{n}: {found[n, 'bayesian']:.2f} against {found[n, 'deterministic']:.2f}" for n in names)
    return Verdict.of(all(found[name, "bayesian"] < found[name, "deterministic"] for name in names), detail)


FIGURE1 = Experiment(
    id="blr/figure1",
    title="Bayesian learning rule, Figure 1: the wall and the flat minimum",
    presets={
        "smoke": Preset(tuple(LANDSCAPES), METHODS, {"steps": 10}, synthetic=True),
        "quick": Preset(tuple(LANDSCAPES), METHODS, {"steps": 300}),
        "paper": Preset(tuple(LANDSCAPES), METHODS, {"steps": 1000}),
    },
    methods=METHODS,
    datasets=lambda data: tuple(LANDSCAPES),
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(
        Claim("Next to a wall the Bayesian solution lies further from it", _away_from_the_wall),
        Claim("Between a sharp and a flat minimum it takes the flat one, the deterministic one the sharp", _flat),
        Claim("Shaken by a standard deviation of 0.3, it loses less on both", _robust),
    ),
    published=Path(__file__).with_name("figure1.json"),
    figures=figures,
)

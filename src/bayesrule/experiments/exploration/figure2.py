"""Exploration: returns of TRPO alone and with curiosity, by a mean-field and by a noisy K-FAC model of the dynamics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Preset, Verdict
from bayesrule.experiments.exploration.bbb_dynamics import BBBDynamics
from bayesrule.experiments.exploration.curiosity import Sizes, train
from bayesrule.experiments.exploration.dynamics import DynamicsModel
from bayesrule.experiments.exploration.kfac_dynamics import NoisyKFACDynamics
from bayesrule.experiments.exploration.simulations import SIMULATIONS
from bayesrule.experiments.rows import Row
from bayesrule.experiments.tabular import one_thread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS: dict[str, type[DynamicsModel] | None] = {
    "trpo": None, "trpo+bbb": BBBDynamics, "trpo+noisy-kfac": NoisyKFACDynamics,
}  # fmt: skip
METRICS = ("return_median", "return_lower_quartile", "return_upper_quartile", "first_success", "seeds_with_success")
LAST = 0.2
"""Part of the iterations, at the end, whose mean return is a run's."""
PACKAGES = {"mountain-car": ("gymnasium", "sb3_contrib")}
ALL_PACKAGES = ("gymnasium", "sb3_contrib", "dm_control")


def run(context: Context) -> list[Row]:
    """Every method on every task with every seed; each of these is a cell, which holds its learning curve."""
    rows: list[Row] = []
    with one_thread():
        for task in context.datasets:
            missing = _missing(task)
            for method in context.methods:
                if missing:
                    line = f"{method} on {task}: the package {missing} is not installed (pip install 'bayesrule[rl]')"
                    context.skipped.append(line)
                else:
                    rows += _rows(task, method, curves(context, task, method))
    return rows


def curves(context: Context, task: str, method: str) -> np.ndarray:
    """Returns, (seeds, iterations)."""
    return np.array([_cell(context, task, method, context.seed + number) for number in range(_seeds(context))])


def _seeds(context: Context) -> int:
    return int(context.preset.settings["seeds"])


def _cell(context: Context, task: str, method: str, seed: int) -> list[float]:
    sizes = Sizes(**context.preset.settings["sizes"])

    def compute() -> dict[str, float]:
        returns = train(SIMULATIONS[task], _model(task, method, sizes, seed), sizes, seed)
        return {f"iteration {number:04d}": value for number, value in enumerate(returns)}

    kept = context.cell(task, method, f"seed {seed}", compute=compute)
    return [kept[name] for name in sorted(kept)]


def _model(task: str, method: str, sizes: Sizes, seed: int) -> DynamicsModel | None:
    kind = METHODS[method]
    if kind is None:
        return None
    simulation: Any = SIMULATIONS[task]
    states = simulation.observations
    return kind(states + simulation.actions, states, iterations=sizes.model_steps, seed=seed)


def _missing(task: str) -> str:
    for package in PACKAGES.get(task, ALL_PACKAGES):
        try:
            import_module(package)
        except ImportError:
            return package
    return ""


def _rows(task: str, method: str, returns: np.ndarray) -> list[Row]:
    """Quartiles over seeds of the mean return at the end; when a return was first above zero, if by half of them."""
    last = returns[:, -max(1, round(LAST * returns.shape[1])) :].mean(1)
    lower, median, upper = np.quantile(last, [0.25, 0.5, 0.75])
    succeeded = (returns > 0).any(1)
    first = np.where(succeeded, (returns > 0).argmax(1) + 1.0, returns.shape[1] + 1.0)
    values = (median, lower, upper, np.median(first), succeeded.sum())
    return [
        Row(task, method, "", metric, float(value), None, len(returns))
        for metric, value in zip(METRICS, values, strict=True)
    ]


def _medians(rows: Sequence[Row], method: str) -> dict[str, float]:
    return {row.dataset: row.value for row in rows if row.method == method and row.metric == METRICS[0]}


def _above(better: str, worse: str) -> Claim:
    def check(rows: Sequence[Row]) -> Verdict:
        high, low = _medians(rows, better), _medians(rows, worse)
        tasks = [task for task in SIMULATIONS if task in high and task in low]
        if not tasks:
            return Verdict("not measured", "no task was run with both")
        detail = "; ".join(f"{task}: {high[task]:.3g} against {low[task]:.3g}" for task in tasks)
        return Verdict.of(all(high[task] > low[task] for task in tasks), detail)

    return Claim(f"{better} has a higher median return than {worse} on every task", check)


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """Median and interquartile range of the return by iteration, a panel for each task."""
    tasks = [task for task in context.datasets if any(row.dataset == task for row in rows)]
    if not tasks:
        return {}
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(tasks), 3.2), layout="constrained")
    for axes, task in zip(np.atleast_1d(np.array(figure.subplots(1, len(tasks)))), tasks, strict=True):
        for method in context.methods:
            lower, median, upper = np.quantile(curves(context, task, method), [0.25, 0.5, 0.75], axis=0)
            iterations = np.arange(1, len(median) + 1)
            axes.plot(iterations, median, label=method)
            axes.fill_between(iterations, lower, upper, alpha=0.25)
        axes.set(title=task, xlabel="iteration", ylabel="return")
    axes.legend(frameon=False)
    return {"figure2": figure}


def _preset(seeds: int, tasks: Iterable[str], synthetic: bool = False, **sizes: float) -> Preset:
    return Preset(tuple(tasks), tuple(METHODS), {"seeds": seeds, "sizes": sizes}, synthetic)


FIGURE2 = Experiment(
    id="nng/figure2",
    title="Exploration with sparse rewards: TRPO alone, and with the information gain of two dynamics models",
    presets={
        "smoke": _preset(
            1, ["mountain-car"], synthetic=True, iterations=2, steps=80, environments=2, horizon=40, model_steps=5
        ),
        "quick": _preset(3, SIMULATIONS, iterations=40),
        "paper": _preset(10, SIMULATIONS, iterations=200),
    },
    methods=tuple(METHODS),
    datasets=lambda data: tuple(SIMULATIONS),
    metrics=lambda task: METRICS,
    run=run,
    claims=(_above("trpo+bbb", "trpo"), _above("trpo+noisy-kfac", "trpo+bbb")),
    published=Path(__file__).with_name("figure2.json"),
    packages=("gymnasium", "sb3-contrib", "stable-baselines3", "dm-control", "mujoco"),
    figures=figures,
)

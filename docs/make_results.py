"""Writes docs/results.md from every results/**/result.json, beside the published numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bayesrule.experiments import EXPERIMENTS
from bayesrule.experiments.rendering import markdown_result

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "results.md"
FIGURES = ROOT / "docs" / "assets" / "results"
TITLES = {
    "elbo-audit": "The ELBO audit",
    "mnist-example": "MNIST, mean-field and 2-tied",
    "local-noise": "Local noise and KL of one dense layer, in time and memory",
    "matrix-normal-step": "A training step with a matrix normal posterior beside a diagonal one's",
    "ktied-layer": "Training steps with k-tied dense layers beside the point estimate's",
    "optimizer-steps": "Steps of posterior optimizers beside AdamW's",
    "bench/cpu": "Speed and memory on a CPU, beside other libraries",
    "bench/cuda": "Speed and memory on a GPU, beside other libraries",
}
"""Of results that are not experiments of the package."""
HEAD = """# Results

Every number the project has measured, made by `python docs/make_results.py` from the files `results/**/result.json`,
which also hold the versions of all packages. A number after ± is the standard error over runs, for the scores of the
k-tied paper [over test examples](ktied.md#what-the-numbers-are). "Published" is the number a result is compared with;
claims are reported as they stand, held or not. [Experiments](experiments.md) says how to measure them again,
[The k-tied paper](ktied.md#what-was-found) what its results mean."""


def title(name: str) -> str:
    """Of a result."""
    return EXPERIMENTS[name].title if name in EXPERIMENTS else TITLES.get(name, name)


def owner(figure: str, experiments: Iterable[str]) -> str | None:
    """The experiment a figure belongs to: ``<id>.png`` or ``<id>-<name>.png``, by the longest id that fits."""
    name = figure.removesuffix(".png")
    return max((each for each in experiments if name == each or name.startswith(f"{each}-")), key=len, default=None)


def drawn(folder: Path, experiments: Iterable[str]) -> dict[str, list[str]]:
    """The figures of each experiment, as paths below the folder; one that belongs to none is an error."""
    experiments = list(experiments)
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("*.png")):
        figure = path.relative_to(folder).as_posix()
        experiment = owner(figure, experiments)
        if experiment is None:
            raise ValueError(f"{path} belongs to no result: its name begins with the id of none")
        found.setdefault(experiment, []).append(figure)
    return found


def image(figure: str, experiment: str) -> str:
    """As markdown, with what it shows for those who cannot see it."""
    name = figure.removesuffix(".png").removeprefix(experiment).removeprefix("-")
    shown = f"{title(experiment)} ({name})" if name else title(experiment)
    return f"![{shown}]({(FIGURES / figure).relative_to(TARGET.parent).as_posix()})"


def section(result: dict[str, Any], figures: Sequence[str]) -> str:
    """One result, and below it its figures."""
    experiment = result["experiment"]
    table = markdown_result(result, title(experiment), level=2)
    return "\n\n".join([table, *(image(figure, experiment) for figure in figures)])


def page(folder: Path = ROOT / "results", pictures: Path = FIGURES) -> str:
    """The whole page."""
    results = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("result.json"))}
    for path, result in results.items():
        if result.get("synthetic"):
            raise ValueError(f"{path} was measured on synthetic data, which is never published")
    figures = drawn(pictures, [result["experiment"] for result in results.values()])
    sections = [section(result, figures.get(result["experiment"], [])) for result in results.values()]
    return "\n\n".join([HEAD, *sections]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")

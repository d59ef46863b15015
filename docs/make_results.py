"""Writes docs/results.md from every results/**/result.json, beside the published numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from bayesrule.bench.report import PICTURE, draw
from bayesrule.data import LABELLED_SETS
from bayesrule.experiments import EXPERIMENTS
from bayesrule.experiments.rendering import markdown_result
from bayesrule.experiments.tabular_data import UCI

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "results.md"
FIGURES = ROOT / "docs" / "assets" / "results"
TITLES = {
    "bench/cpu/compiled": "Compiled steps on a CPU, beside other libraries",
    "bench/cpu/dense": "A wide dense layer on a CPU, beside other libraries",
    "bench/cpu/batch-1024": "Steps on large batches on a CPU, in a longer run",
    "bench/cpu/predictions": "Predictions with many draws on a CPU",
    "elbo-audit": "The ELBO audit",
    "mnist-example": "MNIST, mean-field and 2-tied",
    "local-noise": "Local noise and KL of one dense layer, in time and memory",
    "estimator-choice": "Local noise, a drawn weight, and which of them Auto takes",
    "matrix-normal-step": "A training step with a matrix normal posterior beside a diagonal one's",
    "ktied-layer": "Training steps with k-tied dense layers beside the point estimate's",
    "ktied-layer/cuda/compiled": "Small k-tied layers left to a compiler, which was tried",
    "optimizer-steps": "Steps of posterior optimizers beside AdamW's",
    "bench/cpu": "Speed and memory on a CPU, beside other libraries",
    "blr/uncertainty/adafactor": "Adafactor beside AdamW on MNIST",
    "blr/uncertainty/cifar-10": "Posteriors held by optimizers, and their rivals, on CIFAR-10",
    "blr/binary/cifar-10": "Binary networks on CIFAR-10",
    "nng/table1/cpu": "Noisy natural gradient, Table 1 on one CPU thread, Boston",
    "nng/cifar10/cpu": "Noisy natural gradient on CIFAR-10 at equal time, a small network on one CPU thread",
    "nng/conventions/noisy-adam": "Noisy natural gradient: noisy Adam's guard on the step, on validation rows",
    "bench/cuda": "Speed and memory on a GPU, beside other libraries",
}
"""Of results that are not experiments of the package."""
PAPERS = {
    "ktied": "The k-tied Normal",
    "mn": "Matrix normal posteriors and sparse networks",
    "nng": "Noisy natural gradient",
    "blr": "The Bayesian learning rule",
}
"""By what their ids begin with."""
BEYOND = "Beyond the papers"
DATA_FILES = {*LABELLED_SETS, *UCI, "binarized-mnist"}
ONLY_COUNTED = "ktied/table1"
"""Named after data sets, of which it reads none."""
HEAD = """# Results

Every number the project has measured, made by `python docs/make_results.py` from the files `results/**/result.json`,
which also hold the versions of all packages. A number after ± is the standard error over runs, for the scores of the
k-tied paper [over test examples](ktied.md#what-the-numbers-are). "Published" is the number a result is compared with;
claims are reported as they stand, held or not. Below each title is the command that measures it again, `DIR` being the
folder with the [data files](data.md); [Experiments](experiments.md) says more, and [The k-tied
paper](ktied.md#what-was-found) what its results mean."""


def title(name: str) -> str:
    """Of a result, by its folder below ``results``, which for an experiment of the package is its id."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name].title
    return TITLES.get(name) or TITLES.get(name.rpartition("/")[0], name)


def paper(name: str) -> str:
    """That a result belongs to."""
    return PAPERS.get(name.partition("/")[0], BEYOND)


def place(name: str) -> tuple[int, int, str]:
    """Of a result on the page: papers one after the other, in each the order of the package's experiments."""
    papers, known = [*PAPERS.values(), BEYOND], list(EXPERIMENTS)
    return papers.index(paper(name)), known.index(name) if name in EXPERIMENTS else len(known), name


def contents(names: Iterable[str]) -> str:
    """Every result, by paper."""
    lists = [
        f"**{heading}**\n\n" + "\n".join(f"- [{name}](#{name}): {title(name)}" for name in group)
        for heading, group in groupby(names, paper)
    ]
    return "\n\n".join(lists)


def command(result: dict[str, Any]) -> str:
    """That measures it again; where it reads files, with a folder of data."""
    given = re.sub(r"--data \S+", "--data DIR", result["command"])
    reads = any(row.get("dataset") in DATA_FILES for row in result["rows"]) and result["experiment"] != ONLY_COUNTED
    return given if "--data " in given or not reads else given.replace(" --out ", " --data DIR --out ")


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


def section(name: str, result: dict[str, Any], figures: Sequence[str]) -> str:
    """One result, and below it its figures; its name is an anchor."""
    heading = name if title(name) == name else f"{name} — {title(name)}"
    table = markdown_result({**result, "command": command(result)}, heading, level=3)
    return "\n\n".join([f'<a id="{name}"></a>', table, *(image(figure, name) for figure in figures)])


def measured(folder: Path) -> dict[str, dict[str, Any]]:
    """The results by name, in their order on the page."""
    files = {path.parent.relative_to(folder).as_posix(): path for path in folder.rglob("result.json")}
    found = {name: json.loads(files[name].read_text(encoding="utf-8")) for name in sorted(files, key=place)}
    for name, result in found.items():
        if result.get("synthetic") or result.get("preset") == "smoke":
            raise ValueError(f"{files[name]} was measured on synthetic data or is a trial: it is never published")
    return found


def page(folder: Path = ROOT / "results", pictures: Path = FIGURES) -> str:
    """The whole page."""
    results = measured(folder)
    figures = drawn(pictures, results)
    parts = [HEAD, contents(results)]
    for heading, names in groupby(results, paper):
        parts += [f"## {heading}", *(section(name, results[name], figures.get(name, [])) for name in names)]
    return "\n\n".join(parts) + "\n"


def draw_benchmarks(folder: Path = ROOT / "results", pictures: Path = FIGURES) -> None:
    """The pictures of `bayesrule bench`, which its results say all of."""
    for name, result in measured(folder).items():
        if name.startswith("bench/"):
            draw(result, pictures / f"{name}-{PICTURE}")


if __name__ == "__main__":
    draw_benchmarks()
    TARGET.write_text(page(), encoding="utf-8")

"""The searches of noisy natural gradients, and the tables after them, by several processes that share a GPU.

    python benchmarks/nng_in_parallel.py --data DIR --out DIR [--workers 15] [--preset paper] [--only search|tables]

A program of replicas keeps a GPU waiting for Python: many of them fit beside one another, and with CUDA's multi-process
service (`nvidia-cuda-mps-control -d`) they also run at the same time. Every process computes cells, as `bayesrule
reproduce` would, into the folders that this is then done in; the choices of the searches are taken into settings.json
in between, as by `keep_choices`. Cells that are there already are kept.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bayesrule.experiments import EXPERIMENTS
from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import PresetName
from bayesrule.experiments.nng import choices, regression, search
from bayesrule.experiments.nng.data import tables
from bayesrule.experiments.nng.keep_choices import keep
from bayesrule.experiments.nng.search_size import Size
from bayesrule.experiments.running import RESULT, Request, context_of, reproduce
from bayesrule.experiments.tabular_data import Table

SEARCHES, TABLES = ("nng/search", "nng/deep-search"), ("nng/table1", "nng/table4")
LARGEST_FIRST = ("protein", "naval", "kin8nm", "concrete", "energy", "boston", "yacht")


@dataclass(frozen=True)
class Asked:
    """What the command was asked for."""

    preset: PresetName
    data: Path | None
    out: Path

    def request(self, experiment: str) -> Request:
        """As `bayesrule reproduce` would have it."""
        return Request(self.preset, self.out / experiment, self.data)

    def context(self, experiment: str) -> Context:
        """The context of a run."""
        return context_of(EXPERIMENTS[experiment], self.request(experiment))


@dataclass(frozen=True)
class Job:
    """One cell: of which experiment, set and method, and what computes it, given the context."""

    experiment: str
    dataset: str
    method: str
    compute: Callable[[Context, str, str], object]


def search_cell(context: Context, dataset: str, method: str, *, points: list[search.Point], size: Size) -> object:
    return search.measured(context, _table(context, dataset), method, points, size)


def table_cell(context: Context, dataset: str, method: str, *, variants: list[str]) -> object:
    table = _table(context, dataset)
    return regression.measured(context, table, regression.stacked_splits(context, table), method, variants)


def _table(context: Context, dataset: str) -> Table:
    return next(table for table in tables(context) if table.name == dataset)


def searched(asked: Asked, experiment: str, *, finals: bool) -> Iterator[Job]:
    """One job for each β, set and method: all points of the grid, or those that are measured again."""
    context, sized = asked.context(experiment), Size.of_finals if finals else Size.of_search
    sets = tables(context)
    for method in context.methods:
        points = {table.name: search.grid(context, method) for table in sets}
        if finals:
            points = search.points_of_finals(context, method, search.first_stage(context, sets, method))
        for dataset, chosen in points.items():
            for own in search.programs(chosen):
                cell = partial(search_cell, points=own, size=sized(context, dataset))
                yield Job(experiment, dataset, method, cell)


def tabled(asked: Asked, experiment: str) -> Iterator[Job]:
    """One job for each program, set and method."""
    context = asked.context(experiment)
    for table in tables(context):
        for method in context.methods:
            for variants in regression.variants_by_program(context, table.name, method):
                yield Job(experiment, table.name, method, partial(table_cell, variants=variants))


def work(asked: Asked, job: Job) -> str:
    started = time.perf_counter()
    job.compute(asked.context(job.experiment), job.dataset, job.method)
    return f"{job.experiment} {job.dataset} {job.method}: {time.perf_counter() - started:.0f} s"


def all_of(asked: Asked, jobs: Iterable[Job], workers: int) -> None:
    """In new processes, the largest first."""
    ordered = sorted(jobs, key=lambda job: LARGEST_FIRST.index(job.dataset) if job.dataset in LARGEST_FIRST else -1)
    print(f"{len(ordered)} cells", flush=True)
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        for told in pool.imap_unordered(partial(work, asked), ordered, chunksize=1):
            print(told, flush=True)


def collected(asked: Asked, experiment: str) -> None:
    result = reproduce(EXPERIMENTS[experiment], asked.request(experiment))
    for claim in result["claims"]:
        print(json.dumps(claim, ensure_ascii=False), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--preset", default="paper", choices=("smoke", "quick", "paper"))
    parser.add_argument("--workers", type=int, default=15)
    parser.add_argument("--only", choices=("search", "tables"))
    given = parser.parse_args()
    asked = Asked(given.preset, given.data, given.out)
    if given.only != "tables":
        for finals in (False, True):
            jobs = [job for name in SEARCHES for job in searched(asked, name, finals=finals)]
            all_of(asked, jobs, given.workers)
        for name in SEARCHES:
            collected(asked, name)
            if given.preset == "paper":
                print("\n".join(keep(asked.request(name).out / RESULT, choices.FILE)), flush=True)
    if given.only != "search":
        all_of(asked, [job for name in TABLES for job in tabled(asked, name)], given.workers)
        for name in TABLES:
            collected(asked, name)


if __name__ == "__main__":
    main()

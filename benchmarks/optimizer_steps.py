"""What a step of each optimizer that holds a posterior costs beside a step of AdamW, in turns, and their ratio.

    python benchmarks/optimizer_steps.py [--device cuda] [--methods ivon,vogn] [--out results/optimizer-steps]

A multilayer perceptron 784-400-400-10 on random digits at batch 1024. Noisy K-FAC gathers curvature every 10 steps and
inverts it every 100; the others do the same work at every step. Methods take turns, some steps at a time; a round is
as many steps as lie between two inverses, so that its mean is an amortised step. On a CPU, one thread, seconds are
those of the process, which others on the machine do not add to; on a GPU they are the clock's, and steps are done one
by one (eager), with their parts recorded as graphs (capturable), and as one recording (recorded). AdamW is as torch
makes it; recorded, it has its fused form. All ratios are to its eager step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from measured import rows_of, write_result
from timed_optimizers import (
    Step,
    network,
    plain_step,
    posterior_step,
    recorded_plain_step,
    recorded_posterior_step,
    seconds_of,
)

import bayesrule as br
from bayesrule.bench.claims import BOUNDS, claim

STEPS, SLICE, WARM_UP = 100, 10, 20
REFERENCE = "adamw"
METHODS: dict[str, tuple[type[br.optim.PosteriorOptimizer], dict[str, Any]]] = {
    "ivon": (br.optim.IVON, {"lr": 0.1}),
    "vogn": (br.optim.VOGN, {"lr": 1e-3}),
    "ogn": (br.optim.OGN, {"lr": 1e-3}),
    "ktied-von": (br.optim.KTiedVON, {"lr": 0.1}),
    "noisy-adam": (br.optim.NoisyAdam, {"lr": 1e-3}),
    "noisy-kfac": (br.optim.NoisyKFAC, {"lr": 1e-3, "T_stats": 10, "T_inv": 100}),
}
STEPS_OF = {"eager": posterior_step, "capturable": posterior_step, "recorded": recorded_posterior_step}
VARIANTS = {"cpu": ("eager",), "cuda": tuple(STEPS_OF)}
BOUNDED = {"cpu": "eager", "cuda": "capturable"}
"""The variant whose cost `bayesrule.bench` has bounds for, at batch 1024."""


def contenders(methods: list[str], batch: int, device: str) -> dict[tuple[str, str], Step]:
    """By method and variant; AdamW first."""
    x, y = torch.rand(batch, 784, device=device), torch.randint(10, (batch,), device=device)
    net = network(device)
    found = {(REFERENCE, "eager"): plain_step(net, torch.optim.AdamW(net.parameters(), lr=1e-3), x, y)}
    if device == "cuda":
        net = network(device)
        rate = torch.tensor(1e-3, device=device)
        adamw = torch.optim.AdamW(net.parameters(), lr=rate, fused=True, capturable=True)
        found[REFERENCE, "recorded"] = recorded_plain_step(net, adamw, x, y)
    for method in methods:
        for variant in VARIANTS[device]:
            (kind, options), net = METHODS[method], network(device)
            optimizer = kind(
                net, n_data=60_000, likelihood=br.Categorical(), seed=0, capturable=variant != "eager", **options
            )
            found[method, variant] = STEPS_OF[variant](net, optimizer, x, y)
    return found


def round_ms(steps: Mapping[tuple[str, str], Step], device: str, length: int) -> dict[tuple[str, str], float]:
    """The mean step of each over one round, slices in turn."""
    seconds = dict.fromkeys(steps, 0.0)
    for _ in range(length // SLICE):
        for key, step in steps.items():
            seconds[key] += seconds_of(step, SLICE, device)
    return {key: 1000 * spent / length for key, spent in seconds.items()}


def measure(methods: list[str], batch: int, device: str, rounds: int, length: int) -> list[dict[str, Any]]:
    """Milliseconds, and the ratio to AdamW's step round by round."""
    steps = contenders(methods, batch, device)
    for step in steps.values():
        seconds_of(step, max(WARM_UP, length), device)  # past the first steps, at which curvature is due more often
    found = [round_ms(steps, device, length) for _ in range(rounds)]
    rows = []
    for method, variant in steps:
        ratios = [each[method, variant] / each[REFERENCE, "eager"] for each in found]
        values = {
            "milliseconds": statistics.median(each[method, variant] for each in found),
            "ratio": statistics.median(ratios), "ratio low": min(ratios), "ratio high": max(ratios),
        }  # fmt: skip
        rows += rows_of(f"batch {batch}", method, rounds, values, variant)
        print("{:12} {:12} {milliseconds:8.3f} ms  {ratio:5.2f}×  ({ratio low:.2f} … {ratio high:.2f})".format(
            method, variant, **values), flush=True)  # fmt: skip
    return rows


def claims_of(rows: list[dict[str, Any]], batch: int, device: str) -> list[dict[str, str]]:
    """Of the steps whose cost is bounded, those that were measured."""
    ratios = {(row["method"], row["variant"]): row["value"] for row in rows if row["metric"] == "ratio"}
    variant, claims = BOUNDED[device], []
    for bound in (each for each in BOUNDS if each.device == device and each.dataset == f"mlp, batch {batch}"):
        for method in bound.methods:
            if (ratio := ratios.get((method, variant))) is not None:
                words = f"{method}, {variant}: at most {bound.most:g} times AdamW's step"
                claims.append(claim(words, ratio <= bound.most, f"{ratio:.4g}"))
    return claims


def main() -> None:
    parser = argparse.ArgumentParser(description="Steps of posterior optimizers against AdamW's.")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=("cpu", "cuda"))
    parser.add_argument("--methods", default=",".join(METHODS), help=f"of {', '.join(METHODS)}")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=STEPS, help="of a round, a multiple of ten")
    parser.add_argument("--out", type=Path, help="folder for result.json")
    options = parser.parse_args()
    methods = options.methods.split(",")
    if unknown := set(methods) - set(METHODS):
        parser.error(f"unknown methods {sorted(unknown)}; there are {', '.join(METHODS)}")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    started = time.perf_counter()
    rows = measure(methods, options.batch, options.device, options.rounds, options.steps)
    told = f"--device {options.device} --methods {options.methods} --batch {options.batch} --rounds {options.rounds}"
    told += f" --steps {options.steps}"
    write_result(options.out, "optimizer-steps", told, options.device, time.perf_counter() - started, rows,
                  claims=claims_of(rows, options.batch, options.device))  # fmt: skip


if __name__ == "__main__":
    main()

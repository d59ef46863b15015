"""What a step of noisy K-FAC costs beside a step of Adam: medians of interleaved rounds, and their ratio.

    python benchmarks/noisy_kfac_step.py [--rounds 5] [--device cuda] [--out results/noisy-kfac-step]

A multilayer perceptron 784-400-400-10 on random digits, at batch 1024 on one CPU thread or 128 on a GPU. Curvature is
gathered every 10 steps and inverted every 100; a round is 100 steps of each, ten at a time in turn, so that its mean is
the amortised step. Both optimizers run as a user calls them, step by step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from measured import write_result
from timed_optimizers import Step, network, plain_step, posterior_step, seconds_of
from torch import Tensor

import bayesrule as br

STEPS, T_STATS, T_INV = 100, 10, 100
BATCH = {"cpu": 1024, "cuda": 128}


def adam_step(x: Tensor, y: Tensor, device: str) -> Step:
    net = network(device)
    return plain_step(net, torch.optim.Adam(net.parameters(), lr=1e-3), x, y)


def noisy_step(x: Tensor, y: Tensor, device: str, damping: str, mirrored: bool) -> Step:
    net = network(device)
    optimizer = br.optim.NoisyKFAC(
        net,
        n_data=60_000,
        lr=1e-3,
        likelihood=br.Categorical(),
        T_stats=T_STATS,
        T_inv=T_INV,
        damping=damping,
        mirrored=mirrored,
    )
    return posterior_step(net, optimizer, x, y)


def round_ms(contenders: Mapping[str, Callable[[], None]], device: str) -> dict[str, float]:
    """The mean step of each over one round: slices in turn, so whatever slows the machine slows all of them."""
    seconds = dict.fromkeys(contenders, 0.0)
    for _ in range(STEPS // T_STATS):
        for name, step in contenders.items():
            seconds[name] += seconds_of(step, T_STATS, device)
    return {name: 1000 * spent / STEPS for name, spent in seconds.items()}


def measure(device: str, rounds: int) -> list[dict[str, Any]]:
    """Rows of a result: milliseconds, and the ratio to Adam's step round by round."""
    batch = BATCH[device]
    x, y = torch.rand(batch, 784, device=device), torch.randint(10, (batch,), device=device)
    contenders = {"Adam": adam_step(x, y, device)}
    for damping in ("factored", "exact"):
        contenders[f"NoisyKFAC, {damping} damping"] = noisy_step(x, y, device, damping, False)
        contenders[f"NoisyKFAC, {damping} damping, mirrored draws"] = noisy_step(x, y, device, damping, True)
    round_ms(contenders, device)  # past the first steps, at which curvature is due more often
    found = [round_ms(contenders, device) for _ in range(rounds)]
    rows = []
    for name in contenders:
        ratios = [each[name] / each["Adam"] for each in found]
        values = {
            "milliseconds": statistics.median(each[name] for each in found),
            "ratio": statistics.median(ratios), "ratio low": min(ratios), "ratio high": max(ratios),
        }  # fmt: skip
        rows += [{"dataset": f"batch {batch}", "method": name, "variant": "", "metric": metric, "value": value,
                  "n": rounds} for metric, value in values.items()]  # fmt: skip
        print("{:45} {milliseconds:8.2f} ms  {ratio:5.2f}×".format(name, **values), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Noisy K-FAC's amortised step against Adam's.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=tuple(BATCH))
    parser.add_argument("--out", type=Path, help="folder for result.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    started = time.perf_counter()
    rows = measure(options.device, options.rounds)
    options_told = f"--device {options.device} --rounds {options.rounds}"
    seconds = time.perf_counter() - started
    write_result(options.out, "noisy-kfac-step", options_told, options.device, seconds, rows)


if __name__ == "__main__":
    main()

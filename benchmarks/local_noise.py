"""What does local noise cost? One dense layer, forward, backward and KL: 2-tied beside its rivals, in time and memory.

    python benchmarks/local_noise.py [--device cpu] [--widths 256,512] [--batches 128,1024] [--out results/local-noise]

The methods take turns within one run, so that whatever else the machine does reaches all of them alike; a time ratio is
the median over turns of a method's time over the 2-tied layer's in the same turn, with a bootstrap interval.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.bench.memory import peak_bytes
from bayesrule.bench.results import result_of, rows_of, write_result
from bayesrule.bench.timing import bootstrap_interval
from bayesrule.timing import Turn, interleaved, wall_clock

ROOT = Path(__file__).parents[1]
OURS = "2-tied, local noise"
WIDTHS, BATCHES = (256, 512, 1024, 2048, 4096, 8192), (128, 1024)
CPU_WORK = 1 << 33
"""Batch × width² above which a CPU is not asked: a turn would take a minute."""
MIN_TURNS, MAX_TURNS, TURN_SECONDS = 5, 200, 6.0
PRIOR_STD = 0.2
Loss = Callable[[Tensor], Tensor]


class Materialised(nn.Module):
    """A 2-tied layer as one would first write it: ``σ = U Vᵀ`` is formed, contracted, and its logarithm summed."""

    def __init__(self, tied: nn.Module) -> None:
        super().__init__()
        (posterior,) = tied.posteriors().values()
        self.mean = nn.Parameter(posterior.mean.detach().clone())  # laid out as the other layers' weights are
        self.fan_in = nn.Parameter(posterior.covariance.fan_in_factor.detach().log())
        self.fan_out = nn.Parameter(posterior.covariance.fan_out_factor.detach().log())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs and the KL."""
        std, output = self.fan_in.exp() @ self.fan_out.exp().mT, x @ self.mean
        noise = (x.square() @ std.square()).sqrt() * torch.randn_like(output)
        ratio = (std / PRIOR_STD).square()
        kl = 0.5 * (ratio + (self.mean / PRIOR_STD).square() - 1 - ratio.log()).sum()
        return output + noise, kl


def layers(width: int, device: torch.device) -> dict[str, tuple[nn.Module, Loss]]:
    """Every method: its layer, and the loss that a step differentiates."""

    def converted(posterior: br.posteriors.Family, estimator: br.estimators.Estimator) -> tuple[nn.Module, Loss]:
        dense = nn.Linear(width, width, bias=False, device=device)
        bnn = br.bayesianize(dense, posterior, br.Normal(PRIOR_STD), estimator)
        return bnn, lambda x: bnn(x).square().mean() + br.kl(bnn) / width

    tied = converted(br.KTied(2), br.LocalReparam())
    plain, formed = nn.Linear(width, width, bias=False, device=device), Materialised(tied[0])

    def materialised(x: Tensor) -> Tensor:
        output, kl = formed(x)
        return output.square().mean() + kl / width

    return {
        OURS: tied,
        "2-tied, std formed": (formed, materialised),
        "2-tied, weight drawn": converted(br.KTied(2), br.WeightSample()),
        "mean-field, local noise": converted(br.Diagonal(), br.LocalReparam()),
        "mean-field, weight drawn": converted(br.Diagonal(), br.WeightSample()),
        "point estimate": (plain, lambda x: plain(x).square().mean()),
    }


def step(layer: nn.Module, loss: Loss, x: Tensor) -> None:
    """Forward, KL and backward into fresh gradients, of the input too, as inside a network."""
    for parameter in (*layer.parameters(), x):
        parameter.grad = None
    loss(x).backward()


def measure(width: int, batch: int, device: torch.device, budget: float, seed: int) -> list[dict[str, Any]]:
    """The rows of one size."""
    torch.manual_seed(seed)
    methods = layers(width, device)
    x = torch.randn(batch, width, device=device, requires_grad=True)
    for layer, loss in methods.values():  # the first steps allocate and choose kernels
        step(layer, loss, x)
    steps = {name: partial(step, layer, loss, x) for name, (layer, loss) in methods.items()}
    memory = {name: peak_bytes((*layer.parameters(), x), steps[name], device) for name, (layer, _) in methods.items()}
    turns = {name: Turn(work) for name, work in steps.items()}
    times = interleaved(turns, wall_clock(device), rounds=MAX_TURNS, budget=budget, least=MIN_TURNS)
    generator = np.random.default_rng(seed)
    rows = []
    for name in methods:
        ratios = times[name] / times[OURS]
        low, high = bootstrap_interval(ratios, generator)
        values = {
            "milliseconds": 1e3 * float(np.median(times[name])),
            "time ratio": float(np.median(ratios)), "ratio low": low, "ratio high": high,
            "peak MiB": memory[name] / 2**20, "memory ratio": memory[name] / memory[OURS],
        }  # fmt: skip
        rows += rows_of(f"width {width}, batch {batch}", name, len(ratios), values)
    return rows


def bench(arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything `result.json` holds."""
    device, started = torch.device(arguments.device), time.perf_counter()
    rows: list[dict[str, Any]] = []
    skipped = []
    for batch in arguments.batches:
        for width in arguments.widths:
            if device.type == "cpu" and batch * width**2 > CPU_WORK:
                skipped.append(f"width {width}, batch {batch}: too long for a CPU, --device cuda measures it")
                continue
            rows += measure(width, batch, device, arguments.seconds, arguments.seed)
            print(f"width {width}, batch {batch}: {time.perf_counter() - started:.0f} s", file=sys.stderr)
    command = f"python benchmarks/local_noise.py --device {device.type}"
    seconds = time.perf_counter() - started
    return result_of("local-noise", command, device.type, seconds, rows, skipped, seed=arguments.seed)


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and memory of one Bayesian dense layer, by method.")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--widths", type=numbers, default=WIDTHS)
    parser.add_argument("--batches", type=numbers, default=BATCHES)
    parser.add_argument("--seconds", type=float, default=TURN_SECONDS, help="for the turns of one size")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "local-noise", help="folder for result.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    write_result(arguments.out, bench(arguments))


if __name__ == "__main__":
    main()

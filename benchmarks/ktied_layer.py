"""What does a k-tied network's training step cost beside the point estimate's? Time and memory, by the same optimizer.

    python benchmarks/ktied_layer.py [--device cpu|cuda] [--cases NAME,NAME] [--seconds 20] [--compile] [--out DIR]

Both take turns within one run; a ratio is that of the median times, with a bootstrap interval. A step is forward, KL,
backward and a fused Adam. On a GPU a turn is several steps, and a step one recorded graph where the case says so.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from measured import rows_of, write_result
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.bench.memory import peak_bytes
from bayesrule.bench.timing import ratio_of_medians
from bayesrule.cuda_graphs import apart, recording
from bayesrule.timing import Turn, interleaved, wall_clock

POINT, TIED = "point estimate", "2-tied, local noise"
N_TRAIN, PRIOR_STD = 60_000, 0.2
LEAST_TURNS, MOST_TURNS, STEPS_PER_TURN = 7, 1000, 10
Step = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """A network and a batch: the widths of its dense layers, and how a step is run."""

    widths: tuple[int, ...]
    batch: int
    bias: bool = True
    half: bool = False
    graph: bool = False

    def network(self) -> nn.Module:
        """Dense layers with rectifiers between them."""
        layers: list[nn.Module] = []
        for fan_in, fan_out in zip(self.widths[:-1], self.widths[1:], strict=True):
            layers += [nn.Linear(fan_in, fan_out, bias=self.bias), nn.ReLU()]
        return nn.Sequential(*layers[:-1])


PERCEPTRON = (784, 400, 400, 10)
CASES = {
    "cpu": {
        "dense 4096, batch 256": Case((4096, 4096), 256, bias=False),
        "784-400-400-10, batch 128": Case(PERCEPTRON, 128),
        "784-400-400-10, batch 1024": Case(PERCEPTRON, 1024),
    },
    "cuda": {
        "4 × dense 4096, batch 8192, bf16": Case((4096,) * 5, 8192, half=True),
        "4 × dense 4096, batch 1024, bf16": Case((4096,) * 5, 1024, half=True),
        "4 × dense 4096, batch 8192, bf16, graph": Case((4096,) * 5, 8192, half=True, graph=True),
        "4 × dense 4096, batch 1024, bf16, graph": Case((4096,) * 5, 1024, half=True, graph=True),
        "15 × dense 8192, a billion weights, batch 8192, bf16, graph": Case((8192,) * 16, 8192, half=True, graph=True),
        "784-400-400-10, batch 1024, graph": Case(PERCEPTRON, 1024, graph=True),
        "784-400-400-10, batch 1024, bf16, graph": Case(PERCEPTRON, 1024, half=True, graph=True),
    },
}


def training_step(case: Case, method: str, device: str, compiled: bool) -> tuple[Step, Callable[[], list[Tensor]]]:
    """What trains a network by one step, and what it holds between two steps."""
    torch.manual_seed(0)
    with torch.device(device):
        net = case.network()
    if method == TIED:
        net = br.bayesianize(net, br.KTied(2), br.Normal(PRIOR_STD), br.LocalReparam())
    net = net.to(device)
    x = torch.randn(case.batch, case.widths[0], device=device)
    y = torch.randint(0, case.widths[-1], (case.batch,), device=device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, fused=True, capturable=device == "cuda")

    def objective() -> Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=case.half):
            loss = F.cross_entropy(net(x), y)
        return loss + br.kl(net) / N_TRAIN if method == TIED else loss

    loss = torch.compile(objective, fullgraph=True) if compiled else objective

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    def held() -> list[Tensor]:
        state = [tensor for entries in optimizer.state.values() for tensor in entries.values()]
        return [*net.parameters(), *state, x, y]

    return step, held


def recorded(step: Step) -> Step:
    """The step as a CUDA graph."""
    with apart():
        for _ in range(3):
            step()
    graph = torch.cuda.CUDAGraph()
    with recording(graph):
        step()

    def replay(kept: Step = step) -> None:  # the graph knows addresses: what lies there must live as long
        graph.replay()

    return replay


def memory(case: Case, method: str, device: str, compiled: bool) -> int:
    """The most bytes a step takes, with nothing else there; gradients and the optimizer's state included."""
    step, held = training_step(case, method, device, compiled)
    for _ in range(2):
        step()
    return peak_bytes(held(), step, torch.device(device))


def measure(case: Case, device: str, budget: float, compiled: bool) -> tuple[dict[str, dict[str, float]], int]:
    """The metrics of both methods, and over how many turns."""
    peaks = {}
    for method in (POINT, TIED):
        peaks[method] = memory(case, method, device, compiled)
        gc.collect()
    steps = {}
    for method in (POINT, TIED):
        step, _ = training_step(case, method, device, compiled)
        for _ in range(3):
            step()
        steps[method] = recorded(step) if case.graph else step
    turns = {method: Turn(step, STEPS_PER_TURN if device == "cuda" else 1) for method, step in steps.items()}
    clock = wall_clock(torch.device(device))
    taken = interleaved(turns, clock, rounds=MOST_TURNS, budget=budget, least=LEAST_TURNS)
    ratio = ratio_of_medians(taken[TIED], taken[POINT], np.random.default_rng(0))
    metrics = {
        method: {"milliseconds": 1e3 * float(np.median(times)), "peak MiB": peaks[method] / 2**20}
        for method, times in taken.items()
    }
    metrics[TIED] |= {
        "time ratio": ratio.value, "ratio low": ratio.low, "ratio high": ratio.high,
        "memory ratio": peaks[TIED] / peaks[POINT],
    }  # fmt: skip
    return metrics, len(taken[POINT])


def main() -> None:
    parser = argparse.ArgumentParser(description="A k-tied network's training step beside the point estimate's.")
    parser.add_argument("--device", default="cpu", choices=tuple(CASES))
    parser.add_argument("--cases", default="", help="names, separated by ';'; all of the device by default")
    parser.add_argument("--seconds", type=float, default=20.0, help="for the turns of one case")
    parser.add_argument("--compile", action="store_true", help="compile the loss of both")
    parser.add_argument("--out", type=Path, help="folder for result.json")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")
    device, started = arguments.device, time.perf_counter()
    wanted = [name.strip() for name in arguments.cases.split(";") if name.strip()] or list(CASES[device])
    rows = []
    for name in wanted:
        metrics, turns = measure(CASES[device][name], device, arguments.seconds, arguments.compile)
        for method, values in metrics.items():
            rows += rows_of(name, method, turns, values, "compiled" if arguments.compile else "")
            print(
                f"{name:42} {method:20}", *(f"{key} {value:.4g}" for key, value in values.items()), sep="  ", flush=True
            )
        gc.collect()
    options = f"--device {device} --seconds {arguments.seconds:g}" + (" --compile" if arguments.compile else "")
    write_result(arguments.out, "ktied-layer", options, device, time.perf_counter() - started, rows)


if __name__ == "__main__":
    main()

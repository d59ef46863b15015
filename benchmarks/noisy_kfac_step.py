"""What a step of noisy K-FAC costs beside a step of Adam: medians of interleaved rounds, and their ratio.

    python benchmarks/noisy_kfac_step.py [--rounds 3] [--device cuda]

A multilayer perceptron 784-400-400-10 on random digits, at batch 1024 on one CPU thread or 128 on a GPU. Curvature is
gathered every 10 steps and inverted every 100; a round is 100 steps of each, so that its mean is the amortised step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br

STEPS, T_STATS, T_INV = 100, 10, 100


def network(device: str) -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10)
    return nn.Sequential(*layers).to(device)


def adam_step(x: Tensor, y: Tensor, device: str) -> Callable[[], None]:
    net = network(device)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def noisy_step(x: Tensor, y: Tensor, device: str, damping: str, mirrored: bool) -> Callable[[], None]:
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

    def step() -> None:
        with optimizer.sampled_params():
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def round_ms(step: Callable[[], None], device: str) -> float:
    """The mean step of one round."""
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(STEPS):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start) / STEPS


def main() -> None:
    parser = argparse.ArgumentParser(description="Noisy K-FAC's amortised step against Adam's.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    batch = 128 if options.device == "cuda" else 1024
    x, y = torch.rand(batch, 784, device=options.device), torch.randint(10, (batch,), device=options.device)
    contenders = {
        "Adam": adam_step(x, y, options.device),
    }
    for damping in ("factored", "exact"):
        contenders[f"NoisyKFAC {damping}"] = noisy_step(x, y, options.device, damping, False)
        contenders[f"NoisyKFAC {damping}, mirrored"] = noisy_step(x, y, options.device, damping, True)
    for step in contenders.values():  # past the first steps, at which curvature is due more often
        round_ms(step, options.device)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.rounds):
        for name, step in contenders.items():
            times[name].append(round_ms(step, options.device))
    base = statistics.median(times["Adam"])
    for name, found in times.items():
        median = statistics.median(found)
        print(f"{name:30} {median:8.2f} ms  {median / base:5.2f}×  ({options.device}, batch {batch})")


if __name__ == "__main__":
    main()

"""Does a matrix normal posterior cost at most twice a diagonal one's training step?

    python benchmarks/matrix_normal_step.py [--device cuda] [--rounds 30] [--networks fc,cnn] [--estimators local]
        [--out results/matrix-normal-step]

The paper claims a factor of at most 2 in iteration time. Every network of the paper is trained with both posteriors; a
burst of steps of one is followed by a burst of the other, so whatever slows the machine slows both. A round gives a
ratio; their median is reported with an interval that holds it with 95 % confidence.

Two estimators are timed, each against itself with a diagonal posterior. With *local* noise, as in the paper and the
experiments, an output row costs m·n products for the mean; the noise costs another m·n for a diagonal posterior and
m²/2 + n² for a matrix normal. A dense layer's m is about its n. A 3×3 convolution of c to c channels has m = 9c rows,
and its noise four to five times the products of a diagonal one's, 2.8 times in all. *Auto*, the library's default,
draws the weight once for the batch where that costs less: each row then costs m·n, the draw m²n.

The paper states no batch size. The dense network takes 256 examples, as in the experiments, convolutional ones take 64
on a CPU; on a CUDA device all take 512.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import torch
from measured import rows_of, write_result

from bayesrule.bench.timing import median_interval
from bayesrule.estimators import Auto, LocalReparam
from bayesrule.experiments.mn.recipe import PRIORS, Recipe, family
from bayesrule.likelihoods import Categorical
from bayesrule.nn import NegativeELBO, bayesianize
from bayesrule.train import CapturedStep

Case = tuple[str, str, tuple[int, ...]]
CASES: tuple[Case, ...] = (
    ("fc", "ard", (1, 28, 28)), ("cnn", "ard", (1, 28, 28)), ("vgg", "group", (3, 32, 32)),
    ("vgg4x", "group", (3, 32, 32)),
)  # fmt: skip
ESTIMATORS = {"local": LocalReparam(), "auto": Auto()}
CPU_BATCH, DENSE_CPU_BATCH, CUDA_BATCH = 64, 256, 512
BURST = {"cpu": 1, "cuda": 20}
WARM_UP = 5
CLAIMED = 2.0


def batch_size(network: str, device: torch.device) -> int:
    """Examples in a step."""
    if device.type == "cuda":
        return CUDA_BATCH
    return DENSE_CPU_BATCH if network == "fc" else CPU_BATCH


def stepper(case: Case, estimator: str, method: str, device: torch.device) -> Callable[[], None]:
    """One training step on a fixed batch; on a CUDA device as a recorded graph, as the experiments train."""
    network, prior, shape = case
    recipe, generator = Recipe(network, "none", method, prior, 1), torch.Generator().manual_seed(0)
    bnn = bayesianize(
        recipe.start(generator), family(method, recipe.init_std), PRIORS[prior], ESTIMATORS[estimator], Categorical(),
        bias="point", generator=generator,
    ).to(device)  # fmt: skip
    size = batch_size(network, device)
    x, y = torch.randn(size, *shape, device=device), torch.randint(10, (size,), device=device)
    objective = NegativeELBO(bnn, 50_000)
    parameters = [parameter for parameter in bnn.parameters() if parameter.requires_grad]
    if device.type == "cuda":
        rate = torch.tensor(1e-3, device=device)
        captured = CapturedStep(objective, torch.optim.Adam(parameters, lr=rate, capturable=True, fused=True))

        def replay() -> None:
            captured((x,), y, 0)

        return replay
    optimizer = torch.optim.Adam(parameters, lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        objective(bnn(x), y).backward()
        optimizer.step()

    return step


def burst(step: Callable[[], None], device: torch.device) -> float:
    """Milliseconds a step."""
    count = BURST[device.type]
    started = time.perf_counter()
    for _ in range(count):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return 1e3 * (time.perf_counter() - started) / count


def measure(case: Case, estimator: str, rounds: int, device: torch.device) -> dict[str, Any]:
    """One network: milliseconds of both, and their ratio."""
    diag, mn = (stepper(case, estimator, method, device) for method in ("diag", "mn"))
    for step in (diag, mn):
        for _ in range(WARM_UP):
            step()
        burst(step, device)
    times = [(burst(diag, device), burst(mn, device)) for _ in range(rounds)]
    ratio, low, high = median_interval([second / first for first, second in times])
    return {
        "network": case[0], "prior": case[1], "estimator": estimator, "batch": batch_size(case[0], device),
        "rounds": rounds,
        "diag_ms": statistics.median(first for first, _ in times),
        "mn_ms": statistics.median(second for _, second in times),
        "ratio": ratio, "ratio_low": low, "ratio_high": high, "at_most_claimed": high <= CLAIMED,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--networks", default=",".join(case[0] for case in CASES))
    parser.add_argument("--estimators", default=",".join(ESTIMATORS))
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    device = torch.device(asked.device)
    torch.manual_seed(0)
    started, rows = time.perf_counter(), []
    for case, estimator in product(CASES, asked.estimators.split(",")):
        if case[0] in asked.networks.split(","):
            found = measure(case, estimator, asked.rounds, device)
            print("{network}, {estimator}, batches of {batch}: DIAG {diag_ms:.2f} ms, MN {mn_ms:.2f} ms, "
                  "ratio {ratio:.2f} ({ratio_low:.2f} to {ratio_high:.2f})".format(**found), flush=True)  # fmt: skip
            rows += as_rows(found)
    options = f"--device {asked.device} --rounds {asked.rounds}"
    write_result(asked.out, "matrix-normal-step", options, device.type, time.perf_counter() - started, rows)


def as_rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """For the results page."""
    dataset = f"{found['network']}, {found['prior']}, batch {found['batch']}"
    metrics = ("diag_ms", "mn_ms", "ratio", "ratio_low", "ratio_high")
    return rows_of(dataset, f"{found['estimator']} noise", found["rounds"], {name: found[name] for name in metrics})


if __name__ == "__main__":
    main()

"""Does `Auto` take the faster estimator? One layer, forward, KL and backward, by both; and which of them it takes.

    python benchmarks/estimator_choice.py [--device cpu] [--families 2-tied] [--out results/estimator-choice]

The prices in `bayesrule/estimators/prices.py` and the counts of passes in `draw_work` and `projection_work` were fitted
to the shapes of `TUNED`; those of `HELD_OUT` had no part in that. On a CPU a time is what one thread takes of a
processor, so other programs hardly matter. ``auto / faster`` is 1 where the choice was right, and
near 1 where it does not matter.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measured import rows_of, write_result
from torch import Tensor, nn

import bayesrule as br
from bayesrule.bench.timing import ratio_of_medians
from bayesrule.timing import Turn, interleaved, processor_clock, wall_clock

ROOT = Path(__file__).parents[1]
FAMILIES = {
    "mean-field": br.Diagonal(), "2-tied": br.KTied(2), "matrix normal": br.MatrixNormal(),
    "matrix normal and diagonal": br.MatrixNormalDiagonal("kronecker"),
}  # fmt: skip
ESTIMATORS = {"local": br.LocalReparam(), "drawn": br.WeightSample()}
LOCAL, DRAWN = ESTIMATORS
Shape = tuple[int, ...]
"""Fan-in, fan-out and batch of a dense layer; of a convolution channels in and out, kernel, side of images, batch."""
TUNED: tuple[Shape, ...] = (
    *product((64,), (64,), (32, 128, 1024)), *product((256,), (256,), (32, 128, 1024)),
    *product((1024,), (1024,), (32, 128, 1024)), *product((4096,), (4096,), (32, 128)),
    (784, 400, 128), (1500, 1500, 200),
    (1, 32, 5, 28, 32), (32, 64, 5, 14, 32), (64, 64, 3, 16, 32), (64, 128, 3, 8, 16), (256, 256, 3, 4, 8),
    (512, 64, 3, 3, 4),
)  # fmt: skip
HELD_OUT: tuple[Shape, ...] = (
    (784, 400, 16), (784, 400, 400), (400, 400, 128), (400, 400, 300), (512, 512, 200),
    (2048, 512, 256), (512, 2048, 256), (784, 128, 128), (128, 10, 32), (300, 10, 256), (100, 1000, 64),
    (1500, 1500, 512), (784, 300, 256), (300, 300, 256),
    (1, 10, 3, 28, 64), (10, 20, 3, 14, 64), (40, 80, 3, 4, 64), (20, 20, 3, 32, 16), (64, 64, 1, 8, 32),
)  # fmt: skip
MOST_WORK = {"matrix normal": 1 << 31, "matrix normal and diagonal": 1 << 27}
"""Fan-in × fan-out × the larger of them, above which drawing such a weight takes seconds: not asked."""
LEAST_TURNS, MOST_TURNS, WARM_UPS = 5, 200, 2


def layer_of(shape: Shape) -> tuple[nn.Module, br.contractions.Contraction, Shape]:
    """A layer without a bias, how it contracts, and the shape of its input."""
    if len(shape) == 3:
        fan_in, fan_out, batch = shape
        dense = nn.Linear(fan_in, fan_out, bias=False)
        return dense, br.contractions.Linear.of(dense), (batch, fan_in)
    channels, fan_out, kernel, side, batch = shape
    convolution = nn.Conv2d(channels, fan_out, kernel, padding=kernel // 2, bias=False)
    return convolution, br.contractions.Conv.of(convolution), (batch, channels, side, side)


def words_for(shape: Shape) -> str:
    """What the table calls it."""
    if len(shape) == 3:
        return "dense {} × {}, batch {}".format(*shape)
    return "{} → {} channels, {}×{} on {side}×{side}, batch {}".format(*shape[:3], shape[2], shape[4], side=shape[3])


def is_asked(shape: Shape, family: str) -> bool:
    """Whether a step takes less than seconds."""
    _, contraction, _ = layer_of(shape)
    fan_in, fan_out = contraction.view.fan_in, contraction.view.fan_out
    return family not in MOST_WORK or fan_in * fan_out * max(fan_in, fan_out) <= MOST_WORK[family]


def step_of(family: str, estimator: str, shape: Shape, x: Tensor) -> Callable[[], None]:
    """Forward, KL and backward into fresh gradients, of the input too, as inside a network."""
    layer, _, _ = layer_of(shape)
    bnn = br.bayesianize(layer, FAMILIES[family], br.Normal(0.2), ESTIMATORS[estimator]).to(x.device)

    def step() -> None:
        for parameter in (*bnn.parameters(), x):
            parameter.grad = None
        (bnn(x).square().mean() + br.kl(bnn) / len(x)).backward()

    return step


def chosen(family: str, shape: Shape, x: Tensor) -> str:
    """What `Auto` takes."""
    layer, contraction, _ = layer_of(shape)
    (posterior,) = br.posteriors(br.bayesianize(layer, FAMILIES[family])).values()
    return LOCAL if isinstance(br.Auto().choose(posterior, contraction, x), br.LocalReparam) else DRAWN


def measure(shape: Shape, family: str, variant: str, device: torch.device, budget: float) -> list[dict[str, Any]]:
    """The rows of one layer with one posterior."""
    torch.manual_seed(0)
    x = torch.randn(*layer_of(shape)[2], device=device, requires_grad=True)
    turns = {name: Turn(step_of(family, name, shape, x)) for name in ESTIMATORS}
    clock = processor_clock if device.type == "cpu" else wall_clock(device)
    times = interleaved(turns, clock, rounds=MOST_TURNS, budget=budget, least=LEAST_TURNS, warm_ups=WARM_UPS)
    medians, ratio = (
        {name: float(np.median(taken)) for name, taken in times.items()},
        ratio_of_medians(times[LOCAL], times[DRAWN], np.random.default_rng(0)),
    )
    choice = chosen(family, shape, x)
    values = {
        "local ms": 1e3 * medians[LOCAL], "drawn ms": 1e3 * medians[DRAWN],
        "local / drawn": ratio.value, "ratio low": ratio.low, "ratio high": ratio.high,
        "auto is local": float(choice == LOCAL), "auto / faster": medians[choice] / min(medians.values()),
    }  # fmt: skip
    return rows_of(words_for(shape), family, len(times[LOCAL]), values, variant)


def bench(
    shapes: Iterable[tuple[str, Shape]], families: Iterable[str], measured: Callable[..., Any]
) -> list[dict[str, Any]]:
    """All rows, layer by layer."""
    rows: list[dict[str, Any]] = []
    for (variant, shape), family in product(shapes, families):
        if is_asked(shape, family):
            rows += (found := measured(shape, family, variant))
            said = {row["metric"]: row["value"] for row in found}
            print(f"{words_for(shape)}, {family}: local / drawn {said['local / drawn']:.2f}, "
                  f"auto / faster {said['auto / faster']:.2f}", file=sys.stderr)  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--seconds", type=float, default=1.5, help="for the turns of one layer and posterior")
    parser.add_argument("--out", type=Path, help="folder for result.json")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    started, device = time.perf_counter(), torch.device(asked.device)
    shapes = [*(("tuned on", shape) for shape in TUNED), *(("held out", shape) for shape in HELD_OUT)]
    rows = bench(shapes, asked.families.split(","), partial(measure, device=device, budget=asked.seconds))
    seconds = time.perf_counter() - started
    write_result(asked.out, "estimator-choice", f"--device {device.type}", device.type, seconds, rows)
    worst = sorted(row["value"] for row in rows if row["metric"] == "auto / faster")
    print(
        f"Auto is at worst {worst[-1]:.2f} times as slow as the faster one, over {len(worst)} layers", file=sys.stderr
    )


if __name__ == "__main__":
    main()

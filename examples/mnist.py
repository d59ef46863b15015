"""MNIST, 784-400-400-10, with mean-field and 2-tied posteriors, through the public interface.

    python examples/mnist.py [--data DIR] [--epochs 10] [--seed 0] [--out results/mnist-example]

DIR holds the four IDX files under MNIST/raw, plain or .gz.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import nn

import bayesrule as br
from bayesrule import metrics
from bayesrule.data import mnist, symmetric_interval
from bayesrule.nn import BayesianModule

FAMILIES = {"mean-field": br.Diagonal(init_std=0.01), "2-tied": br.KTied(2, init_std=0.01)}


def load(data: str | None) -> tuple[torch.Tensor, ...]:
    digits = mnist(data).map_x(lambda images: symmetric_interval(images).flatten(1))
    return digits.train_x, digits.train_y, digits.test_x, digits.test_y


def train(family: object, x: torch.Tensor, y: torch.Tensor, epochs: int, seed: int) -> BayesianModule:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.kaiming_normal_(layer.weight)
            nn.init.zeros_(layer.bias)
    bnn = br.bayesianize(net, family, br.Normal(0.2), br.LocalReparam(), br.Categorical())
    batch = 256
    steps = len(x) // batch
    # The k-tied paper's annealing: after 10 epochs the KL's weight is 0.115, far from 1, so this is no ELBO optimum.
    objective = br.NegativeELBO(bnn, n_data=len(x), annealing=br.annealing.LinearPerBatch(slope=5e-5))
    optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs * steps)
    for epoch in range(epochs):
        order = torch.randperm(len(x))
        for step in range(steps):
            rows = order[step * batch : (step + 1) * batch]
            loss = objective(bnn(x[rows]), y[rows], step=epoch * steps + step)
            optimizer.zero_grad()
            loss.total.backward()
            optimizer.step()
            schedule.step()
        print(f"epoch {epoch + 1}: nll {loss.nll.item():.4f}, KL/N {loss.kl.item() / len(x):.4f}", flush=True)
    return bnn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/mnist-example"))
    arguments = parser.parse_args()
    x, y, x_test, y_test = load(arguments.data)
    started, rows = time.perf_counter(), []
    for name, family in FAMILIES.items():
        bnn = train(family, x, y, arguments.epochs, arguments.seed)
        predictive = br.predict(bnn, x_test, samples=100)
        scores = {
            "test_accuracy": metrics.accuracy(predictive.probs, y_test),
            "test_nll": -predictive.log_prob(y_test).mean(),
            "test_ece": metrics.expected_calibration_error(predictive.probs, y_test),
            "kl_per_example": br.kl(bnn).detach() / len(x),
            "numbers": bnn.conversion.numbers,
        }
        rows += [{"dataset": "mnist", "method": name, "metric": key, "value": float(v)} for key, v in scores.items()]
        print(name, {key: round(float(value), 4) for key, value in scores.items()}, flush=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    arguments.out.mkdir(parents=True, exist_ok=True)
    result = {
        "experiment": "mnist-example", "preset": "quick", "command": " ".join(["python", *sys.argv]), "commit": commit,
        "versions": {"torch": torch.__version__, "bayesrule": br.__version__}, "seed": arguments.seed, "device": "cpu",
        "wall_seconds": round(time.perf_counter() - started, 1), "rows": rows,
    }  # fmt: skip
    (arguments.out / "result.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

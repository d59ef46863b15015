"""What a step of twenty replicas costs: noisy K-FAC beside Bayes by backprop, and beside twenty runs one by one.

    python benchmarks/replicas.py [--rounds 5]
    python benchmarks/replicas.py --device cuda

Boston's shapes: 20 splits of 455 rows with 13 features, 50 hidden units, batches of 10, on one CPU thread. A round is
two epochs of each, one after the other, so that whatever else the machine does is shared; medians over rounds of
processor time and of the ratios within a round. On a CUDA device: what a captured step costs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.likelihoods import GaussianGammaNoise
from bayesrule.optim.noisy_adam import NoisyAdamRule
from bayesrule.optim.noisy_kfac import NoisyKFACRule
from bayesrule.train.replicas import Replicas
from bayesrule.train.replicas_backprop import BayesByBackpropRule

SPLITS, ROWS, FEATURES, HIDDEN, BATCH, T_INV = 20, 455, 13, 50, 10, 20
EPOCHS, STEPS = 2, 46
PAPER_STEPS = 1000 * STEPS


def data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    x = torch.randn(SPLITS, ROWS, FEATURES)
    return x, torch.tanh(x.sum(-1, keepdim=True)) + 0.3 * torch.randn(SPLITS, ROWS, 1)


def batched(rule: NoisyKFACRule | BayesByBackpropRule, splits: int) -> Callable[[], None]:
    x, y = data()
    replicas = Replicas(x[:splits], y[:splits], rule, hidden=(HIDDEN,), seeds=range(splits), T_inv=T_INV, quiet_steps=0)
    return lambda: replicas.train(EPOCHS)


def optimizer() -> Callable[[], None]:
    """One run by the optimizer itself; twenty cost twenty times that."""
    x, y = (each[0] for each in data())
    net = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
    opt = br.optim.NoisyKFAC(net, n_data=ROWS, likelihood=GaussianGammaNoise(), T_inv=T_INV)

    def train() -> None:
        for _ in range(EPOCHS):
            for rows in torch.randperm(ROWS).split(BATCH):
                with opt.sampled_params():
                    opt.zero_grad()
                    opt.nll(net(x[rows]), y[rows]).backward()
                opt.step()

    return train


def on_device(device: str) -> None:
    """Steps as graphs, once they are recorded."""
    rules = {"noisy K-FAC": NoisyKFACRule(), "noisy Adam": NoisyAdamRule(), "Bayes by backprop": BayesByBackpropRule()}
    for name, rule in rules.items():
        for copies in (1, 5, 25, 50):
            x, y = (each.repeat(copies, 1, 1).to(device) for each in data())
            replicas = Replicas(x, y, rule, hidden=(HIDDEN,), seeds=range(len(x)), T_inv=T_INV, quiet_steps=0)
            replicas.train(EPOCHS)
            torch.cuda.synchronize()
            started = time.perf_counter()
            replicas.train(10 * EPOCHS)
            torch.cuda.synchronize()
            each = 1000 * (time.perf_counter() - started) / (10 * EPOCHS * STEPS)
            print(f"{name}, {len(x):5} replicas {each:9.3f} ms a step")


def milliseconds(train: Callable[[], None]) -> float:
    started = time.process_time()
    train()
    return 1000 * (time.process_time() - started) / (EPOCHS * STEPS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    if arguments.device != "cpu":
        on_device(arguments.device)
        return
    rounds = arguments.rounds
    torch.set_num_threads(1)
    runs = {
        "noisy K-FAC, 20 replicas": batched(NoisyKFACRule(), SPLITS),
        "Bayes by backprop, 20 replicas": batched(BayesByBackpropRule(), SPLITS),
        "noisy K-FAC, 1 replica": batched(NoisyKFACRule(), 1),
        "noisy K-FAC, the optimizer": optimizer(),
    }
    for train in runs.values():
        train()
    times = [{name: milliseconds(train) for name, train in runs.items()} for _ in range(rounds)]
    for name in runs:
        print(f"{name:32} {statistics.median(each[name] for each in times):7.3f} ms a step")
    kfac, bbb, alone, by_optimizer = runs
    whole = statistics.median(each[kfac] for each in times) * PAPER_STEPS / 1000
    print(f"20 splits, 1000 epochs           {whole:7.1f} s (under 120)")
    for label, top, bottom, factor, bound in (
        ("noisy K-FAC over BBB", kfac, bbb, 1, "at most 2.5"),
        ("twenty optimizers over replicas", by_optimizer, kfac, SPLITS, "at least 10"),
        ("twenty programs of one replica", alone, kfac, SPLITS, ""),
    ):
        ratio = statistics.median(factor * each[top] / each[bottom] for each in times)
        print(f"{label:32} {ratio:7.2f} {f'({bound})' if bound else ''}")


if __name__ == "__main__":
    main()

"""What the tests of optimizers on a GPU share."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import bayesrule as br
from clipped_run import clipped_run


def digits(device: str = "cuda") -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(4, (64,), generator=generator)
    x = torch.randn(64, 1, 8, 8, generator=generator) + y[:, None, None, None]
    return x.to(device), y.to(device)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(54, 4)
    ).cuda()


CAPTURED = ["NoisyKFAC", "NoisyEKFAC", "NoisyAdam", "VOGN", "IVON", "KTiedVON"]


def perceptron(name: str, capturable: bool, seed: int = 1, **options: bool) -> br.optim.PosteriorOptimizer:
    """In float64, with steps of every kind: curvature and inverses due, and neither."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.LayerNorm(20), nn.ReLU(), nn.Linear(20, 4)).double().cuda()
    intervals = {} if name == "BayesBiNN" else {"T_inv": 10}
    intervals |= {} if name in ("IVON", "KTiedVON", "BayesBiNN") else {"T_stats": 5}
    kind = getattr(br.optim, name)
    return kind(
        net,
        n_data=1000,
        likelihood=br.Categorical(),
        seed=seed,
        capturable=capturable,
        **intervals,
        **options,
    )


def run(optimizer: br.optim.PosteriorOptimizer, steps: int) -> list[float]:
    x, y = digits()
    return clipped_run(
        optimizer, lambda: F.cross_entropy(optimizer.model(x.double()), y), steps, decay=0.95, most=1.0
    )  # fmt: skip


def all_values(optimizer: br.optim.PosteriorOptimizer) -> list[torch.Tensor]:
    variances = [posterior.variance for posterior in optimizer.posteriors().values()]
    return [*(p.detach().clone() for p in optimizer.model.parameters()), *variances]

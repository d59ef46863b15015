"""What the tests of whole recorded steps share: steps done one by one, batches that differ, comparisons."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.curvature import fisher
from bayesrule.likelihoods import support
from launch_tape import TapeRecorder, tape_recorders
from optim_problems import EVERY, make, network, regression, values

all_kinds = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
SOME = [br.optim.NoisyKFAC, br.optim.NoisyAdam, br.optim.VOGN, br.optim.IVON, br.optim.KTiedVON, br.optim.BayesBiNN]
some = pytest.mark.parametrize("kind", SOME, ids=lambda kind: kind.__name__)
Optimizer = br.optim.PosteriorOptimizer


def tapes_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> list[TapeRecorder]:
    """Tapes in place of graphs, and no looks at values, which are for tensors on a CPU."""
    for module in (support, fisher):
        monkeypatch.setattr(module, "readable_values", lambda tensor: None)
    return tape_recorders(monkeypatch)


def loss_of(optimizer: Optimizer) -> Any:
    return lambda x, y: optimizer.nll(optimizer.model(x), y)


def one_by_one(optimizer: Optimizer) -> Any:
    """What a recorded step is to do."""

    def step(*batch: torch.Tensor) -> torch.Tensor:
        with optimizer.sampled_params():
            optimizer.zero_grad()
            value = loss_of(optimizer)(*batch)
            value.backward()
        optimizer.step()
        return value.detach()

    return step


def run(optimizer: Optimizer, step: Any, steps: int, rows: int = 8) -> list[float]:
    """Batches that differ, and a step size that decays."""
    x, y = regression()
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    found = []
    for count in range(steps):
        chosen = (torch.arange(rows) * 3 + 5 * count) % len(x)
        found.append(step(x[chosen], y[chosen]))
        scheduler.step()
    return [value.item() for value in found]


def pair(kind: type, *widths: int, **options: Any) -> tuple[Optimizer, Optimizer]:
    return tuple(make(kind, network(*(widths or (3, 4, 4, 2))), capturable=flag, **options) for flag in (False, True))


def close(plain: Optimizer, captured: Optimizer) -> None:
    for left, right in zip(values(plain), values(captured), strict=True):
        torch.testing.assert_close(left, right, rtol=1e-11, atol=1e-13)
    assert plain.limited_steps == captured.limited_steps
    assert plain.steps == captured.steps


class TwoHeads(nn.Module):
    """Of which one is not called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head, self.idle = (nn.Linear(*each).double() for each in ((3, 5), (5, 2), (5, 2)))
        self.register_buffer("shift", torch.zeros((), dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x + self.shift).tanh())


def two_headed(kind: type, capturable: bool, **options: Any) -> Optimizer:
    return kind(TwoHeads(), n_data=50, likelihood=br.Gaussian(0.5).double(), capturable=capturable, seed=3, **options)

"""The memory of a training step, measured by the system in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

SIZE, BATCH = 12_000, 64

STEP = """
import torch
from torch import nn

import bayesrule as br

torch.set_num_threads(1)


def resident(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def step(bnn, batch):
    size = bnn.module.in_features
    (bnn(torch.randn(batch, size)).square().mean() + br.kl(bnn)).backward()


def converted(size):
    with torch.no_grad():
        return br.bayesianize(nn.Linear(size, size, bias=False), br.KTied(2), estimator=br.LocalReparam())


step(converted(32), 4)  # what libraries load and allocate once
bnn = converted({size})
with open("/proc/self/clear_refs", "w") as clear:
    clear.write("5")
before = resident("VmRSS")
step(bnn, {batch})
print((resident("VmHWM") - before) / (4 * {size} ** 2))
assert all(parameter.grad is not None for parameter in bnn.parameters())
"""


@pytest.mark.slow
def test_a_k_tied_step_adds_less_than_two_and_a_half_weight_matrices() -> None:
    """Forward, KL and backward by local noise: the gradient of the mean is one; neither S nor a draw of W is formed."""
    script = STEP.format(size=SIZE, batch=BATCH)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    matrices = float(done.stdout)
    assert 1.0 <= matrices < 2.4, matrices

"""The memory of a training step, measured by the system in a process of its own; and what keeps it small."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor

from bayesrule.linalg import sum_of_squares

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
def test_a_k_tied_step_adds_less_than_1_6_weight_matrices() -> None:
    """Forward, KL and backward by local noise: the gradient of the mean is one; neither S nor a draw of W is formed."""
    script = STEP.format(size=SIZE, batch=BATCH)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    matrices = float(done.stdout)
    assert 1.0 <= matrices < 1.6, matrices


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64).requires_grad_()


@pytest.mark.parametrize("centre", [(), (4,), (3, 4), (2, 1, 1)])
@pytest.mark.parametrize("batch", [(), (2,)])
def test_squares_about_a_centre_have_the_derivatives_of_the_formula(batch: tuple[int], centre: tuple[int, ...]) -> None:
    inputs = random(*batch, 3, 4), random(*centre)
    want = (inputs[0] - inputs[1]).square().sum((-2, -1))
    torch.testing.assert_close(sum_of_squares(inputs[0], 2, inputs[1]), want, rtol=1e-12, atol=0)
    assert torch.autograd.gradcheck(lambda x, c: sum_of_squares(x, 2, c), inputs)
    assert torch.autograd.gradgradcheck(lambda x, c: sum_of_squares(x, 2, c), inputs)


def test_squares_of_a_parameter_in_another_layout_reach_it_without_a_view() -> None:
    """A gradient of its own can be added to in place; one that is a view of another tensor cannot."""
    weight, other = torch.nn.Parameter(random(3, 5).detach()), random(3, 5)
    arrived: list[Tensor] = []
    weight.register_hook(arrived.append)
    sum_of_squares(weight.movedim(0, -1), 2, torch.ones((), dtype=torch.float64)).backward()
    assert not arrived[0]._is_view()
    torch.testing.assert_close(weight.grad, 2 * (weight - 1), rtol=1e-12, atol=1e-12)
    views = {weight[:2]: weight, weight.expand(2, 3, 5): weight, (2 * other).T: other}  # less, more, no parameter
    for view, leaf in views.items():
        (got,) = torch.autograd.grad(sum_of_squares(view, view.ndim), leaf, retain_graph=True)
        (want,) = torch.autograd.grad(view.square().sum(), leaf)
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)

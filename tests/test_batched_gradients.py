"""Several gradients asked for at once (`is_grads_batched`): row by row those that are asked for one by one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.posteriors import Family
from kernel_checks import assert_relative

FAMILIES = [br.KTied(2, 0.1), br.Diagonal(init_std=0.1), br.MatrixNormal()]
ESTIMATORS = [br.WeightSample(), br.LocalReparam(), br.Auto()]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=str)
@pytest.mark.parametrize("width", [8, 400])  # of few entries, and of so many that a KL shares a layer's node
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda each: type(each).__name__)
def test_outputs_and_kl(
    family: Family, estimator: br.estimators.Estimator, width: int, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    layers = nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Linear(width, 3)
    bnn = br.bayesianize(nn.Sequential(*layers), family, br.Normal(0.5), estimator=estimator).to(dtype)
    outputs = torch.cat([bnn(torch.randn(4, 8, dtype=dtype)).sum(0), br.kl(bnn)[None]])
    parameters, unit = list(bnn.parameters()), torch.eye(4, dtype=dtype)
    together = torch.autograd.grad(outputs, parameters, unit, is_grads_batched=True, retain_graph=True)
    rows = [torch.autograd.grad(outputs, parameters, row, retain_graph=True) for row in unit]
    for several, one_by_one in zip(together, zip(*rows, strict=True), strict=True):
        assert_relative(several, torch.stack(one_by_one).double(), tolerance)

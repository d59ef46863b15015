"""Shared by the tests of the learning rule: one step of it, and a data set."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from torch import Tensor

from bayesrule.expfam import ExponentialFamily, Natural, learning_rule

PRECISION = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.1], [0.0, 0.1, 3.0]]).double()


def one_step(family: ExponentialFamily, natural: Natural, gradient: Natural, step_size: float) -> Natural:
    """The rule, applied to a tree of one family."""
    return learning_rule.step({"q": family}, {"q": natural}, {"q": gradient}, step_size)["q"]


@cache
def regression() -> tuple[Tensor, Tensor]:
    """Inputs (20 × 3, correlated) and targets."""
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(20, 3)) @ rng.normal(size=(3, 3))
    return torch.as_tensor(inputs), torch.as_tensor(inputs @ [1.0, -2.0, 0.5] + 0.3 * rng.normal(size=20))


def gamma_log_moments(shape: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
    """E[log θ] and E[θ]."""
    return torch.digamma(shape) - rate.log(), shape / rate

"""Small models to compress, and numpy's truncation of their standard deviations."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

import bayesrule as br
from bayesrule.nn import BayesianModule
from bayesrule.posteriors import Family

WIDE = br.Diagonal(init_std=0.05, init_spread=0.7)
"""Standard deviations spread so widely that every truncation is lossy, and some leave negative entries."""


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).double()


def converted(net: nn.Module | None = None, posterior: Family = WIDE, **options: Any) -> BayesianModule:
    return br.bayesianize(mlp() if net is None else net, posterior, br.Normal(0.3), **options)


def std(bnn: BayesianModule, name: str) -> np.ndarray:
    return bnn.posteriors()[name].stddev.detach().numpy()


def truncated(matrix: np.ndarray, rank: int) -> np.ndarray:
    left, singular, right = np.linalg.svd(matrix)
    return (left[:, :rank] * singular[:rank]) @ right[:rank]


def clipped(matrix: np.ndarray, rank: int, floor: float) -> np.ndarray:
    return np.maximum(truncated(matrix, rank), floor)

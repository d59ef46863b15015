"""The marginal likelihood of a Laplace approximation as a function of the prior's precision."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

LEAST, MOST = -30.0, 30.0
"""Natural logarithms between which the precision is sought."""
HALVINGS = 100


def log_evidence(spectrum: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """``−½[Σ log(e + δ) − d log δ + δ‖w‖²]``: what a group adds to the log-likelihood."""
    occam = torch.log1p(spectrum / precision).sum()
    return -0.5 * (occam + precision * mean.square().sum())


def best_precision(spectra: Sequence[Tensor], means: Sequence[Tensor]) -> Tensor:
    """The precision of greatest evidence: the root of ``Σ e/(e + δ) = δ‖w‖²``   [MacKay 1992, Eq. 4.9].

    The left side, the number of well-determined weights, falls with δ and the right side rises: there is one root, and
    bisection finds it.
    """
    values = torch.cat([each.flatten().double() for each in spectra])
    square = torch.stack([each.double().square().sum() for each in means]).sum()
    low, high = values.new_tensor(LEAST), values.new_tensor(MOST)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        precision = middle.exp()
        rising = (values / (values + precision)).sum() > precision * square
        low, high = torch.where(rising, middle, low), torch.where(rising, high, middle)
    return ((low + high) / 2).exp().to(means[0])

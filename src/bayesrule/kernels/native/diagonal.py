"""The library's functions of vectors, on tensors it `serves`."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.kernels.native.library import function, serves

SHORT = 1 << 12
"""Entries, up to which a call of an operation costs more than what it computes."""


def divergence(mean: Tensor, log_std: Tensor, centre: float, precision: float) -> tuple[float, Tensor, Tensor] | None:
    """``Σ ½τ(σ² + (μ − m₀)²) − log σ`` with the gradients in μ and log σ; None where plain operations have to serve."""
    size = mean.numel()
    if size > SHORT or mean.shape != log_std.shape or not serves(size, mean, log_std):
        return None
    of_mean, of_log_std = torch.empty_like(mean), torch.empty_like(log_std)
    value = function("diagonal_divergence")(
        size, mean.data_ptr(), log_std.data_ptr(), centre, precision, of_mean.data_ptr(), of_log_std.data_ptr()
    )
    return value, of_mean, of_log_std

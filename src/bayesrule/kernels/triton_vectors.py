"""A Triton kernel for the KL of independent normals; imported only where Triton is installed."""

# mypy: allow-untyped-defs, allow-incomplete-defs
# The arguments of kernels are pointers and numbers, for which Triton has no types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrule.kernels.triton_jit import kernel

BLOCK, STEPS = 1024, 8
"""Entries at a time, and how often: vectors up to their product are summed by one program."""


@kernel
def _divergence_kernel(
    mean, log_std, partial, of_mean, of_log_std, size, centre, precision, constant,
    BLOCK: tl.constexpr, STEPS: tl.constexpr,
):  # fmt: skip
    """``½τ(σ² + (μ − m₀)²) − log σ + c`` summed, and its gradients in μ and log σ."""
    total = tl.zeros((BLOCK,), tl.float32)
    start = tl.program_id(0).to(tl.int64) * BLOCK * STEPS
    for first in range(0, tl.minimum(BLOCK * STEPS, size - start), BLOCK):
        index = start + first + tl.arange(0, BLOCK)
        ok = index < size
        centred, logs = tl.load(mean + index, ok, 0.0) - centre, tl.load(log_std + index, ok, 0.0)
        variance = tl.exp(2.0 * logs)
        tl.store(of_mean + index, precision * centred, ok)
        tl.store(of_log_std + index, precision * variance - 1.0, ok)
        total += tl.where(ok, 0.5 * precision * (variance + centred * centred) - logs + constant, 0.0)
    tl.store(partial + tl.program_id(0), tl.sum(total, 0))


def divergence(
    mean: Tensor, log_std: Tensor, centre: float, precision: float, constant: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The sum, and its gradients, for contiguous float32 vectors."""
    programs = triton.cdiv(mean.numel(), BLOCK * STEPS)
    partial, of_mean, of_log_std = mean.new_empty(programs), torch.empty_like(mean), torch.empty_like(log_std)
    _divergence_kernel[(programs,)](
        mean, log_std, partial, of_mean, of_log_std, mean.numel(), centre, precision, constant,
        BLOCK=BLOCK, STEPS=STEPS,
    )  # fmt: skip
    return (partial.sum() if programs > 1 else partial.view(())), of_mean, of_log_std

"""A Triton kernel for ``Σ log(U Vᵀ)`` and its gradient; imported only where Triton is installed."""

# mypy: allow-untyped-defs, allow-incomplete-defs
# The arguments of kernels are pointers and numbers, for which Triton has no types.
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bayesrule.kernels.triton_jit import kernel


@kernel
def _row_kernel(
    left, right, logs, gradient, m, n, K: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, LOGS: tl.constexpr
):
    """For some rows of ``S = U Vᵀ`` and one column a of V: ``Σ_j v_ja/S_ij``; and ``Σ_j log S_ij`` beside the first."""
    rows, which = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.program_id(1)
    row_ok = rows < m
    slopes, log_sum = tl.zeros((ROWS, BLOCK), tl.float32), tl.zeros((ROWS, BLOCK), tl.float32)
    for first in range(0, n, BLOCK):
        columns = tl.arange(0, BLOCK) + first
        column_ok = columns < n
        product = tl.zeros((ROWS, BLOCK), tl.float32)
        for a in tl.static_range(K):
            u = tl.load(left + rows * K + a, row_ok, 1.0)
            v = tl.load(right + columns * K + a, column_ok, 0.0)
            product += u[:, None] * v[None, :]
        product = tl.where(column_ok[None, :], product, 1.0)
        v = tl.load(right + columns * K + which, column_ok, 0.0)
        slopes += v[None, :] / product
        if LOGS:
            log_sum += tl.log(product)
    tl.store(gradient + rows * K + which, tl.sum(slopes, 1), row_ok)
    if LOGS:
        tl.store(logs + rows, tl.sum(log_sum, 1), row_ok & (which == 0))


def sum_log(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sum and its gradients, for contiguous float32 factors (m, k) and (n, k).

    The gradient in V is that in U with the factors exchanged: to make S twice costs less than to sum it both ways.
    """
    logs = torch.empty_like(left[:, 0])
    gradients = []
    for rows, columns in ((left, right), (right, left)):
        gradient = torch.empty_like(rows)
        _row_kernel[(triton.cdiv(rows.shape[0], 16), rows.shape[1])](
            rows, columns, logs, gradient, rows.shape[0], columns.shape[0],
            K=rows.shape[1], ROWS=16, BLOCK=128, LOGS=rows is left,
        )  # fmt: skip
        gradients.append(gradient)
    of_left, of_right = gradients
    return logs.sum(dtype=torch.float64).to(left.dtype), of_left, of_right

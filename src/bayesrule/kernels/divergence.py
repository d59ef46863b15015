"""KLs against a normal prior whose scale is one number, each as one node whose gradient is found with its value."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bayesrule.forward_mode import in_forward_mode
from bayesrule.kernels.divergence_operators import (
    NumberAndSlopes,
    Slopes,
    as_tensors,
    diagonal_number_and_slopes,
    ktied_number_and_slopes,
)
from bayesrule.kernels.eager import ordinary_on_cpu
from bayesrule.kernels.linked_kl import LinkedKL, Parameters, ValueAndTerms
from bayesrule.kernels.operators import has_kernels, takes_kernel
from bayesrule.kernels.plain_gradients import to_be_differentiated
from bayesrule.kernels.sum_log_product import sum_log_product
from bayesrule.kernels.tap import StoredParameters, linked


def has_fused_divergence(*tensors: Tensor) -> bool:
    """Whether there is fused code for these; compilers fuse the general form by themselves."""
    return not torch.compiler.is_compiling() and (ordinary_on_cpu(*tensors) or takes_kernel(*tensors))


def is_compiled_on_cpu(*tensors: Tensor) -> bool:
    """Whether a compiler sees these on a CPU: there it makes all entries of ``U Vᵀ``, which an operator need not.

    In forward mode it has to: an operator would drop tangents without a word.
    """
    if not torch.compiler.is_compiling() or in_forward_mode():
        return False
    return all(tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64) for tensor in tensors)


def diagonal_divergence(mean: Tensor, log_std: Tensor, centre: float, precision: float) -> Tensor:
    """``Σ ½[τ(σ² + (μ − m₀)²) − 1 − log τ] − log σ`` for the precision τ of the prior.

    Args:
        mean: μ.
        log_std: log σ.
        centre: m₀.
        precision: τ.
    """
    return _DiagonalDivergence.apply(mean, log_std, centre, precision)


def ktied_divergence(fan_in_logs: Tensor, fan_out_logs: Tensor, precision: float) -> Tensor:
    """``Σ ½[τ S² − 1 − log τ] − log S`` with ``S = U Vᵀ``: the KL but for the mean's part, ``½ τ Σ (mean − m₀)²``.

    Args:
        fan_in_logs: log U.
        fan_out_logs: log V.
        precision: τ, of the prior.
    """
    if torch.compiler.is_compiling():
        whole = fan_in_logs.contiguous(), fan_out_logs.contiguous()
        value: Tensor = torch.ops.bayesrule.ktied_divergence(*whole, None, False, precision, constant(precision))[0]
        return value
    return _KTiedDivergence.apply(fan_in_logs, fan_out_logs, precision)


def linked_diagonal_divergence(stored: StoredParameters, centre: float, precision: float) -> LinkedKL | None:
    """`diagonal_divergence` of a mean and logarithms whose gradient meets that of a layer."""
    return linked(
        stored,
        partial(_diagonal_terms, centre=centre, precision=precision),
        partial(diagonal_again, centre=centre, precision=precision),
    )


def linked_ktied_divergence(stored: StoredParameters, precision: float) -> LinkedKL | None:
    """`ktied_divergence` likewise, of a mean, log U and log V, with the mean's part for ``m₀ = 0``."""
    return linked(stored, partial(_ktied_terms, precision=precision), partial(ktied_again, precision=precision))


def _diagonal_terms(parameters: Parameters, squares: Tensor | None, centre: float, precision: float) -> ValueAndTerms:
    mean, log_std = parameters
    value, of_mean, of_log_std = _diagonal(mean, log_std, centre, precision)
    return value, ((of_mean, 1.0), (of_log_std, 1.0))


def _ktied_terms(parameters: Parameters, squares: Tensor | None, precision: float) -> ValueAndTerms:
    mean, fan_in_logs, fan_out_logs = parameters
    read = mean if squares is None else squares
    value, of_fan_in, of_fan_out = _ktied(fan_in_logs, fan_out_logs, read, squares is not None, precision)
    return value, ((mean, precision), (of_fan_in, 1.0), (of_fan_out, 1.0))


def diagonal_again(
    gradient: Tensor, parameters: Parameters, centre: float, precision: float
) -> tuple[Tensor | None, ...]:
    """The gradients of `linked_diagonal_divergence` in plain operations, which can be differentiated."""
    mean, log_std = parameters
    return _diagonal_by_autograd(gradient, mean, log_std, centre, precision)


def ktied_again(gradient: Tensor, parameters: Parameters, precision: float) -> tuple[Tensor | None, ...]:
    """Likewise, of `linked_ktied_divergence`."""
    mean, fan_in_logs, fan_out_logs = parameters
    return precision * gradient * mean, *_ktied_by_autograd(gradient, fan_in_logs, fan_out_logs, precision)


def constant(precision: float) -> float:
    """What every entry adds to the KL."""
    return -0.5 * (1 + math.log(precision))


def _diagonal(mean: Tensor, log_std: Tensor, centre: float, precision: float) -> Slopes | NumberAndSlopes:
    numbers = centre, precision, constant(precision)
    if has_kernels(mean):
        return torch.ops.bayesrule.diagonal_divergence(mean.contiguous(), log_std.contiguous(), *numbers)
    return diagonal_number_and_slopes(mean, log_std, *numbers)


def _ktied(
    fan_in_logs: Tensor, fan_out_logs: Tensor, mean: Tensor | None, squared: bool, precision: float
) -> Slopes | NumberAndSlopes:
    tensors = fan_in_logs, fan_out_logs, mean
    if has_kernels(fan_in_logs):
        whole = (None if tensor is None else tensor.contiguous() for tensor in tensors)
        return torch.ops.bayesrule.ktied_divergence(*whole, squared, precision, constant(precision))
    return ktied_number_and_slopes(*tensors, squared, precision, constant(precision))


class _DiagonalDivergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_std: Tensor, centre: float, precision: float) -> Tensor:
        ctx.centre, ctx.precision = centre, precision
        value, *slopes = as_tensors(_diagonal(mean, log_std, centre, precision))
        ctx.save_for_backward(mean, log_std, *slopes)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        mean, log_std, *slopes = ctx.saved_tensors
        if to_be_differentiated(gradient):
            found: Any = _diagonal_by_autograd(gradient, mean, log_std, ctx.centre, ctx.precision)
        else:
            found = torch._foreach_mul(slopes, gradient)
        return *found, None, None


class _KTiedDivergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, fan_in_logs: Tensor, fan_out_logs: Tensor, precision: float) -> Tensor:
        ctx.precision = precision
        value, *slopes = as_tensors(_ktied(fan_in_logs, fan_out_logs, None, False, precision))
        ctx.save_for_backward(fan_in_logs, fan_out_logs, *slopes)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        fan_in_logs, fan_out_logs, *slopes = ctx.saved_tensors
        if to_be_differentiated(gradient):
            found: Any = _ktied_by_autograd(gradient, fan_in_logs, fan_out_logs, ctx.precision)
        else:
            found = torch._foreach_mul(slopes, gradient)
        return *found, None


def _diagonal_by_autograd(
    gradient: Tensor, mean: Tensor, log_std: Tensor, centre: float, precision: float
) -> tuple[Tensor, Tensor]:
    """The gradient as a graph of plain operations, where it is to be differentiated in its turn."""
    return gradient * precision * (mean - centre), gradient * (precision * (2 * log_std).exp() - 1)


def _ktied_by_autograd(
    gradient: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, precision: float
) -> tuple[Tensor | None, ...]:
    """Likewise."""
    logs, further = (fan_in_logs, fan_out_logs), torch.is_grad_enabled()
    wanted = [log for log in logs if log.requires_grad]
    if not wanted:
        return None, None
    with torch.enable_grad():
        factors = [log.exp() for log in logs]
        grams = [factor.mT @ factor for factor in factors]
        value = 0.5 * precision * (grams[0] * grams[1]).sum() - sum_log_product(*factors)
    found = iter(torch.autograd.grad(value, wanted, create_graph=further))
    return tuple(gradient * next(found) if log.requires_grad else None for log in logs)

"""KLs to a normal prior with their gradients in one pass: in plain operations, and as operators of torch for a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bayesrule.kernels.native import diagonal as native_diagonal
from bayesrule.kernels.native import ktied as native
from bayesrule.kernels.operators import has_kernels
from bayesrule.kernels.sum_log_product import sum_log_with_gradient_in_logs

Slopes = tuple[Tensor, Tensor, Tensor]
"""A value, and its gradients in two tensors."""
NumberAndSlopes = tuple[float, Tensor, Tensor]
"""Likewise, the value where reading it does not wait for a device."""


def ktied_number_and_slopes(
    fan_in_logs: Tensor, fan_out_logs: Tensor, mean: Tensor | None, squared: bool, precision: float, constant: float
) -> NumberAndSlopes:
    """``Σ ½τS² − log S + c``, and ``½τ Σ mean²``; with the gradients in log U and log V, for ``S = U Vᵀ``.

    ``Σ S² = ⟨UᵀU, VᵀV⟩``, whose gradients are ``2 U VᵀV`` and ``2 V UᵀU``. A mean that is already ``squared`` is given
    by any numbers whose sum is that of its squares.
    """
    entries = fan_in_logs.shape[0] * fan_out_logs.shape[0]
    found = native.divergence(fan_in_logs, fan_out_logs, None if squared else mean, precision)
    if found is not None:
        value, *slopes = found
        if mean is not None and squared:
            value += 0.5 * precision * mean.sum().item()
        return value + constant * entries, slopes[0], slopes[1]
    fan_in, fan_out = fan_in_logs.exp(), fan_out_logs.exp()
    logs_sum, of_fan_in, of_fan_out = sum_log_with_gradient_in_logs(fan_in_logs, fan_out_logs, fan_in, fan_out)
    fan_in_gram, fan_out_gram = fan_in.mT @ fan_in, fan_out.mT @ fan_out
    squares = torch.dot(fan_in_gram.view(-1), fan_out_gram.view(-1)).item()
    if mean is not None:
        squares += mean.sum().item() if squared else _sum_squares(mean)
    value = 0.5 * precision * squares - logs_sum + constant * entries
    return (
        value,
        of_fan_in.addcmul_(fan_in, fan_in @ fan_out_gram, value=-precision).neg_(),
        of_fan_out.addcmul_(fan_out, fan_out @ fan_in_gram, value=-precision).neg_(),
    )


def diagonal_number_and_slopes(
    mean: Tensor, log_std: Tensor, centre: float, precision: float, constant: float
) -> NumberAndSlopes:
    """``Σ ½τ(σ² + (μ − m₀)²) − log σ + c``, with the gradients in μ and log σ."""
    found = native_diagonal.divergence(mean, log_std, centre, precision)
    if found is not None:
        return found[0] + constant * mean.numel(), found[1], found[2]
    scaled = (mean - centre if centre else mean) * precision
    of_logs = log_std.mul(2).exp_().mul_(precision).sub_(1)
    value = 0.5 * (_sum_squares(scaled) / precision + of_logs.sum().item()) - log_std.sum().item()
    return value + (constant + 0.5) * mean.numel(), scaled, of_logs


def as_tensors(found: NumberAndSlopes | Slopes) -> Slopes:
    """With the value as a tensor like the others."""
    value, first, second = found
    return value if isinstance(value, Tensor) else first.new_full((), value), first, second


def _sum_squares(x: Tensor) -> float:
    if x.is_contiguous():
        return float(torch.dot(x.view(-1), x.view(-1)).item())
    return float(torch.linalg.vector_norm(x).item() ** 2)


@torch.library.custom_op(
    "bayesrule::ktied_divergence", mutates_args=(),
    schema="(Tensor fan_in_logs, Tensor fan_out_logs, Tensor? mean, bool squared, float precision, "
    "float constant) "
    "-> (Tensor, Tensor, Tensor)",
)  # fmt: skip
def _ktied(
    fan_in_logs: Tensor, fan_out_logs: Tensor, mean: Tensor | None, squared: bool, precision: float, constant: float
) -> Slopes:
    if has_kernels(fan_in_logs):
        from bayesrule.kernels import triton_logs

        return triton_logs.divergence(fan_in_logs, fan_out_logs, mean, squared, precision, constant)
    return as_tensors(ktied_number_and_slopes(fan_in_logs, fan_out_logs, mean, squared, precision, constant))


@torch.library.custom_op(
    "bayesrule::diagonal_divergence", mutates_args=(),
    schema="(Tensor mean, Tensor log_std, float centre, float precision, float constant) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip
def _diagonal(mean: Tensor, log_std: Tensor, centre: float, precision: float, constant: float) -> Slopes:
    if has_kernels(mean):
        from bayesrule.kernels import triton_vectors

        return triton_vectors.divergence(mean, log_std, centre, precision, constant)
    return as_tensors(diagonal_number_and_slopes(mean, log_std, centre, precision, constant))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Slopes) -> None:
    ctx.set_materialize_grads(False)
    ctx.mark_non_differentiable(*output[1:])
    _, _, mean, ctx.squared, ctx.precision, _ = inputs
    ctx.save_for_backward(mean if ctx.needs_input_grad[2] else None, *output[1:])


def _backward(ctx: Any, gradient: Tensor | None, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return (None,) * 6
    mean, *slopes = ctx.saved_tensors
    if mean is not None:
        mean = gradient * ctx.precision * (torch.full_like(mean, 0.5) if ctx.squared else mean)
    return *(gradient * slope for slope in slopes), mean, None, None, None


_ktied.register_autograd(_backward, setup_context=_keep)


@_ktied.register_vmap
def _(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    """One after another, as of `sum_log`."""
    found = [
        torch.ops.bayesrule.ktied_divergence(
            *(each if dim is None else each.select(dim, index).contiguous()
              for each, dim in zip(arguments, in_dims, strict=True))
        )
        for index in range(info.batch_size)
    ]  # fmt: skip
    return tuple(torch.stack(values) for values in zip(*found, strict=True)), (0, 0, 0)


@_ktied.register_fake
def _(
    fan_in_logs: Tensor, fan_out_logs: Tensor, mean: Tensor | None, squared: bool, precision: float, constant: float
) -> Slopes:
    return fan_in_logs.new_empty(()), torch.empty_like(fan_in_logs), torch.empty_like(fan_out_logs)


@_diagonal.register_fake
def _(mean: Tensor, log_std: Tensor, centre: float, precision: float, constant: float) -> Slopes:
    return mean.new_empty(()), torch.empty_like(mean), torch.empty_like(log_std)

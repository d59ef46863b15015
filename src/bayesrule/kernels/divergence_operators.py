"""KLs to a normal prior with their gradients in one pass: in plain operations, and as operators of torch for a GPU."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.kernels.operators import has_kernels
from bayesrule.kernels.sum_log_product import sum_log_with_gradient

Slopes = tuple[Tensor, Tensor, Tensor]
"""A value, and its gradients in two tensors."""


def ktied_value_and_slopes(
    fan_in_logs: Tensor, fan_out_logs: Tensor, mean: Tensor | None, squared: bool, precision: float, constant: float
) -> Slopes:
    """``Σ ½τS² − log S + c``, and ``½τ Σ mean²``; with the gradients in log U and log V, for ``S = U Vᵀ``.

    ``Σ S² = ⟨UᵀU, VᵀV⟩``, whose gradients are ``2 U VᵀV`` and ``2 V UᵀU``. A mean that is already ``squared`` is given
    by any numbers whose sum is that of its squares.
    """
    fan_in, fan_out = fan_in_logs.exp(), fan_out_logs.exp()
    logs_sum, of_fan_in, of_fan_out = sum_log_with_gradient(fan_in, fan_out)
    fan_in_gram, fan_out_gram = fan_in.mT @ fan_in, fan_out.mT @ fan_out
    squares = torch.dot(fan_in_gram.view(-1), fan_out_gram.view(-1))
    if mean is not None:
        squares.add_(mean.sum() if squared else _sum_squares(mean))
    value = squares.mul_(0.5 * precision).sub_(logs_sum).add_(constant * fan_in.shape[0] * fan_out.shape[0])
    return (
        value,
        torch.addmm(of_fan_in, fan_in, fan_out_gram, beta=-1, alpha=precision).mul_(fan_in),
        torch.addmm(of_fan_out, fan_out, fan_in_gram, beta=-1, alpha=precision).mul_(fan_out),
    )


def diagonal_value_and_slopes(
    mean: Tensor, log_std: Tensor, centre: float, precision: float, constant: float
) -> Slopes:
    """``Σ ½τ(σ² + (μ − m₀)²) − log σ + c``, with the gradients in μ and log σ."""
    std = log_std.exp()
    centred = mean - centre if centre else mean
    squares = (_sum_squares(std) + _sum_squares(centred)).mul_(0.5 * precision)
    value = squares.sub_(log_std.sum()).add_(constant * mean.numel())
    return value, centred * precision, std.square_().mul_(precision).sub_(1)


def _sum_squares(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x).square_()


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
    return ktied_value_and_slopes(fan_in_logs, fan_out_logs, mean, squared, precision, constant)


@torch.library.custom_op(
    "bayesrule::diagonal_divergence", mutates_args=(),
    schema="(Tensor mean, Tensor log_std, float centre, float precision, float constant) -> (Tensor, Tensor, Tensor)",
)  # fmt: skip
def _diagonal(mean: Tensor, log_std: Tensor, centre: float, precision: float, constant: float) -> Slopes:
    if has_kernels(mean):
        from bayesrule.kernels import triton_vectors

        return triton_vectors.divergence(mean, log_std, centre, precision, constant)
    return diagonal_value_and_slopes(mean, log_std, centre, precision, constant)


@_ktied.register_fake
def _(
    fan_in_logs: Tensor, fan_out_logs: Tensor, mean: Tensor | None, squared: bool, precision: float, constant: float
) -> Slopes:
    return fan_in_logs.new_empty(()), torch.empty_like(fan_in_logs), torch.empty_like(fan_out_logs)


@_diagonal.register_fake
def _(mean: Tensor, log_std: Tensor, centre: float, precision: float, constant: float) -> Slopes:
    return mean.new_empty(()), torch.empty_like(mean), torch.empty_like(log_std)

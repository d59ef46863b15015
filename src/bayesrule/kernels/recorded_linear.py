"""A small k-tied layer in a recorded graph: the gradients of its parameters beside the way back through the network.

Only the gradient in a layer's inputs is needed to go on. Those in its parameters, half of the work, are found by a node
of their own, which autograd runs on the lane where its forward pass was; and autograd waits where one reads another's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bayesrule.cuda_graphs import NOISE, beside, is_recording, keep
from bayesrule.errors import Unsupported
from bayesrule.kernels.linear_operator import Bias
from bayesrule.kernels.operators import by_matrix_units

MOST_WEIGHTS, MOST_INPUTS = 1 << 19, 1 << 20
"""Of a layer: a larger one fills a GPU by itself, and what lanes read is kept until a recording ends."""


@dataclass
class _Shared:
    """What both nodes of a layer read.

    Attributes:
        x: The inputs.
        kept: The narrow columns ``x² UU``, the pairs UU and VV as rows, and the bias less its mean.
        of_bias: Whether a gradient in the bias is wanted.
        partial: What the gradient in the outputs leaves: see `triton_noise_gradient.variance_gradient`.
        of_fan_in: Partial sums of the gradient in UU, if they were found on the way.
    """

    x: Tensor
    kept: tuple[Tensor, Tensor, Tensor, Tensor] | None = None
    of_bias: bool = False
    partial: tuple[Tensor, Tensor] | None = None
    of_fan_in: Tensor | None = None


def has_gradient_lane(x: Tensor, *parameters: Tensor) -> bool:
    """Whether a layer, with its weight as the first parameter, is small and is recorded with its gradients."""
    if not (is_recording() and torch.is_grad_enabled() and by_matrix_units(x)):
        return False
    small = parameters[0].numel() <= MOST_WEIGHTS and x.numel() <= MOST_INPUTS
    return small and all(parameter.requires_grad for parameter in parameters)


def parameters_beside(
    x: Tensor, weight: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, bias: Bias | None
) -> tuple[_Shared, Tensor]:
    """The node of the parameters, and what stands for it in the layer; to be called on its lane."""
    shared = _Shared(x.detach())
    return shared, _Parameters.apply(shared, weight, fan_in_logs, fan_out_logs, *(bias or (None, None)))


def recorded_linear(
    x: Tensor, node: tuple[_Shared, Tensor], weight: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, seed: Tensor,
    bias: Bias | None,
) -> Tensor:  # fmt: skip
    """As `ktied_linear_seeded`, with the node that `parameters_beside` made."""
    shared, token = node
    tensors = weight, fan_in_logs.contiguous(), fan_out_logs.contiguous(), *(bias or (None, None))
    with torch.autocast(x.device.type, enabled=False):  # half precision holds neither σ² nor x²
        values = (None if each is None else each.detach() for each in tensors)
        return _Outputs.apply(shared, x, token, seed, *values)


class _Parameters(torch.autograd.Function):
    """The parameters as the outputs' node sees them: a tensor of the outputs' shape that nobody reads."""

    @staticmethod
    def forward(ctx: Any, shared: _Shared, weight: Tensor, *others: Tensor | None) -> Tensor:
        ctx.shared = shared
        shared.of_bias = any(needed for needed in ctx.needs_input_grad[4:])
        return shared.x.new_empty(()).expand(shared.x.shape[0], weight.shape[0])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from bayesrule.kernels import triton_noise_gradient

        shared = ctx.shared
        _, fan_in_pairs, fan_out_pairs, spread = shared.kept
        of_narrow, of_fan_out = shared.partial
        of_fan_in = shared.of_fan_in
        if of_fan_in is None:
            of_fan_in = triton_noise_gradient.fan_in_gradient(shared.x, of_narrow, fan_in_pairs, None)
        found = triton_noise_gradient.summed(of_fan_in, of_fan_out, fan_in_pairs, fan_out_pairs, spread, shared.of_bias)
        of_weight = gradient.mT @ shared.x
        keep(gradient, shared.x, *shared.kept, of_narrow, of_fan_out, of_fan_in)
        wanted = zip((of_weight, *found), ctx.needs_input_grad[1:], strict=True)
        return None, *(value if needed else None for value, needed in wanted)


class _Outputs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, shared: _Shared, x: Tensor, token: Tensor, seed: Tensor, weight: Tensor, fan_in_logs: Tensor,
        fan_out_logs: Tensor, bias: Tensor | None, bias_logs: Tensor | None,
    ) -> Tensor:  # fmt: skip
        found = torch.ops.bayesrule.ktied_linear(x, weight, fan_in_logs, fan_out_logs, bias, bias_logs, seed)
        output, *kept = found
        ctx.shared, shared.kept = shared, tuple(kept)
        ctx.weight, ctx.seed = weight, seed
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from bayesrule.kernels import triton_noise_gradient

        if torch.is_grad_enabled():
            raise Unsupported(
                "A recorded step has no gradients of gradients through its k-tied layers",
                remedy="Call backward() without create_graph while a graph is recorded.",
            )
        shared, gradient = ctx.shared, gradient.contiguous()
        narrow, fan_in_pairs, fan_out_pairs, _ = shared.kept
        of_x = ctx.needs_input_grad[1]
        with beside(NOISE) as found:
            shared.partial = triton_noise_gradient.variance_gradient(
                gradient, narrow, fan_out_pairs, ctx.seed, shared.of_bias
            )
        input_gradient = gradient @ ctx.weight if of_x else None
        found()
        if of_x:
            shared.of_fan_in = triton_noise_gradient.fan_in_gradient(
                shared.x, shared.partial[0], fan_in_pairs, input_gradient
            )
        return None, input_gradient, gradient, *(6 * [None])

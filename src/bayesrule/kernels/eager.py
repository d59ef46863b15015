"""When hand-written code may stand in for plain operations: on ordinary tensors, outside every transformation."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

_ORDINARY = (Tensor, nn.Parameter)


def untransformed(*tensors: Tensor) -> bool:
    """Whether all are dense tensors that no compiler, tracer, `torch.func` or forward-mode derivative sees."""
    return (
        not torch.compiler.is_compiling()
        and all(type(tensor) in _ORDINARY for tensor in tensors)
        and torch._C._functorch.peek_interpreter_stack() is None
        and forward_ad._current_level < 0
        and torch._C._get_tracing_state() is None
    )


def ordinary(*tensors: Tensor) -> bool:
    """`untransformed`, without autocast, and all of one device and one precision, float32 or float64."""
    dtype, device = tensors[0].dtype, tensors[0].device
    if dtype not in (torch.float32, torch.float64):
        return False
    for tensor in tensors:
        if tensor.dtype != dtype or tensor.device != device:
            return False
    return untransformed(*tensors) and not torch.is_autocast_enabled(device.type)


def ordinary_on_cpu(*tensors: Tensor) -> bool:
    """`ordinary`, and in the memory of the CPU, where reading a number does not wait for a device."""
    return tensors[0].device.type == "cpu" and ordinary(*tensors)

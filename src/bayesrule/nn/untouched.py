"""Running a network only to look at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def untouched(net: nn.Module) -> Iterator[None]:
    """Afterwards the network is as it was, whatever its own code did: buffers, attributes, modes; and so is the noise.

    Norm layers keep running statistics; networks may keep activations, or the proxies of a symbolic trace.
    """
    attributes = {module: {**vars(module), "_buffers": {**module._buffers}} for module in net.modules()}
    buffers = {buffer: buffer.clone() for buffer in net.buffers()}
    devices = {parameter.device.index for parameter in net.parameters() if parameter.is_cuda}
    with torch.random.fork_rng(devices):
        try:
            yield
        finally:
            for module, before in attributes.items():
                vars(module).clear()
                vars(module).update(before)
            for buffer, value in buffers.items():
                buffer.copy_(value)

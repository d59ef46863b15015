"""How `torch.compile` takes a converted network and its loss."""

from __future__ import annotations

from typing import Any

import torch


def compile_options(device: torch.device | str = "cpu") -> dict[str, Any] | None:
    """The ``options`` of `torch.compile` for a converted network, or a loss with its KL, on a device.

    On a CPU the default compiler's own generator of normals is slower than torch's; and its choice of layouts gives
    convolutions wrong gradients, without a word, where they are followed by pooling and a loss and a KL are one graph
    (seen with torch 2.13, with a plain network and a sum of squares too). Both are switched off.

    Example:
        >>> import torch, bayesrule as br
        >>> bnn = br.bayesianize(torch.nn.Linear(3, 1), likelihood=br.Gaussian(0.1))
        >>> def loss(x, y):
        ...     return bnn.likelihood.nll(bnn(x), y) + br.kl(bnn) / 100
        >>> fast = torch.compile(loss, fullgraph=True, options=compile_options("cpu"))
    """
    return {"fallback_random": True, "layout_optimization": False} if torch.device(device).type == "cpu" else None

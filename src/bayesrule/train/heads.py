"""The last step of a member: raw outputs to those its likelihood takes, with the calibration found on held-out rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

MIN_STD = 1e-3


class ClassHead(nn.Module):
    """Logits divided by a temperature."""

    log_scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("log_scale", torch.zeros(()))

    def forward(self, raw: Tensor) -> Tensor:
        """``raw / c``."""
        return raw * (-self.log_scale).exp()


class MixtureHead(nn.Module):
    """Means, log standard deviations and logits of a Gaussian mixture; the deviations multiplied by a factor.

    ``std = c · (10⁻³ + softplus(raw + ½))``, so a network at zero starts near the standardised target's own spread; the
    means start apart, or the components would stay alike.
    """

    log_scale: Tensor
    offsets: Tensor

    def __init__(self, components: int) -> None:
        super().__init__()
        self.register_buffer("log_scale", torch.zeros(()))
        self.register_buffer("offsets", _spread(components))

    def forward(self, raw: Tensor) -> Tensor:
        """From (means, raw scales, logits) to (means, log-stds, logits)."""
        means, scales, logits = raw.chunk(3, -1)
        log_stds = (MIN_STD + F.softplus(scales + 0.5)).log() + self.log_scale
        return torch.cat([means + self.offsets, log_stds, logits], -1)


def _spread(components: int) -> Tensor:
    """0, −½, +½, −1, +1, …: one centre for each component."""
    signs = torch.tensor([math.copysign(1.0, (-1) ** k) for k in range(components)])
    return 0.5 * torch.div(torch.arange(components) + 1, 2, rounding_mode="floor") * signs

"""From bytes to the numbers a network sees; applied to a whole set or, to save memory, batch by batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from bayesrule.errors import InvalidArgument

CHUNK = 4096  # images; float64 copies of a whole training set would take gigabytes


def unit_interval(images: UInt8[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """``x / 255``, in [0, 1]."""
    return images.to(torch.get_default_dtype()) / 255


def symmetric_interval(images: UInt8[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """``x / 127.5 − 1``, in [−1, 1]."""
    return images.to(torch.get_default_dtype()) / 127.5 - 1


@dataclass(frozen=True, eq=False)
class ChannelStandardiser:
    """``(x / 255 − mean) / std``, channel by channel.

    Attributes:
        mean: Of each channel, in units of [0, 1].
        std: Likewise.
    """

    mean: Float[Tensor, " channels"]
    std: Float[Tensor, " channels"]

    @classmethod
    def fit(cls, images: UInt8[Tensor, "n channels height width"]) -> ChannelStandardiser:
        """With the mean and the standard deviation of these (training) images, over images and pixels."""
        if images.numel() == 0:
            raise InvalidArgument("There are no images to take statistics of", got=tuple(images.shape))
        count = images.numel() / images.shape[1]
        total = sum_of_squares = torch.zeros(images.shape[1], dtype=torch.float64, device=images.device)
        for part in images.split(CHUNK):
            chunk = part.to(torch.float64) / 255
            total = total + chunk.sum((0, 2, 3))
            sum_of_squares = sum_of_squares + chunk.square().sum((0, 2, 3))
        mean = total / count
        std = (sum_of_squares / count - mean.square()).clamp(min=0).sqrt()
        if not bool((std > 0).all()):
            raise InvalidArgument("A channel of one value everywhere cannot be standardised", got=f"std {std.tolist()}")
        dtype = torch.get_default_dtype()
        return cls(mean.to(dtype), std.to(dtype))

    def __call__(self, images: UInt8[Tensor, "*n channels height width"]) -> Float[Tensor, "*n channels height width"]:
        """The standardised images."""
        shape = (-1, 1, 1)
        mean, std = self.mean.to(images.device).view(shape), self.std.to(images.device).view(shape)
        return (unit_interval(images).to(mean.dtype) - mean) / std

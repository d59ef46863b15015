"""Local noise as a value: what a random weight adds to a layer's output."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.typing import Contraction


@dataclass(frozen=True)
class OutputNoise:
    """Noise ``(scale ∘ ε) mixᵀ`` over the channels of a layer's output, with ε standard normal.

    It is exact where each output row is one example; where one weight meets an example several times (convolution
    positions, sequences) each position has the right marginal and the covariance between positions is lost.
    """

    scale: Tensor
    mix: Tensor | None = None

    def noise_shape(self, output: Tensor, contraction: Contraction) -> tuple[int, ...]:
        """The shape of ε for a given output."""
        shape = list(output.shape)
        if self.mix is not None:
            shape[contraction.channel_dim] = self.mix.shape[-1]
        return tuple(shape)

    def apply(self, noise: Tensor, contraction: Contraction) -> Tensor:
        """The output noise for given ε."""
        scaled = self.scale * noise
        return scaled if self.mix is None else contraction.mix(scaled, self.mix)

    def variance(self, output: Tensor, contraction: Contraction) -> Tensor:
        """Its variance at every output."""
        square = self.scale.square().expand(self.noise_shape(output, contraction))
        return square if self.mix is None else contraction.mix(square, torch.square(self.mix))

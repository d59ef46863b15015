"""How a posterior's noise enters a layer's output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.contractions import Contraction
from bayesrule.kernels import BiasLaw
from bayesrule.posteriors import Posterior
from bayesrule.random import FromGenerator, NoiseSource


class Estimator(ABC):
    """Knows a posterior and a contraction, nothing of layers. Noise is asked for, never made."""

    chooses: ClassVar[bool] = False
    """Whether `choose` may give another one: by the posterior's family, the layer, and the input's shape and device."""

    def __call__(
        self, posterior: Posterior, contraction: Contraction, x: Tensor, noise: NoiseSource | None = None
    ) -> Tensor:
        """One random output of ``op(x, W)``, ``W ~ posterior``.

        Args:
            posterior: Over the fan-in × fan-out matrix.
            contraction: The layer.
            x: A batch of inputs.
            noise: Where noise comes from; torch's global generator by default.
        """
        output = self.output(posterior, contraction, x, FromGenerator() if noise is None else noise)
        return contraction.settle(x, output, posterior.mean)

    def fused_output(
        self, posterior: Posterior, contraction: Contraction, x: Tensor, noise: NoiseSource, bias: BiasLaw
    ) -> Tensor | None:
        """The output with a bias, where there is code that makes both at once."""
        return None

    def choose(self, posterior: Posterior, contraction: Contraction, x: Tensor) -> Estimator:
        """The estimator to use for this layer and input: itself, unless it is one that chooses among others."""
        return self

    @abstractmethod
    def output(self, posterior: Posterior, contraction: Contraction, x: Tensor, noise: NoiseSource) -> Tensor:
        """The output, by this estimator's way of drawing."""


def drawn(posterior: Posterior, noise: NoiseSource) -> Tensor:
    """A draw, without autocast: products of factors in half precision would lose small variances."""
    with torch.autocast(posterior.mean.device.type, enabled=False):
        return posterior.from_noise(posterior.noise_from(noise))

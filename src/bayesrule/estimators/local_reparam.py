"""Local reparameterization: draw the outputs instead of the weight."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.contractions import Contraction
from bayesrule.estimators.estimator import Estimator
from bayesrule.kernels import BiasLaw
from bayesrule.posteriors import Posterior
from bayesrule.random import NoiseSource, by_example


@dataclass(frozen=True)
class LocalReparam(Estimator):
    """Independent noise for every output row, at B·n normals a call.

    Exact where each output row is one example. Where one weight meets an example several times (convolution
    positions, sequences, repeated tokens) each position's marginal is right and the covariance between positions is
    lost; weight sampling and Flipout keep it.
    """

    def fused_output(
        self, posterior: Posterior, contraction: Contraction, x: Tensor, noise: NoiseSource, bias: BiasLaw
    ) -> Tensor | None:
        """As the posterior has it."""
        return posterior.fused_output(contraction, x, by_example(noise), bias)

    def output(self, posterior: Posterior, contraction: Contraction, x: Tensor, noise: NoiseSource) -> Tensor:
        """``op(x, mean)`` and the posterior's projected noises, in the precision that the layer has without them."""
        noise = by_example(noise)
        fused = posterior.fused_output(contraction, x, noise)
        if fused is not None:
            return fused
        at_mean = output = contraction(x, posterior.mean)
        with torch.autocast(x.device.type, enabled=False):  # half precision holds neither σ² nor x²
            terms = posterior.project(contraction, x.to(posterior.mean.dtype) if x.is_floating_point() else x)
        for term in terms:
            drawn = noise(term.noise_shape(at_mean, contraction), "normal", at_mean)
            output = output + term.apply(drawn, contraction)
        return output.to(at_mean.dtype)  # of scales in full precision it would be float32, under autocast too

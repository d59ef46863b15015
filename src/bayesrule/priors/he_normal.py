"""He-scaled prior: variance inversely proportional to fan-in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.linalg import MatrixView
from bayesrule.posteriors import Part, Posterior
from bayesrule.priors.prior import DiagonalNormal, Prior, check_positive_scale


@dataclass(frozen=True)
class HeNormal(Prior):
    """``N(0, gain²/fan_in)`` for weights, ``N(0, bias_std²)`` for vectors   [k-tied Normal, App. D].

    Attributes:
        gain: √2 is He's, for rectified linear units.
        bias_std: Standard deviation for biases and other vectors.
    """

    gain: float = math.sqrt(2)
    bias_std: float = 1.0

    def __post_init__(self) -> None:
        check_positive_scale("gain", self.gain)
        check_positive_scale("bias_std", self.bias_std)

    def given(self, posterior: Posterior, hyperparameters: Mapping[str, Tensor]) -> DiagonalNormal:
        """Part by part: a weight by its fan-in; a bias by ``bias_std``, also where it is a row of its weight."""
        mean, event_dim, shape = posterior.mean, posterior.event_dim, tuple(posterior.event_shape)
        whole = Part("", MatrixView(shape, fan_out_axis=1) if event_dim == 2 else shape)
        parts = posterior.parts or (whole,)
        if len(parts) == 1:
            precision = mean.new_full((), self._std(parts[0]) ** -2)
        else:
            runs = [mean.new_full((part.length(event_dim),), self._std(part) ** -2) for part in parts]
            precision = torch.cat(runs).reshape(-1, *(1,) * (event_dim - 1))
        return DiagonalNormal(mean.new_zeros(()), precision)

    def _std(self, part: Part) -> float:
        return self.gain / math.sqrt(part.layout.fan_in) if isinstance(part.layout, MatrixView) else self.bias_std

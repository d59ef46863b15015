"""Draws of the weights that a sampler left, as a posterior."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import Unsupported
from bayesrule.posteriors import OutputNoise, Part, Posterior
from bayesrule.random import Law
from bayesrule.typing import Contraction


@dataclass(frozen=True)
class EmpiricalPosterior(Posterior):
    """``(1/S) Σ_s δ(w − w_s)`` over all weights of a network, as one vector: a uniform number picks a stored draw."""

    draws: Float[Tensor, "draws entries"]
    parts: tuple[Part, ...] = ()
    noise_law: ClassVar[Law] = "uniform"
    event_dim: ClassVar[int] = 1  # type: ignore[misc]

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """Over the draws."""
        return self.draws.mean(0)

    @property
    def variance(self) -> Tensor:
        """Over the draws, divided by their number."""
        return self.draws.var(0, correction=0)

    @property
    def noise_shape(self) -> torch.Size:
        """One number."""
        return torch.Size((1,))

    @property
    def independent(self) -> bool:
        """Never: all entries are of one draw."""
        return False

    def from_noise(self, noise: Tensor) -> Tensor:
        """``w_s`` with ``s = ⌊S u⌋``."""
        # In float32 a uniform number just below 1 times S may round to S.
        index = (noise[..., 0] * len(self.draws)).long().clamp_max(len(self.draws) - 1)
        return self.draws[index]

    def log_prob(self, value: Tensor) -> Tensor:
        """Refused."""
        raise Unsupported("Draws of a sampler have no density", remedy="Use their mean and variance.")

    def entropy(self) -> Tensor:
        """Refused."""
        raise Unsupported("Draws of a sampler have no entropy", remedy="Use their mean and variance.")

    def projects(self, contraction: Contraction) -> bool:
        """Never."""
        return False

    def project(self, contraction: Contraction, x: Tensor) -> tuple[OutputNoise, ...]:
        """Refused."""
        raise Unsupported(
            "Draws of a sampler add no Gaussian noise to a layer's outputs (local reparameterization)",
            remedy="Predict at whole draws: br.predict.",
        )

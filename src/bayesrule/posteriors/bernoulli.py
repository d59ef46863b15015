"""Bernoulli posterior over binary weights, −1 or +1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.expfam import Bernoulli, Natural
from bayesrule.linalg import event_dims
from bayesrule.posteriors.output_noise import OutputNoise
from bayesrule.posteriors.parts import Part, locate
from bayesrule.posteriors.posterior import Posterior
from bayesrule.typing import Contraction


@dataclass(frozen=True)
class BernoulliPosterior(Posterior):
    """``q(w) ∝ exp(λ w)`` for every ``w ∈ {−1, +1}``, so ``p(+1) = σ(2λ)``   [BayesBiNN].

    Attributes:
        natural: λ, half the log-odds of +1.
        event_dim: Trailing dimensions that are one draw.
        parts: The parameters it holds.
    """

    natural: Tensor
    event_dim: int
    parts: tuple[Part, ...] = ()
    noise_law = "uniform"

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """``tanh λ``."""
        return self.natural.tanh()

    @property
    def variance(self) -> Tensor:
        """``1 − tanh² λ``, as ``4 σ(2λ) σ(−2λ)``, which does not cancel."""
        return 4 * torch.sigmoid(2 * self.natural) * torch.sigmoid(-2 * self.natural)

    @property
    def noise_shape(self) -> torch.Size:
        """One uniform for each entry."""
        return self.natural.shape

    @property
    def independent(self) -> bool:
        """Not in the sense asked for: the entries are independent, but w − mean is not symmetric.

        Flipout multiplies w − mean by random signs, which would make other values of w than −1 and +1.
        """
        return False

    def exponential(self) -> tuple[Bernoulli, Natural]:
        """Independent signs."""
        return Bernoulli(), Natural(linear=self.natural.flatten(-self.event_dim))

    def from_noise(self, noise: Tensor) -> Tensor:
        """``sign(λ + δ)``: a weight of −1 or +1, with no gradient."""
        return torch.where(self.natural + _half_logit(noise) > 0, 1.0, -1.0).to(self.natural.dtype)

    def relaxed(self, noise: Tensor, temperature: float) -> Tensor:
        """``tanh((λ + δ)/τ)``, ``δ = ½ log(u/(1−u))``: the Concrete relaxation of the draw of the same noise."""
        if not temperature > 0:
            raise InvalidArgument(
                "The temperature of a relaxed draw must be positive", got=temperature,
                remedy="Use from_noise for the limit of zero, the hard draw.",
            )  # fmt: skip
        return torch.tanh((self.natural + _half_logit(noise)) / temperature)

    def log_prob(self, value: Tensor) -> Tensor:
        """``Σ log σ(2λw)``, a log-probability, for weights of −1 or +1."""
        return F.logsigmoid(2 * self.natural * value).sum(event_dims(self.event_dim))

    def entropy(self) -> Tensor:
        """``Σ log(2 cosh λ) − λ tanh λ``, in the form ``softplus(−2|λ|) + 2|λ| σ(−2|λ|)``, which does not cancel."""
        size = self.natural.abs()
        return (F.softplus(-2 * size) + 2 * size * torch.sigmoid(-2 * size)).sum(event_dims(self.event_dim))

    def projects(self, contraction: Contraction) -> bool:
        """Never: sums of binary weights are Gaussian only in the limit."""
        return False

    def project(self, contraction: Contraction, x: Tensor) -> tuple[OutputNoise, ...]:
        """Refused."""
        raise Unsupported(
            "Binary weights add no Gaussian noise to a layer's outputs (local reparameterization)",
            remedy="Use the WeightSample estimator for this layer, or relaxed draws.",
        )

    def marginal(self, name: str) -> BernoulliPosterior:
        """The posterior of one parameter of the group, in the same (matrix or vector) view."""
        part, start = locate(name, self.parts, self.event_dim)
        piece = self.natural.narrow(-self.event_dim, start, part.length(self.event_dim))
        return BernoulliPosterior(piece, self.event_dim, (part,))


def _half_logit(uniform: Tensor) -> Tensor:
    """``½ log(u/(1−u))``, with u kept one step of the uniform generator away from 0 and 1."""
    return 0.5 * torch.logit(uniform, eps=torch.finfo(uniform.dtype).eps / 2)

"""A finite mixture of Gaussian posteriors."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported
from bayesrule.posteriors.gaussian import GaussianPosterior
from bayesrule.posteriors.output_noise import OutputNoise
from bayesrule.posteriors.parts import Part
from bayesrule.posteriors.posterior import Posterior
from bayesrule.typing import Contraction


@dataclass(frozen=True)
class MixturePosterior(Posterior):
    """``Σ_k π_k N(m_k, Σ_k)`` with ``π = softmax(logits)``; components of equal event, of any structure.

    The noise of one draw is a flat vector of standard normals: the first, through Φ, picks the component; the others
    are that component's own noise, as many as the largest of them takes, and a smaller one leaves the last unused.
    """

    logits: Float[Tensor, "*batch components"]
    components: tuple[GaussianPosterior, ...]

    def __post_init__(self) -> None:
        if not self.components:
            raise InvalidArgument("A mixture needs at least one component", got=self.components)
        kinds = {(tuple(each.mean.shape), each.event_dim, each.parts) for each in self.components}
        if len(kinds) > 1:
            raise ShapeMismatch(
                "The components of a mixture must have one shape and the same parts",
                got=[tuple(each.mean.shape) for each in self.components],
            )
        wanted = (*self._batch, len(self.components))
        if tuple(self.logits.shape) != wanted:
            raise ShapeMismatch(f"The logits must have shape {wanted}", got=tuple(self.logits.shape))

    @property
    def event_dim(self) -> int:  # type: ignore[override]
        """That of the components."""
        return self.components[0].event_dim

    @property
    def parts(self) -> tuple[Part, ...]:  # type: ignore[override]
        """Those of the components."""
        return self.components[0].parts

    @property
    def mean(self) -> Tensor:  # type: ignore[override]
        """``Σ π_k m_k``."""
        return self._average(torch.stack([each.mean for each in self.components]))

    @property
    def variance(self) -> Tensor:
        """``Σ π_k (v_k + (m_k − m)²)``, the law of total variance."""
        mean = self.mean
        return self._average(torch.stack([each.variance + (each.mean - mean).square() for each in self.components]))

    @property
    def noise_shape(self) -> torch.Size:
        """(…, 1 + the largest component's noise)."""
        return torch.Size((*self._batch, 1 + max(shape.numel() for shape in self._component_noise_shapes)))

    @property
    def independent(self) -> bool:
        """Never: even with diagonal components the entries share the choice of one."""
        return False

    def from_noise(self, noise: Tensor) -> Tensor:
        """The picked component's draw: differentiable in the components, not in the logits."""
        uniform = torch.special.ndtr(noise[..., :1])
        boundaries = self.logits.softmax(-1).cumsum(-1)[..., :-1]
        pick = (uniform > boundaries).sum(-1)
        draws = [
            each.from_noise(noise[..., 1 : 1 + shape.numel()].unflatten(-1, shape))
            for each, shape in zip(self.components, self._component_noise_shapes, strict=True)
        ]
        index = pick[None, ..., *(None,) * self.event_dim]
        return torch.take_along_dim(torch.stack(draws), index, dim=0).squeeze(0)

    def log_prob(self, value: Tensor) -> Tensor:
        """``log Σ π_k N(value | m_k, Σ_k)``."""
        densities = torch.stack([each.log_prob(value) for each in self.components], dim=-1)
        return torch.logsumexp(self.logits.log_softmax(-1) + densities, dim=-1)

    def entropy(self) -> Tensor:
        """Refused: it has no closed form."""
        raise Unsupported(
            "The entropy of a mixture has no closed form",
            remedy="Estimate it from draws: -q.log_prob(q.rsample((n,))).mean(0).",
        )

    def projects(self, contraction: Contraction) -> bool:
        """Never: the outputs share the choice of a component, so their noise is not Gaussian."""
        return False

    def project(self, contraction: Contraction, x: Tensor) -> tuple[OutputNoise, ...]:
        """Refused."""
        raise Unsupported(
            "A mixture adds no Gaussian noise to a layer's outputs (local reparameterization)",
            remedy="Use the WeightSample estimator for this layer.",
        )

    def marginal(self, name: str) -> MixturePosterior:
        """The posterior of one parameter of the group: the mixture of the components' marginals."""
        return replace(self, components=tuple(each.marginal(name) for each in self.components))

    @property
    def _batch(self) -> torch.Size:
        mean = self.components[0].mean
        return mean.shape[: mean.ndim - self.event_dim]

    @property
    def _component_noise_shapes(self) -> list[torch.Size]:
        """Noise shapes without the batch."""
        return [each.noise_shape[len(self._batch) :] for each in self.components]

    def _average(self, stacked: Tensor) -> Tensor:
        weights = self.logits.softmax(-1).movedim(-1, 0)
        return (weights[..., *(None,) * self.event_dim] * stacked).sum(0)

"""Categorical distribution over classes, in minimal coordinates: the last class is the reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.expfam.coordinates import Expectation, Natural
from bayesrule.expfam.family import ExponentialFamily
from bayesrule.expfam.space import Block, Blockwise, ParameterSpace
from bayesrule.random import NoiseSource

Classes = Float[Tensor, "*batch classes"]


@dataclass(frozen=True)
class Categorical(ExponentialFamily):
    """θ is one-hot with P(θ_k = 1) = p_k: λ_k = log(p_k/p_K), T(θ) = θ without its last entry, μ_k = p_k, for k < K."""

    space: ClassVar[ParameterSpace] = Blockwise(logits=Block(("classes-1",)))

    def from_probabilities(self, probabilities: Classes) -> Natural:
        """λ_k = log(p_k/p_K), for positive p that sum to 1."""
        if not ((probabilities > 0).all() and torch.allclose(probabilities.sum(-1), probabilities.new_ones(()))):
            raise InvalidArgument("probabilities must be positive and sum to 1", got=probabilities)
        return self.check(Natural(logits=contrasts(probabilities.log())))

    def to_probabilities(self, natural: Natural) -> Classes:
        """All K probabilities."""
        return torch.softmax(with_reference(natural["logits"]), dim=-1)

    def probabilities(self, expectation: Expectation) -> Classes:
        """All K probabilities, as a linear function of μ."""
        return with_rest(expectation["logits"])

    def statistics(self, theta: Classes) -> Expectation:
        """T(θ) = (θ_1, …, θ_{K−1})."""
        return Expectation(logits=theta[..., :-1])

    def log_partition(self, natural: Natural) -> Float[Tensor, "*batch"]:
        """A(λ) = log(1 + Σ_k exp λ_k)."""
        return with_reference(natural["logits"]).logsumexp(-1)

    def to_natural(self, expectation: Expectation) -> Natural:
        """λ_k = log μ_k − log(1 − Σ μ)."""
        return Natural(logits=contrasts(self.probabilities(expectation).log()))

    def sample(self, natural: Natural, noise: NoiseSource, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """One-hot draws by inversion; they carry no gradient."""
        return draw_one_hot(with_reference(natural["logits"]), noise, sample_shape)


def with_reference(logits: Float[Tensor, "*batch free"]) -> Classes:
    """(λ, 0): the log-odds of all classes against the last."""
    return torch.cat([logits, torch.zeros_like(logits[..., :1])], dim=-1)


def with_rest(part: Float[Tensor, "*batch free"]) -> Classes:
    """(p_1, …, p_{K−1}, 1 − Σ p): all classes from those without the last."""
    return torch.cat([part, 1 - part.sum(-1, keepdim=True)], dim=-1)


def contrasts(scores: Classes) -> Float[Tensor, "*batch free"]:
    """s_k − s_K."""
    return scores[..., :-1] - scores[..., -1:]


def draw_one_hot(logits: Classes, noise: NoiseSource, sample_shape: tuple[int, ...] = ()) -> Tensor:
    """One-hot draws with probabilities softmax(logits), one uniform number each."""
    cumulative = torch.softmax(logits.detach(), dim=-1).cumsum(-1)[..., :-1]
    uniform = noise(sample_shape + tuple(logits.shape[:-1]), "uniform", logits)
    index = (uniform.unsqueeze(-1) >= cumulative).sum(-1)
    return torch.nn.functional.one_hot(index, logits.shape[-1]).to(logits.dtype)

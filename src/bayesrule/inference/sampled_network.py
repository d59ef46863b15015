"""A network at draws of its weights that somebody else made."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bayesrule.inference.empirical import EmpiricalPosterior
from bayesrule.likelihoods import GaussianMixture
from bayesrule.posteriors import Part

LOG_NOISE_STD = "log_noise_std"
"""What the logarithm of the noise's standard deviation, for each entry of a target, is called among the weights."""
GROUP = "draws"


class SampledNetwork(nn.Module):
    """A regression network with draws of its weights and of its noise, as `br.predict` takes it.

    Weights and noise of one draw belong together, so the outputs carry both: mean, log standard deviation and a zero
    logit for each entry of the target, which the likelihood `GaussianMixture(1)` reads.
    """

    stored: Tensor

    def __init__(self, net: nn.Module, draws: Mapping[str, Float[Tensor, "draws ..."]]) -> None:
        super().__init__()
        self.net = copy.deepcopy(net).requires_grad_(False)
        kind = next(iter(net.parameters()))
        self.parts = tuple(Part(name, tuple(value.shape[1:])) for name, value in draws.items())
        self.register_buffer("stored", torch.cat([value.flatten(1).to(kind) for value in draws.values()], 1))
        self.eval()

    @property
    def batchable(self) -> bool:
        """Linear layers take batches of weights well."""
        return True

    def default_likelihood(self) -> GaussianMixture:
        """One Gaussian, whose noise comes with each draw."""
        return GaussianMixture(1)

    def posteriors(self) -> dict[str, EmpiricalPosterior]:
        """All weights and the noise, as one group."""
        return {GROUP: EmpiricalPosterior(self.stored, self.parts)}

    def at(self, draws: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """Outputs at given weights and noise."""
        weights = {name: value for name, value in draws.items() if name != LOG_NOISE_STD}
        mean = torch.func.functional_call(self.net, weights, args, kwargs)
        return torch.cat([mean, draws[LOG_NOISE_STD].expand_as(mean), torch.zeros_like(mean)], -1)

    @torch.no_grad()
    def outputs(self, x: Float[Tensor, "examples features"]) -> Float[Tensor, "draws examples outputs"]:
        """At every stored draw, once each: `br.Predictive` of them has no noise of choosing draws."""
        (posterior,) = self.posteriors().values()
        return torch.func.vmap(lambda one: self.at(one, x))(posterior.split(self.stored))

"""Predictions of a network's linearization: by draws, or in closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bayesrule.errors import Unsupported
from bayesrule.inference.evaluated_network import EvaluatedNetwork
from bayesrule.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from bayesrule.posteriors import GaussianPosterior, Part


@dataclass(frozen=True)
class OutputLaw:
    """``f ~ N(mean, covariance)`` of each example's outputs.

    Attributes:
        mean: The trained network's outputs.
        covariance: ``J Σ Jᵀ``, J the Jacobian with respect to the weights.
        likelihood: What the outputs mean.
    """

    mean: Float[Tensor, "examples outputs"]
    covariance: Float[Tensor, "examples outputs outputs"]
    likelihood: Likelihood

    @property
    def std(self) -> Float[Tensor, "examples outputs"]:
        """Of the outputs, without the target's own noise."""
        return self.covariance.diagonal(dim1=-2, dim2=-1).sqrt()

    @property
    def target_std(self) -> Float[Tensor, "examples outputs"]:
        """Of a Gaussian target: the outputs' variance and the noise's."""
        if not isinstance(self.likelihood, Gaussian):
            raise Unsupported(
                "The target's variance is in closed form for br.Gaussian", remedy="Use probs, or br.predict."
            )
        return (self.std.square() + self.likelihood.moments(self.mean).variance).sqrt()

    @property
    def probs(self) -> Float[Tensor, "examples classes"]:
        """``softmax(f / √(1 + π v/8))``, v the outputs' variances   [MacKay 1992; Daxberger et al. 2021]."""
        if not isinstance(self.likelihood, Categorical | Bernoulli):
            raise Unsupported(
                "Probabilities are of classes", got=type(self.likelihood).__name__, remedy="Use mean and target_std."
            )
        tempered = self.mean / (1 + math.pi / 8 * self.std.square()).sqrt()
        return tempered.softmax(-1) if isinstance(self.likelihood, Categorical) else tempered.sigmoid()


@dataclass(frozen=True, eq=False)
class LinearizedLaplace(EvaluatedNetwork):
    """``f(w) = f(w*) + J(w − w*)`` at draws of the weights, as `br.predict` takes it."""

    net: nn.Module
    likelihood: Likelihood
    held: dict[str, GaussianPosterior]

    def posteriors(self) -> dict[str, GaussianPosterior]:
        """Those of the network."""
        return self.held

    def at(self, draws: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Tensor:
        """Outputs and their derivative along ``w − w*``: the derivative, in u, of ``uᵀJ``."""
        trained = {name: parameter for name, parameter in self.net.named_parameters() if name in draws}
        along = {name: draws[name] - trained[name] for name in trained}

        def outputs(weights: dict[str, Tensor]) -> Tensor:
            return torch.func.functional_call(self.net, weights, args, kwargs)

        # Reverse mode twice: forward mode has no rule for some layers, and warns when it is first used.
        value, pull = torch.func.vjp(outputs, trained)  # type: ignore[misc]
        _, push = torch.func.vjp(lambda cotangent: pull(cotangent)[0], torch.zeros_like(value))  # type: ignore[misc]
        return value + push(along)[0]


@torch.no_grad()
def output_law(
    net: nn.Module, posteriors: Mapping[str, GaussianPosterior], x: Tensor, likelihood: Likelihood
) -> OutputLaw:
    """``N(f(x, w*), J Σ Jᵀ)``, the Jacobian by reverse mode, one example and output after another."""
    names = [part.name for posterior in posteriors.values() for part in posterior.parts]
    trained = {name: parameter for name, parameter in net.named_parameters() if name in names}

    def outputs(weights: dict[str, Tensor], one: Tensor) -> Tensor:
        return torch.func.functional_call(net, weights, (one[None],))[0]

    jacobians = torch.func.vmap(torch.func.jacrev(outputs), (None, 0))(trained, x)
    total: Tensor | None = None
    for posterior in posteriors.values():
        event = as_event(posterior.parts, jacobians, posterior.event_dim)
        moved = posterior.covariance.matmul(event)
        flat = -posterior.event_dim
        found = event.flatten(flat) @ moved.flatten(flat).mT
        total = found if total is None else total + found
    if total is None:
        raise Unsupported("There is no posterior to predict with")
    return OutputLaw(net(x), total, likelihood)


def as_event(parts: tuple[Part, ...], tensors: Mapping[str, Tensor], event_dim: int) -> Tensor:
    """Tensors in the parameters' own layouts, with leading dimensions, as one event."""
    rows = []
    for part in parts:
        piece = tensors[part.name]
        matrix = piece.unsqueeze(-2) if isinstance(part.layout, tuple) else part.layout.matrix(piece)
        rows.append(matrix if event_dim == 2 else matrix.flatten(-2))
    return torch.cat(rows, dim=-event_dim)

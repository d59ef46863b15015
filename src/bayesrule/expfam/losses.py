"""A loss as the learning rule's approximations see it: examples and a regularizer, at a flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

Vector = Float[Tensor, " dim"]
Matrix = Float[Tensor, "dim dim"]


def no_regularizer(theta: Vector) -> Float[Tensor, ""]:
    """R(θ) = 0."""
    return theta.new_zeros(())


@dataclass(frozen=True)
class OutputModel:
    """f_i(θ) and the Fisher matrix of the likelihood in f: what the generalised Gauss–Newton matrix is made of."""

    outputs: Callable[[Vector], Float[Tensor, "examples outputs"]]
    fisher: Callable[[Float[Tensor, "examples outputs"]], Float[Tensor, "examples outputs outputs"]]


@dataclass(frozen=True)
class Loss:
    """ℓ(θ) = scale·Σ_i ℓ_i(θ) + R(θ)   (Eqs. 1 and 34).

    Args:
        examples: The losses ℓ_i of the examples at hand, a minibatch or all.
        regularizer: R, the negative log-prior.
        scale: N/M for M of N examples.
        model: What lies behind the examples' losses, for the true Fisher.
    """

    examples: Callable[[Vector], Float[Tensor, " examples"]]
    regularizer: Callable[[Vector], Float[Tensor, ""]] = no_regularizer
    scale: float = 1.0
    model: OutputModel | None = None

    def __call__(self, theta: Vector) -> Float[Tensor, ""]:
        """ℓ(θ)."""
        return self.scale * self.examples(theta).sum() + self.regularizer(theta)

    def gradient(self, theta: Vector) -> Vector:
        """∇ℓ(θ)."""
        return torch.func.grad(self)(theta)

    def hessian(self, theta: Vector) -> Matrix:
        """∇²ℓ(θ)."""
        return _hessian(self)(theta)

    def example_gradients(self, theta: Vector) -> Float[Tensor, "examples dim"]:
        """∇ℓ_i(θ)."""
        return torch.func.jacrev(self.examples)(theta)

    def regularizer_hessian(self, theta: Vector) -> Matrix:
        """∇²R(θ)."""
        return _hessian(self.regularizer)(theta)

    def example_hessians(self, theta: Vector) -> Float[Tensor, "examples dim dim"]:
        """∇²ℓ_i(θ)."""
        return torch.func.jacrev(torch.func.jacrev(self.examples))(theta)


def _hessian(function: Callable[[Vector], Tensor]) -> Callable[[Vector], Matrix]:
    # Reverse over reverse: forward mode, which torch.func.hessian takes, lacks derivatives that losses need.
    return torch.func.jacrev(torch.func.grad(function))


def of_function(function: Callable[[Vector], Float[Tensor, ""]]) -> Loss:
    """A loss that is one number, as one example."""
    return Loss(lambda theta: function(theta).unsqueeze(0))

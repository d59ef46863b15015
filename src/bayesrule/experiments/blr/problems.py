"""Small made-up problems, in float64, on which algorithms are compared."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import softplus

from bayesrule.expfam import Loss, OutputModel

Inputs = Float[Tensor, "examples dim"]
Targets = Float[Tensor, " examples"]


@dataclass(frozen=True)
class Size:
    """How large the problems are and how many iterates are compared.

    Attributes:
        examples: Of the data sets.
        steps: Of each algorithm.
        seed: Of the data.
    """

    examples: int
    steps: int
    seed: int

    def rng(self, name: str) -> np.random.Generator:
        """A stream for one problem."""
        return np.random.default_rng([self.seed, *name.encode()])


@dataclass(frozen=True)
class Logistic:
    """Logistic regression with labels 0 and 1: ℓ_i = log(1 + exp f_i) − y_i f_i, R = ½δ|θ|²."""

    x: Inputs
    y: Targets
    prior_precision: float = 1.0

    def loss(self, rows: slice | Tensor = slice(None)) -> Loss:
        """The loss of some rows, scaled up to all."""
        x, y = self.x[rows], self.y[rows]

        def examples(theta: Tensor) -> Tensor:
            return softplus(x @ theta) - y * (x @ theta)

        def regularizer(theta: Tensor) -> Tensor:
            return 0.5 * self.prior_precision * theta.square().sum()

        def fisher(outputs: Tensor) -> Tensor:
            probability = torch.sigmoid(outputs)
            return (probability * (1 - probability)).unsqueeze(-1)

        model = OutputModel(lambda theta: (x @ theta).unsqueeze(-1), fisher)
        return Loss(examples, regularizer, len(self.x) / len(x), model)

    def batches(self, size: int) -> list[Tensor]:
        """Consecutive minibatches, again and again by taking them modulo their number."""
        return list(torch.arange(len(self.x)).split(size))


def logistic(size: Size, dim: int = 3, prior_precision: float = 1.0) -> Logistic:
    """Labels drawn from the model, so that no hyperplane separates them."""
    rng = size.rng("logistic")
    x = rng.normal(size=(size.examples, dim))
    probability = 1 / (1 + np.exp(-x @ rng.normal(size=dim)))
    y = (rng.uniform(size=size.examples) < probability).astype(float)
    return Logistic(torch.as_tensor(x), torch.as_tensor(y), prior_precision)


def clusters(size: Size, dim: int = 2) -> Inputs:
    """Three overlapping clouds of points."""
    rng = size.rng("clusters")
    centres = np.array([[-2.0, 0.0], [1.5, 1.5], [1.0, -2.0]])[:, :dim]
    which = rng.integers(3, size=size.examples)
    return torch.as_tensor(centres[which] + rng.normal(size=(size.examples, dim)))


def largest(differences: list[Tensor | np.ndarray | float]) -> float:
    """The largest absolute entry of all."""
    return max(float(np.abs(np.asarray(difference)).max()) for difference in differences)

"""Linear-Gaussian state space models: the Kalman filter and smoother as one step of the rule each."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.algorithms import bayes_rule
from bayesrule.errors import ShapeMismatch
from bayesrule.expfam import ChainGaussian, Expectation, GaussianFull, Natural

Observations = Float[Tensor, "length outputs"]


@dataclass(frozen=True)
class StateSpace:
    """x_1 ~ N(m, P), x_{t+1} = Fx_t + N(0, Q), y_t = Hx_t + N(0, R).

    Attributes:
        transition: F.
        transition_covariance: Q.
        observation: H.
        observation_covariance: R.
        first_mean: Mean of x_1.
        first_covariance: Its covariance.
    """

    transition: Float[Tensor, "dim dim"]
    transition_covariance: Float[Tensor, "dim dim"]
    observation: Float[Tensor, "outputs dim"]
    observation_covariance: Float[Tensor, "outputs outputs"]
    first_mean: Float[Tensor, " dim"]
    first_covariance: Float[Tensor, "dim dim"]

    def __post_init__(self) -> None:
        outputs, dim = self.observation.shape[0], self.first_mean.shape[-1]
        for name, wanted in (
            ("transition", (dim, dim)), ("transition_covariance", (dim, dim)), ("observation", (outputs, dim)),
            ("observation_covariance", (outputs, outputs)), ("first_mean", (dim,)), ("first_covariance", (dim, dim)),
        ):  # fmt: skip
            shape = tuple(getattr(self, name).shape)
            if shape != wanted:
                raise ShapeMismatch(
                    f"{name} of {dim} states and {outputs} outputs must have the shape {wanted}", got=shape,
                    remedy="first_mean says how many states there are, the rows of observation how many outputs.",
                )  # fmt: skip

    def _check(self, y: Observations) -> None:
        if y.ndim != 2 or y.shape[-1] != len(self.observation) or not len(y):
            raise ShapeMismatch(
                f"y must have a row for each time and the {len(self.observation)} outputs as columns",
                got=f"a tensor of shape {tuple(y.shape)}", remedy="A series of numbers is a column: y.unsqueeze(-1).",
            )  # fmt: skip

    def smooth(self, y: Observations) -> Natural:
        """The posterior of all states, a Gaussian chain, in one step with ρ = 1; ``moments`` of its μ smooths."""
        self._check(y)
        family, dim = ChainGaussian(), len(self.first_mean)
        start = family.from_precision(
            y.new_zeros(len(y), dim),
            torch.eye(dim).to(y).expand(len(y), dim, dim),
            y.new_zeros(len(y) - 1, dim, dim),
        )
        return bayes_rule(family, lambda mu: self._first(mu) + self._links(mu) + self._misfit(y, mu), start)

    def filter(self, y: Observations) -> list[Natural]:
        """q(x_t | y_1, …, y_t) for each t: predict, then one step with ρ = 1."""
        self._check(y)
        family = GaussianFull()
        predicted = family.from_mean_precision(self.first_mean, torch.linalg.inv(self.first_covariance))
        found = []
        for observed in y:
            found.append(self._observe(predicted, observed))
            predicted = self.predict(found[-1])
        return found

    def predict(self, natural: Natural) -> Natural:
        """q(x_{t+1}) = N(Fm, FVFᵀ + Q)."""
        mean, precision = GaussianFull().to_mean_precision(natural)
        spread = self.transition @ torch.linalg.inv(precision) @ self.transition.mT + self.transition_covariance
        inverse = torch.linalg.inv(spread)
        return GaussianFull().from_mean_precision(self.transition @ mean, (inverse + inverse.mT) / 2)

    def _observe(self, predicted: Natural, observed: Float[Tensor, " outputs"]) -> Natural:
        family, weight = GaussianFull(), torch.linalg.inv(self.observation_covariance)

        def expected_loss(mu: Expectation) -> Tensor:
            misfit = _quadratic(weight, self.observation, observed, mu["linear"], mu["quadratic"])
            return misfit - family.inner(predicted, mu)

        return bayes_rule(family, expected_loss, predicted)

    def _first(self, mu: Expectation) -> Tensor:
        eye = torch.eye(len(self.first_mean)).to(self.first_mean)
        weight = torch.linalg.inv(self.first_covariance)
        return _quadratic(weight, eye, self.first_mean, mu["linear"][0], mu["quadratic"][0])

    def _links(self, mu: Expectation) -> Tensor:
        """½E Σ|x_{t+1} − Fx_t|² in the metric of Q⁻¹."""
        weight = torch.linalg.inv(self.transition_covariance)
        before, after = mu["quadratic"][:-1].sum(0), mu["quadratic"][1:].sum(0)
        cross = mu["link"].sum(0)
        squared = after - self.transition @ cross - (self.transition @ cross).mT
        return 0.5 * (weight * (squared + self.transition @ before @ self.transition.mT)).sum()

    def _misfit(self, y: Observations, mu: Expectation) -> Tensor:
        weight = torch.linalg.inv(self.observation_covariance)
        each = torch.func.vmap(lambda observed, linear, quadratic: _quadratic(
            weight, self.observation, observed, linear, quadratic
        ))  # fmt: skip
        return each(y, mu["linear"], mu["quadratic"]).sum()


def _quadratic(weight: Tensor, matrix: Tensor, target: Tensor, linear: Tensor, quadratic: Tensor) -> Tensor:
    """½E|y − Hx|² in the metric of R⁻¹, without yᵀR⁻¹y, as a linear function of μ."""
    return 0.5 * ((matrix.mT @ weight @ matrix) * quadratic).sum() - (target @ weight @ matrix) @ linear

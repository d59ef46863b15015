"""Sec. 4.1: linear regression with several outputs has a matrix normal posterior, which the family must find.

For ``Y = XW + noise`` with noise precision β and prior precisions α_i that are the same for all outputs, the posterior
is ``MN(M, U, I)`` with ``U = (βXᵀX + diag α)⁻¹`` over inputs and ``M = βUXᵀY``   [Eq. 5, transposed].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Preset, Verdict
from bayesrule.experiments.mn.claims import by_method
from bayesrule.experiments.rows import Row
from bayesrule.posteriors import Diagonal, Family, Full, GaussianPosterior, MatrixNormal
from bayesrule.priors import Normal, kl_divergence
from bayesrule.random import keyed_generator

FAMILIES: dict[str, Family] = {"diag": Diagonal(), "mn": MatrixNormal(), "full": Full()}
METRICS = ("mean_error", "covariance_error", "elbo_gap")
NOISE_PRECISION = 4.0


@dataclass(frozen=True)
class Regression:
    """A data set with correlated inputs, known noise and known prior precisions, in double precision."""

    x: Tensor
    y: Tensor
    prior_precision: Tensor

    @classmethod
    def drawn(cls, inputs: int, outputs: int, examples: int, seed: int) -> Regression:
        """From the model itself; all inputs share a common part."""
        generator = keyed_generator(torch.device("cpu"), "regression", seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, dtype=torch.float64, generator=generator)

        x = 0.5 * normal(examples, inputs) + normal(examples, 1)
        precision = normal(inputs).exp()
        weight = normal(inputs, outputs) / precision.sqrt()[:, None]
        return cls(x, x @ weight + normal(examples, outputs) / math.sqrt(NOISE_PRECISION), precision)

    @property
    def precision(self) -> Tensor:
        """``U⁻¹ = βXᵀX + diag α``."""
        return NOISE_PRECISION * self.x.mT @ self.x + self.prior_precision.diag()

    @property
    def mean(self) -> Tensor:
        """``M = βUXᵀY``."""
        return NOISE_PRECISION * torch.linalg.solve(self.precision, self.x.mT @ self.y)

    def covariance(self) -> Tensor:
        """``U ⊗ I`` over the entries of W, row by row."""
        identity = torch.eye(self.y.shape[1], dtype=torch.float64)
        return torch.kron(torch.linalg.inv(self.precision).contiguous(), identity)

    def log_evidence(self) -> Tensor:
        """``log p(Y)``: every output is normal with covariance ``I/β + X diag(1/α) Xᵀ``."""
        noise = torch.eye(len(self.x), dtype=torch.float64) / NOISE_PRECISION
        covariance = noise + self.x / self.prior_precision @ self.x.mT
        law = torch.distributions.MultivariateNormal(torch.zeros(len(self.x), dtype=torch.float64), covariance)
        return law.log_prob(self.y.mT).sum()

    def negative_elbo(self, posterior: GaussianPosterior) -> Tensor:
        """``KL − E_q log p(Y | W)``; every term in closed form."""
        prior = Normal(self.prior_precision.rsqrt()[:, None])
        return kl_divergence(posterior, prior) - expected_log_likelihood(posterior, self.x, self.y)


def expected_log_likelihood(posterior: GaussianPosterior, x: Tensor, y: Tensor) -> Tensor:
    """``E_q log p(Y | W)``, from ``E‖Y − XW‖² = ‖Y − XM‖² + Σ_k Var``."""
    residual = (y - x @ posterior.mean).square().sum()
    gram = (x.mT @ x).contiguous()
    spread = torch.kron(gram, torch.eye(y.shape[1], dtype=torch.float64)) * posterior.covariance.dense()
    normaliser = y.numel() * math.log(NOISE_PRECISION / (2 * math.pi))
    return 0.5 * (normaliser - NOISE_PRECISION * (residual + spread.sum()))


def fitted(
    family: Family,
    negative_elbo: Callable[[GaussianPosterior], Tensor],
    start: Float[Tensor, "fan_in fan_out"],
    least_change: float = 0.0,
) -> GaussianPosterior:
    """The member of a family that maximises a bound, from a mean on, until a step changes it less than said."""
    first = family.init(start.contiguous(), generator=torch.Generator().manual_seed(0))
    parameters = {name: value.clone().requires_grad_() for name, value in first.items()}
    optimizer = torch.optim.LBFGS(
        list(parameters.values()),
        max_iter=2000,
        tolerance_grad=1e-9,
        tolerance_change=least_change,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = negative_elbo(_gaussian(family, parameters))
        loss.backward()
        return loss

    optimizer.step(closure)
    return _gaussian(family, {name: value.detach() for name, value in parameters.items()})


def _gaussian(family: Family, parameters: dict[str, Tensor]) -> GaussianPosterior:
    return cast(GaussianPosterior, family.build(parameters, event_dim=2))


def measure(family: Family, problem: Regression) -> dict[str, float]:
    """Relative errors of mean and covariance, and nats that the bound lacks to the evidence."""
    found = fitted(family, problem.negative_elbo, torch.zeros_like(problem.mean))
    return {
        "mean_error": _relative(found.mean, problem.mean),
        "covariance_error": _relative(found.covariance.dense(), problem.covariance()),
        "elbo_gap": (problem.log_evidence() + problem.negative_elbo(found)).item(),
    }


def _relative(found: Tensor, exact: Tensor) -> float:
    return float(torch.linalg.vector_norm(found - exact) / torch.linalg.vector_norm(exact))


def run(context: Context) -> list[Row]:
    """Every family on several drawn problems."""
    inputs, outputs, examples = context.preset.settings["shape"]

    def cell(method: str, number: int) -> dict[str, float]:
        problem = Regression.drawn(inputs, outputs, examples, context.seed + number)
        return context.cell(
            "regression", method, f"problem {number}", compute=lambda: measure(FAMILIES[method], problem)
        )

    rows = []
    for method in context.methods:
        cells = [cell(method, number) for number in range(context.preset.settings["problems"])]
        rows += [
            Row.over([found[metric] for found in cells], dataset="regression", method=method, variant="", metric=metric)
            for metric in METRICS
        ]
    return rows


def _recovered(rows: Sequence[Row]) -> Verdict:
    if "mn" not in by_method(rows, "mean_error"):
        return Verdict("not measured", "needs mn")
    errors = [by_method(rows, metric)["mn"].value for metric in ("mean_error", "covariance_error")]
    return Verdict.of(max(errors) < 1e-4, f"relative errors {errors[0]:.1e} and {errors[1]:.1e}")


def _only_mean(rows: Sequence[Row]) -> Verdict:
    if "diag" not in by_method(rows, "mean_error"):
        return Verdict("not measured", "needs diag")
    mean, covariance = (by_method(rows, metric)["diag"].value for metric in ("mean_error", "covariance_error"))
    return Verdict.of(mean < 1e-4 < 0.1 < covariance, f"relative errors {mean:.1e} and {covariance:.2f}")


SECTION41 = Experiment(
    id="mn/section4.1",
    title="Linear regression has a matrix normal posterior: which families find it",
    presets={
        "smoke": Preset(("regression",), tuple(FAMILIES), {"shape": [4, 3, 40], "problems": 1}, synthetic=True),
        "quick": Preset(("regression",), tuple(FAMILIES), {"shape": [6, 4, 200], "problems": 3}),
        "paper": Preset(("regression",), tuple(FAMILIES), {"shape": [10, 5, 400], "problems": 5}),
    },
    methods=tuple(FAMILIES),
    datasets=lambda folder: ("regression",),
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(
        Claim("the matrix normal recovers the exact posterior: mean and covariance to 1e-4", _recovered),
        Claim("mean-field recovers the mean, but not the covariance", _only_mean),
    ),
    published=Path(__file__).with_name("section41.json"),
    drawn=True,
)

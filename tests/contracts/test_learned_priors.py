"""Learned scales are the best of their kind: against a convex solver, by perturbation and by their gradients."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import hypothesis
import numpy as np
import pytest
import torch
from dense_oracle import array, dense
from examples import Example, family_example, noise
from hypothesis import strategies as st
from prior_examples import CLOSED_FORM, EXACT, Array, PriorExample, Shape, posterior_of
from scipy import optimize
from torch import Tensor

from bayesrule.posteriors import Diagonal, Family, GaussianPosterior, KTied, MatrixNormal
from bayesrule.priors import ARD, DiagonalNormal, GroupARD, Normal, kl_divergence


@dataclass(frozen=True)
class Optimum:
    """The least KL that a prior's choice allows, found numerically."""

    kl: float
    precision: Array

    @classmethod
    def of(cls, prior: PriorExample, posterior: GaussianPosterior) -> Optimum:
        """``min_h ½[−Σ log p + Σ p E[(w − m)²] − d − log det Σ]`` with ``log p = design h``: a convex function."""
        shape, covariance = tuple(posterior.event_shape), dense(posterior.covariance)
        assert prior.design is not None
        design = prior.design(shape)
        squares = np.diag(covariance) + (array(posterior.mean).ravel() - prior.mean(shape)) ** 2
        constant = len(squares) + np.linalg.slogdet(covariance)[1]

        def weighted(h: Array) -> Array:
            return np.exp(design @ h) * squares

        found = optimize.minimize(
            lambda h: 0.5 * (weighted(h).sum() - (design @ h).sum() - constant),
            np.zeros(design.shape[1]),
            jac=lambda h: 0.5 * design.T @ (weighted(h) - 1),
            hess=lambda h: 0.5 * design.T @ (weighted(h)[:, None] * design),
            method="trust-exact",
            options={"gtol": 1e-12},
        )
        return cls(float(found.fun), np.exp(design @ found.x).reshape(shape))


@pytest.mark.parametrize("example", EXACT, ids=str)
def test_learned_scales_are_the_best_of_their_kind(example: Example) -> None:
    posterior = example.posterior
    assert isinstance(posterior, GaussianPosterior)
    for prior in CLOSED_FORM:
        best = Optimum.of(prior, posterior)
        assert prior.kl(posterior).item() == pytest.approx(best.kl, abs=1e-8), prior.name
        precision = array(prior.given(posterior).precision.expand(posterior.event_shape))
        np.testing.assert_allclose(precision, best.precision, rtol=1e-6, err_msg=prior.name)


@cache
def choice(prior: PriorExample, shape: Shape) -> tuple[GaussianPosterior, DiagonalNormal, Tensor]:
    """A posterior, the scales a prior chooses for it, and its KL: found once for all the scales they are set beside."""
    posterior = posterior_of(Diagonal(init_std=0.5), shape)
    return posterior, prior.given(posterior), prior.kl(posterior)


@pytest.mark.parametrize("shape", [(5, 3), (4,)], ids=str)
@pytest.mark.parametrize("prior", CLOSED_FORM, ids=str)
@hypothesis.settings(max_examples=30)
@hypothesis.given(st.integers(0, 2**31), st.floats(1e-4, 3))
def test_no_other_scales_are_better(prior: PriorExample, shape: Shape, seed: int, size: float) -> None:
    posterior, given, kl = choice(prior, shape)
    assert prior.design is not None
    design = torch.from_numpy(prior.design(shape))
    step = size * (design @ noise(torch.Generator().manual_seed(seed), design.shape[1])).reshape(shape)
    other = Normal((given.precision * step.exp()).rsqrt(), mean=given.mean)
    assert kl_divergence(posterior, other) >= kl - 1e-12


@pytest.mark.parametrize("family", [Diagonal(init_std=0.5), MatrixNormal(init_std=0.5)], ids=str)
@pytest.mark.parametrize("prior", CLOSED_FORM, ids=str)
def test_the_gradient_is_that_of_the_kl_with_its_scales_found_anew(prior: PriorExample, family: Family) -> None:
    example = family_example(family, (3, 4))
    assert example is not None
    generator = torch.Generator().manual_seed(8)
    parameters = {name: value.clone().requires_grad_() for name, value in example.parameters.items()}
    gradients = torch.autograd.grad(prior.kl(example.build(parameters)), list(parameters.values()))

    def best_kl(step: float, direction: list[Tensor]) -> float:
        pairs = zip(example.parameters.items(), direction, strict=True)
        posterior = example.build({name: value + step * along for (name, value), along in pairs})
        assert isinstance(posterior, GaussianPosterior)
        return Optimum.of(prior, posterior).kl

    for _ in range(3):
        direction = [noise(generator, *value.shape) for value in parameters.values()]
        analytic = sum((gradient * along).sum().item() for gradient, along in zip(gradients, direction, strict=True))
        numeric = (best_kl(1e-5, direction) - best_kl(-1e-5, direction)) / 2e-5
        assert analytic == pytest.approx(numeric, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("example", EXACT, ids=str)
def test_the_more_a_prior_may_choose_the_smaller_the_kl(example: Example) -> None:
    kl = {prior.name: prior.kl(example.posterior).item() for prior in CLOSED_FORM}
    for one in ("GroupARD row", "GroupARD column"):
        chain = [kl["ARD"], kl["GroupARD both"], kl[one], kl["LearnedNormal"]]
        assert all(smaller <= larger + 1e-9 for smaller, larger in pairwise(chain)), (one, chain)


@pytest.mark.parametrize("family", [Diagonal(init_std=0.5), KTied(rank=2, init_std=0.5)], ids=str)
def test_ard_of_a_diagonal_posterior(family: Family) -> None:
    posterior = posterior_of(family, (5, 3))
    signal_to_noise = array(posterior.mean.square() / posterior.variance)
    assert kl_divergence(posterior, ARD()).item() == pytest.approx(0.5 * np.log1p(signal_to_noise).sum(), rel=1e-12)


def test_ard_of_a_posterior_without_mass_is_finite() -> None:
    posterior = posterior_of(Diagonal(init_std=1e-200, init_spread=0.0), (2, 2))
    zero = GaussianPosterior(torch.zeros_like(posterior.mean), posterior.covariance)
    for prior in (ARD(), GroupARD("row"), GroupARD("both")):
        assert prior.given(zero, {}).precision.isfinite().all()

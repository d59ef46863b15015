"""Every optimizer's fixed point on a linear-Gaussian model is the exact posterior of its family."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.optim import (
    NoisyAdam,
    NoisyBlockTridiagonal,
    NoisyEKFAC,
    NoisyFull,
    NoisyKFAC,
    PosteriorOptimizer,
)
from optim_problems import LinearGaussian, Recorded, make, network, regression, silent, step

EXACT = [
    pytest.param(NoisyKFAC, {"damping": "exact"}, id="NoisyKFAC"),
    pytest.param(NoisyEKFAC, {}, id="NoisyEKFAC"),
    pytest.param(NoisyFull, {}, id="NoisyFull"),
]
FACTORED = [
    pytest.param(NoisyKFAC, {}, id="NoisyKFAC"),
    pytest.param(NoisyBlockTridiagonal, {}, id="NoisyBlockTridiagonal"),
]
weights = pytest.mark.parametrize("kl_weight", [1.0, 0.3])


def held(optimizer: PosteriorOptimizer) -> tuple[np.ndarray, np.ndarray]:
    """Mean (fan-in × fan-out) and dense covariance."""
    (posterior,) = br.posteriors(optimizer).values()
    return posterior.mean.reshape(4, 2).numpy(), posterior.covariance.dense().numpy()


@weights
@pytest.mark.parametrize(("kind", "options"), EXACT)
def test_one_step_with_all_curvature_is_the_exact_posterior(kind, options, kl_weight: float) -> None:
    problem = LinearGaussian.make(kl_weight)
    optimizer = problem.optimizer(kind, lr=1.0, beta=1.0, **options)
    step(optimizer, problem.loss(optimizer), noise=silent)
    mean, covariance = held(optimizer)
    np.testing.assert_allclose(mean, problem.mean, rtol=1e-9, atol=1e-11)
    np.testing.assert_allclose(covariance, np.kron(np.linalg.inv(problem.precision), np.eye(2)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("kind", "options"), EXACT)
def test_it_is_a_fixed_point_of_mirrored_draws(kind, options) -> None:
    """Draws w and 2μ − w: their average gradient is that at the mean, which must not move any more."""
    problem = LinearGaussian.make()
    optimizer = problem.optimizer(kind, lr=1.0, beta=0.5, **options)
    loss, recorded = problem.loss(optimizer), Recorded()
    for _ in range(4):
        for noise in (recorded, None):
            with optimizer.sampled_params(noise=noise or recorded.mirrored()):
                optimizer.zero_grad()
                loss().backward()
        optimizer.step()
        recorded.noises.clear()
    mean, covariance = held(optimizer)
    np.testing.assert_allclose(mean, problem.mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(covariance, np.kron(np.linalg.inv(problem.precision), np.eye(2)), rtol=1e-9, atol=1e-12)


@weights
def test_noisy_adam_reaches_the_mean_field_optimum(kl_weight: float) -> None:
    """The factorized Gaussian nearest to the posterior, in KL(q ‖ p), has its mean and its precision's diagonal."""
    problem = LinearGaussian.make(kl_weight)
    optimizer = problem.optimizer(NoisyAdam, lr=0.5, betas=(0.8, 0.999), warm_up=True, T_stats=1000)
    for _ in range(250):
        step(optimizer, problem.loss(optimizer), noise=silent)
    mean, covariance = held(optimizer)
    np.testing.assert_allclose(mean, problem.mean, rtol=1e-8, atol=1e-9)
    variance = np.repeat(1 / np.diag(problem.precision), 2)
    np.testing.assert_allclose(covariance, np.diag(variance), rtol=1e-10, atol=1e-14)


@weights
@pytest.mark.parametrize(("kind", "options"), FACTORED)
def test_factored_damping_has_the_exact_mean_and_the_covariance_of_equation_12(kind, options, kl_weight: float) -> None:
    problem = LinearGaussian.make(kl_weight)
    optimizer = problem.optimizer(kind, lr=1.0, beta=1.0, T_stats=1000, T_inv=1000, **options)
    for _ in range(70):
        step(optimizer, problem.loss(optimizer), noise=silent)
    mean, covariance = held(optimizer)
    np.testing.assert_allclose(mean, problem.mean, rtol=1e-8, atol=1e-9)
    n_data = len(problem.x)
    a, s = problem.design.T @ problem.design / n_data, np.eye(2) / problem.noise_std**2
    root = np.sqrt(kl_weight / (n_data * problem.prior_std**2))
    balance = np.sqrt((np.trace(a) / 4) / (np.trace(s) / 2))
    damped = np.kron(a + balance * root * np.eye(4), s + root / balance * np.eye(2))
    np.testing.assert_allclose(covariance, kl_weight / n_data * np.linalg.inv(damped), rtol=1e-9, atol=1e-13)
    exact = np.kron(np.linalg.inv(problem.precision), np.eye(2))
    assert np.linalg.eigvalsh(exact - covariance).min() > 0  # too tight, in every direction


def test_the_block_tridiagonal_posterior_is_its_dense_matrix_on_three_layers() -> None:
    """Moments by autograd, then the chain of conditionals written out   [ERRATA, NNG 4]."""
    net = network(3, 4, 2, 2)
    x, y = regression(60)
    optimizer = make(NoisyBlockTridiagonal, net, n_data=60, likelihood=None, beta=1.0, lr=0.0)
    step(optimizer, lambda: 0.5 * (net(x) - y).square().sum(-1).mean(), noise=silent)

    inputs, outputs, value = [], [], x
    for module in net:
        if isinstance(module, nn.Linear):
            inputs.append(torch.cat([value, torch.ones(60, 1, dtype=torch.float64)], dim=1).detach().numpy())
            value = module(value)
            value.retain_grad()
            outputs.append(value)
        else:
            value = module(value)
    (0.5 * (value - y).square().sum()).backward()
    gradients = [output.grad.numpy() for output in outputs]

    root = np.sqrt(1 / (60 * 0.8**2))
    blocks = []
    for a, g in zip(inputs, gradients, strict=True):
        a, g = a.T @ a / 60, g.T @ g / 60
        balance = np.sqrt(np.trace(a) / len(a) / (np.trace(g) / len(g)))
        blocks.append(np.kron(a + balance * root * np.eye(len(a)), g + root / balance * np.eye(len(g))))
    ends = np.cumsum([0, *(len(block) for block in blocks)])
    xi, middle = np.eye(ends[-1]), np.zeros((ends[-1],) * 2)
    spans = [slice(*pair) for pair in pairwise(ends)]
    middle[spans[-1], spans[-1]] = np.linalg.inv(blocks[-1])
    for this, following in pairwise(range(3)):
        cross = np.kron(inputs[this].T @ inputs[following] / 60, gradients[this].T @ gradients[following] / 60)
        psi = cross @ np.linalg.inv(blocks[following])
        xi[spans[this], spans[following]] = -psi
        middle[spans[this], spans[this]] = np.linalg.inv(blocks[this] - psi @ blocks[following] @ psi.T)
    (posterior,) = br.posteriors(optimizer).values()
    np.testing.assert_allclose(posterior.covariance.dense(), xi.T @ middle @ xi / 60, rtol=1e-8, atol=1e-12)

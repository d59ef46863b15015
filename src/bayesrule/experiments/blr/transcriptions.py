"""Published algorithms written a second time, in NumPy, from their own equations: the comparators of tier B."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Function = Callable[[Array], Array]


def logistic_terms(x: Array, y: Array) -> tuple[Function, Function]:
    """Per-example gradients and Hessian factors p(1−p) of logistic regression."""
    return (
        lambda theta: (1 / (1 + np.exp(-x @ theta)) - y)[:, None] * x,
        lambda theta: (1 / (1 + np.exp(-x @ theta))) * (1 / (1 + np.exp(x @ theta))),
    )


def ogn(
    gradients: Callable[[int, Array], Array],
    theta: Array,
    precision: Array,
    *,
    rate: float,
    scale: float,
    prior_precision: float,
    noise: Sequence[Array] | None = None,
) -> Iterator[tuple[Array, Array]]:
    """Eqs. 44–46: OGN, or with standard normal ``noise`` VOGN, whose draws are θ + ε/√s."""
    t = 0
    while True:
        point = theta if noise is None else theta + noise[t] / np.sqrt(precision)
        each = gradients(t, point)
        gradient = scale * each.sum(0) + prior_precision * point
        precision = (1 - rate) * precision + rate * (scale * (each**2).sum(0) + prior_precision)
        theta = theta - rate * gradient / precision
        t += 1
        yield theta, precision


def bayesbinn(
    gradient: Callable[[int, Array], Array],
    latent: Array,
    *,
    rate: float,
    temperature: float,
    uniforms: Sequence[Array],
) -> Iterator[Array]:
    """Eq. 52."""
    for t, uniform in enumerate(uniforms):
        theta = np.tanh((latent + 0.5 * np.log(uniform / (1 - uniform))) / temperature)
        slope = (1 - theta**2) / (temperature * (1 - np.tanh(latent) ** 2))
        latent = (1 - rate) * latent - rate * slope * gradient(t, theta)
        yield latent


def dropout_newton(
    gradient: Callable[[int, Array], Array],
    curvature: Callable[[int, Array], Array],
    theta: Array,
    precision: Array,
    masks: Sequence[Array],
    *,
    rate: float,
    keep: float,
) -> Iterator[tuple[Array, Array]]:
    """Eqs. 42 and 43, diagonal, with derivatives by the weights behind the mask."""
    for t, mask in enumerate(masks):
        dropped = mask * theta
        precision = (1 - rate) * precision + rate * mask**2 * curvature(t, dropped) / keep
        theta = theta - rate * mask * gradient(t, dropped) / keep / precision
        yield theta, precision


def mixture_newton(
    gradient: Function, hessian: Function, means: Array, precisions: Array, weights: Array, rate: float
) -> Iterator[tuple[Array, Array]]:
    """Eqs. 29 and 30 at the means, with Eqs. 69–71 for the derivatives of log q."""
    while True:
        new_means, new_precisions = [], []
        for mean, precision in zip(means, precisions, strict=True):
            slope, bend = log_mixture_derivatives(mean, means, precisions, weights)
            updated = precision + rate * (hessian(mean) + bend)
            new_precisions.append(updated)
            new_means.append(mean - rate * np.linalg.solve(updated, gradient(mean) + slope))
        means, precisions = np.array(new_means), np.array(new_precisions)
        yield means, precisions


def log_mixture_derivatives(theta: Array, means: Array, precisions: Array, weights: Array) -> tuple[Array, Array]:
    """∇log q and ∇²log q of a mixture of Gaussians   (Eqs. 69–71)."""
    shifts = means - theta
    pulls = np.einsum("kij,kj->ki", precisions, shifts)
    log_density = 0.5 * np.linalg.slogdet(precisions)[1] - 0.5 * np.einsum("ki,ki->k", shifts, pulls) + np.log(weights)
    share = np.exp(log_density - log_density.max())
    share = share / share.sum()
    slope = share @ pulls
    bend = np.einsum("k,ki,kj->ij", share, pulls, pulls) - np.einsum("k,kij->ij", share, precisions)
    return slope, bend - np.outer(slope, slope)


def online_em(
    batches: Sequence[Array], weights: Array, means: Array, covariances: Array, rates: Sequence[float]
) -> Iterator[tuple[Array, Array, Array]]:
    """Cappé & Moulines (2009) for a mixture of Gaussians: running means of the statistics, then maximum likelihood."""
    zeroth = weights
    first = weights[:, None] * means
    second = weights[:, None, None] * (covariances + means[:, :, None] * means[:, None, :])
    for x, rate in zip(batches, rates, strict=True):
        shifts = x[:, None] - means
        distance = np.einsum("nki,kij,nkj->nk", shifts, np.linalg.inv(covariances), shifts)
        score = np.log(weights) - 0.5 * np.linalg.slogdet(covariances)[1] - 0.5 * distance
        share = np.exp(score - score.max(1, keepdims=True))
        share = share / share.sum(1, keepdims=True) / len(x)
        zeroth = (1 - rate) * zeroth + rate * share.sum(0)
        first = (1 - rate) * first + rate * share.T @ x
        second = (1 - rate) * second + rate * np.einsum("nk,ni,nj->kij", share, x, x)
        weights, means = zeroth, first / zeroth[:, None]
        covariances = second / zeroth[:, None, None] - means[:, :, None] * means[:, None, :]
        yield weights, means, covariances


def nonconjugate_vmp_poisson(
    x: Array, y: Array, prior_precision: float, mean: Array, variance: Array
) -> Iterator[tuple[Array, Array]]:
    """Knowles & Minka (2011), Algorithm 1: for each weight, Fisher matrix and gradient in λ written out.

    Poisson regression, one Gaussian for each weight: S_i = E[y f − exp f] has a formula. In λ = (m/v, −1/2v) the
    derivatives are ∂m/∂λ = (v, 2mv) and ∂v/∂λ = (0, 2v²), and F = [[v, 2mv], [2mv, 4m²v + 2v²]].
    """
    mean, variance = mean.copy(), variance.copy()
    while True:
        for j in range(len(mean)):
            rate = np.exp(x @ mean + 0.5 * (x**2) @ variance)
            m, v = mean[j], variance[j]
            fisher = np.array([[v, 2 * m * v], [2 * m * v, 4 * m**2 * v + 2 * v**2]])
            by_mean, by_variance = x[:, j] @ (y - rate), -0.5 * (x[:, j] ** 2) @ rate
            gradient = np.array([by_mean * v, by_mean * 2 * m * v + by_variance * 2 * v**2])
            natural = np.linalg.solve(fisher, gradient) + np.array([0.0, -0.5 * prior_precision])
            variance[j] = -0.5 / natural[1]
            mean[j] = natural[0] * variance[j]
        yield mean.copy(), variance.copy()


def hedge(losses: Sequence[Array], weights: Array, rate: float) -> Iterator[Array]:
    """Exponential weights: multiply by exp(−η·loss), divide by the sum."""
    for loss in losses:
        weights = weights * np.exp(-rate * loss)
        weights = weights / weights.sum()
        yield weights

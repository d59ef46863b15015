"""The non-conjugate rows of Table 1 beside their published equations, and roots of their optimality conditions."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesrule import algorithms
from bayesrule.experiments.blr import transcriptions
from bayesrule.experiments.blr.problems import Size, largest, logistic
from bayesrule.expfam import GaussianDiagonal, GaussianFull, Loss, constant, of_function

MIX = np.full(2, 0.5)


def nonconjugate_message_passing(size: Size) -> float:
    """Poisson regression, one Gaussian for each weight, against Knowles and Minka's algorithm in NumPy."""
    rng = size.rng("counts")
    x = 0.5 * rng.normal(size=(size.examples, 2))
    y = rng.poisson(np.exp(x @ np.array([0.5, -0.8]))).astype(float)
    inputs, counts = torch.as_tensor(x), torch.as_tensor(y)
    families = {"w0": GaussianDiagonal(), "w1": GaussianDiagonal()}

    def expected_loss(mu: Any) -> Tensor:
        mean = torch.cat([mu[name]["linear"] for name in families])
        second = torch.cat([mu[name]["quadratic"] for name in families])
        predictor = inputs @ mean
        rate = torch.exp(predictor + 0.5 * inputs.square() @ (second - mean.square()))
        return (rate - counts * predictor).sum() + 0.5 * 2.0 * second.sum()

    one = torch.ones(1, dtype=torch.float64)
    naturals = {name: GaussianDiagonal().from_mean_precision(0 * one, 5 * one) for name in families}
    theirs = transcriptions.nonconjugate_vmp_poisson(x, y, 2.0, np.zeros(2), np.full(2, 0.2))
    differences: list[Any] = []
    for wanted in islice(theirs, 15):
        naturals = algorithms.nonconjugate_vmp_sweep(families, expected_loss, naturals, ["w0", "w1"])
        for j, natural in enumerate(naturals.values()):
            mean, precision = GaussianDiagonal().to_mean_precision(natural)
            differences += [mean.item() - wanted[0][j], 1 / precision.item() - wanted[1][j]]
    return largest(differences)


def nonconjugate_vi(size: Size) -> float:
    """Fixed points against roots of the optimality conditions, by quadrature; for two Gaussians iterates too."""
    return max(_single_gaussian(size), _two_gaussians(), _two_wells_apart())


def _single_gaussian(size: Size) -> float:
    """Logistic regression with one weight: E[ℓ'] = 0 and E[ℓ''] = s on a fine grid, by scipy's root finder."""
    import scipy.optimize
    import scipy.special

    problem, family = logistic(size, dim=1), GaussianFull()
    x, y = problem.x[:, 0].numpy(), problem.y.numpy()
    natural = family.from_mean_precision(torch.zeros(1).double(), torch.ones(1, 1).double())
    loss = problem.loss()

    def expected_loss(mu: Any) -> Tensor:
        nodes, weights = np.polynomial.hermite_e.hermegauss(40)
        mean = mu["q"]["linear"]
        std = (mu["q"]["quadratic"][0] - mean.square()).sqrt()
        values = torch.func.vmap(loss)(mean + std * torch.as_tensor(nodes).unsqueeze(-1))
        return values @ torch.as_tensor(weights / weights.sum())

    steps = algorithms.nonconjugate_vi({"q": family}, expected_loss, {"q": natural}, constant(0.7))
    mean, precision = (value.item() for value in family.to_mean_precision(next(islice(steps, 60, None))["q"]))

    standard = np.linspace(-12, 12, 4001)
    density = np.exp(-0.5 * standard**2)
    density = density / density.sum()

    def conditions(point: np.ndarray) -> list[float]:
        theta = point[0] + np.exp(-0.5 * point[1]) * standard
        probability = scipy.special.expit(np.outer(theta, x))
        slope = (probability - y) @ x + theta
        bend = (probability * (1 - probability)) @ x**2 + 1
        return [density @ slope, density @ bend - np.exp(point[1])]

    root = scipy.optimize.root(conditions, [mean + 0.1, np.log(precision) + 0.1], tol=1e-14).x
    return max(abs(mean - root[0]), abs(precision / np.exp(root[1]) - 1))


def _two_gaussians(steps: int = 10) -> float:
    """Iterates of overlapping components on a skewed double well, against Eqs. 29, 30 and 69–71 on the same nodes."""
    mixture, natural = algorithms.uniform_mixture(torch.tensor([[-1.2], [1.2]], dtype=torch.float64), precision=3.0)
    ours = algorithms.nonconjugate_mixture_vi(_double_well(1.0), mixture, natural, 0.3, order=20)
    means, precisions = np.array([[-1.2], [1.2]]), np.full((2, 1, 1), 3.0)
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    differences: list[Any] = []
    for natural in islice(ours, steps):
        slopes, bends = [], []
        for mean, precision in zip(means, precisions, strict=True):
            points = mean[0] + nodes / np.sqrt(precision[0, 0])
            each = [transcriptions.log_mixture_derivatives(np.array([p]), means, precisions, MIX) for p in points]
            slopes.append(weights @ [4 * p**3 - 4 * p + 0.3 + d[0][0] for p, d in zip(points, each, strict=True)])
            bends.append(weights @ [12 * p**2 - 4 + d[1][0, 0] for p, d in zip(points, each, strict=True)])
        precisions = precisions + 0.3 * np.array(bends)[:, None, None] / weights.sum()
        means = means - 0.3 * np.array(slopes)[:, None] / weights.sum() / precisions[:, 0]
        got = GaussianFull().to_mean_precision(natural)
        differences += [got[0].numpy() - means, got[1].numpy() - precisions]
    return largest(differences)


def _two_wells_apart(steps: int = 50) -> float:
    """Fixed point for deep wells: where E_k[∇(ℓ + log q)] = 0 = E_k[∇²(ℓ + log q)], on a fine grid of the line."""
    import scipy.optimize

    mixture, natural = algorithms.uniform_mixture(torch.tensor([[-1.2], [1.2]], dtype=torch.float64), precision=3.0)
    found = next(islice(algorithms.nonconjugate_mixture_vi(_double_well(8.0), mixture, natural, 0.7), steps, None))
    means, precisions = (value.flatten().numpy() for value in GaussianFull().to_mean_precision(found))
    grid = np.linspace(-3, 3, 24001)
    slope, bend = 32 * grid**3 - 32 * grid + 0.3, 96 * grid**2 - 32

    def conditions(point: np.ndarray) -> np.ndarray:
        centre, precision = point[:2, None], np.exp(point[2:, None])
        density = np.sqrt(precision / (2 * np.pi)) * np.exp(-0.5 * precision * (grid - centre) ** 2)
        share = density / density.sum(0)
        pull = precision * (centre - grid)
        first = (share * pull).sum(0)
        second = (share * (pull**2 - precision)).sum(0) - first**2
        spacing = grid[1] - grid[0]
        return np.concatenate([density @ (slope + first), density @ (bend + second)]) * spacing

    root = scipy.optimize.root(conditions, np.concatenate([means, np.log(precisions)]) + 0.01, tol=1e-13).x
    return largest([means - root[:2], precisions / np.exp(root[2:]) - 1])


def _double_well(depth: float) -> Loss:
    return of_function(lambda theta: (depth * (theta.square() - 1).square() + 0.3 * theta).sum())

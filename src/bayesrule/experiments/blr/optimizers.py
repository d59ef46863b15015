"""Rows of Table 1 beside torch.optim, statsmodels and their published equations: optimisation and deep learning."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesrule import algorithms
from bayesrule.experiments.blr import transcriptions
from bayesrule.experiments.blr.problems import Logistic, Size, largest, logistic
from bayesrule.expfam import GaussianDiagonal, GaussianFull, Loss, of_function
from bayesrule.random import Replay

BATCH = 10


def gradient_descent(size: Size) -> float:
    """Against ``torch.optim.SGD`` on all examples."""
    problem, start = logistic(size), torch.ones(3, dtype=torch.float64)
    ours = algorithms.gradient_descent(problem.loss(), start, 0.01)
    theirs = _torch_iterates(lambda t: problem.loss(), start, torch.optim.SGD, lr=0.01)
    return _largest_difference(ours, theirs, size.steps)


def newton(size: Size) -> float:
    """Against the Newton iterations of ``statsmodels``' logistic regression, started at 0."""
    import statsmodels.api

    problem = logistic(size, prior_precision=0.0)
    model = statsmodels.api.Logit(problem.y.numpy(), problem.x.numpy())
    start, family = torch.zeros(3, dtype=torch.float64), GaussianFull()
    differences = []
    for t, natural in enumerate(islice(algorithms.newton(problem.loss(), start), 6), 1):
        options = {"method": "newton", "maxiter": t, "tol": 0.0, "ridge_factor": 0.0, "disp": 0, "warn_convergence": 0}
        fitted = model.fit(start_params=start.numpy(), skip_hessian=True, **options)
        differences.append(family.mean(natural).numpy() - fitted.params)
    return largest(differences)


def multimodal(size: Size) -> float:
    """Against Eqs. 29, 30 and 69–71 in NumPy, on a surface with four minima."""
    mixture, natural = algorithms.uniform_mixture(
        torch.tensor([[-1.5, -1.2], [1.3, 0.8], [-0.9, 1.4]], dtype=torch.float64), precision=4.0
    )
    family = GaussianFull()
    ours = algorithms.multimodal(double_wells(), mixture, natural, 0.2)
    means, precisions = (value.numpy() for value in family.to_mean_precision(natural))
    theirs = transcriptions.mixture_newton(
        lambda theta: 4 * theta**3 - 4 * theta + np.array([0.2, 0.0]),
        lambda theta: np.diag(12 * theta**2 - 4),
        means,
        precisions,
        np.full(3, 1 / 3),
        0.2,
    )
    differences: list[Any] = []
    for got, wanted in islice(zip(ours, theirs, strict=False), size.steps):
        differences += [
            value.numpy() - other for value, other in zip(family.to_mean_precision(got), wanted, strict=True)
        ]
    return largest(differences)


def double_wells() -> Loss:
    """ℓ(θ) = Σ_j (θ_j² − 1)² + 0.2θ_1: minima near all four corners (±1, ±1)."""
    return of_function(lambda theta: (theta.square() - 1).square().sum() + 0.2 * theta[0])


def sgd(size: Size) -> float:
    """Against ``torch.optim.SGD`` on minibatches, with momentum."""
    losses, start = _minibatches(logistic(size)), torch.ones(3, dtype=torch.float64)
    ours = algorithms.sgd(losses, start, 0.002, momentum=0.7)
    theirs = _torch_iterates(losses, start, torch.optim.SGD, lr=0.002, momentum=0.7)
    return _largest_difference(ours, theirs, size.steps)


def rmsprop(size: Size) -> float:
    """Against ``torch.optim.RMSprop`` on minibatches."""
    losses, start = _minibatches(logistic(size)), torch.ones(3, dtype=torch.float64)
    ours = algorithms.rmsprop(losses, start, lr=0.05, alpha=0.9)
    theirs = _torch_iterates(losses, start, torch.optim.RMSprop, lr=0.05, alpha=0.9)
    return _largest_difference(ours, theirs, size.steps)


def adam(size: Size) -> float:
    """Against ``torch.optim.Adam`` on minibatches."""
    losses, start = _minibatches(logistic(size)), torch.ones(3, dtype=torch.float64)
    ours = algorithms.adam(losses, start, lr=0.05)
    theirs = _torch_iterates(losses, start, torch.optim.Adam, lr=0.05)
    return _largest_difference(ours, theirs, size.steps)


def straight_through(size: Size) -> float:
    """Against ``torch.optim.SGD`` on latent weights whose sign passes gradients straight through."""
    losses = _minibatches(logistic(size, dim=6, prior_precision=0.0))
    start = torch.linspace(-0.5, 0.6, 6, dtype=torch.float64)

    def through(t: int) -> Callable[[Tensor], Tensor]:
        return lambda latent: losses(t)(latent + (latent.sign() - latent).detach())

    ours = algorithms.straight_through(losses, start, 0.003)
    theirs = _torch_iterates(through, start, torch.optim.SGD, lr=0.003)
    return _largest_difference(ours, theirs, size.steps)


def ogn(size: Size) -> float:
    """Against Eqs. 44 and 45 in NumPy."""
    return _online_gauss_newton(size, noisy=False)


def vogn(size: Size) -> float:
    """Against Eqs. 45 and 46 in NumPy, with the same noise."""
    return _online_gauss_newton(size, noisy=True)


def bayesbinn(size: Size) -> float:
    """Against Eq. 52 in NumPy, with the same noise."""
    problem = logistic(size, dim=6, prior_precision=0.0)
    batches, x, y = problem.batches(BATCH), problem.x.numpy(), problem.y.numpy()
    start = torch.linspace(-0.5, 0.6, 6, dtype=torch.float64)
    uniforms = size.rng("uniforms").uniform(0.02, 0.98, size=(size.steps, 6))
    scale = len(x) / BATCH

    def gradient(t: int, theta: np.ndarray) -> np.ndarray:
        rows = batches[t % len(batches)].numpy()
        return scale * transcriptions.logistic_terms(x[rows], y[rows])[0](theta).sum(0)

    replay = Replay([torch.as_tensor(uniform) for uniform in uniforms])
    ours = algorithms.bayesbinn(_minibatches(problem), start, 0.01, temperature=0.8, noise=replay)
    theirs = transcriptions.bayesbinn(gradient, start.numpy(), rate=0.01, temperature=0.8, uniforms=list(uniforms))
    return _largest_difference(ours, (torch.as_tensor(latent) for latent in theirs), size.steps)


def _online_gauss_newton(size: Size, *, noisy: bool) -> float:
    problem, family = logistic(size), GaussianDiagonal()
    batches, x, y = problem.batches(BATCH), problem.x.numpy(), problem.y.numpy()
    start = np.ones(3), np.full(3, 5.0)
    noise = list(size.rng("normals").normal(size=(size.steps, 3)))

    def gradients(t: int, theta: np.ndarray) -> np.ndarray:
        rows = batches[t % len(batches)].numpy()
        return transcriptions.logistic_terms(x[rows], y[rows])[0](theta)

    theirs = transcriptions.ogn(
        gradients, *start, rate=0.1, scale=len(x) / BATCH, prior_precision=1.0, noise=noise if noisy else None
    )
    natural = family.from_mean_precision(*(torch.as_tensor(value) for value in start))
    losses = _minibatches(problem)
    if noisy:
        replay = Replay([torch.as_tensor(value) for value in noise])
        ours = algorithms.vogn(losses, natural, 0.1, noise=replay)
    else:
        ours = algorithms.ogn(losses, natural, 0.1)
    differences: list[Any] = []
    for got, wanted in islice(zip(ours, theirs, strict=False), size.steps):
        differences += [
            value.numpy() - other for value, other in zip(family.to_mean_precision(got), wanted, strict=True)
        ]
    return largest(differences)


def _minibatches(problem: Logistic) -> algorithms.Losses:
    batches = problem.batches(BATCH)
    return lambda t: problem.loss(batches[t % len(batches)])


def _torch_iterates(
    losses: Callable[[int], Callable[[Tensor], Tensor]],
    start: Tensor,
    optimizer: Callable[..., torch.optim.Optimizer],
    **options: float,
) -> Iterator[Tensor]:
    theta = start.clone().requires_grad_()
    stepper = optimizer([theta], **options)
    t = 0
    while True:
        stepper.zero_grad()
        losses(t)(theta).backward()
        stepper.step()
        t += 1
        yield theta.detach().clone()


def _largest_difference(ours: Iterator[Tensor], theirs: Iterator[Tensor], steps: int) -> float:
    return largest([got - wanted for got, wanted in islice(zip(ours, theirs, strict=False), steps)])

"""Likelihoods with outputs and targets, and scipy's law of a target for each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy import special, stats
from torch import Tensor

import bayesrule as br
from bayesrule.likelihoods import GaussianGammaNoise, Likelihood, StudentT

DRAWS, EXAMPLES = 7, 5


@dataclass(frozen=True)
class Case:
    """A likelihood, outputs for it, targets, and scipy's law of a target at given outputs."""

    likelihood: Likelihood
    outputs: Tensor
    targets: Tensor
    law: Callable[[np.ndarray], Any]

    @property
    def predictive(self) -> br.Predictive:
        return br.Predictive(self.outputs, self.likelihood)

    @property
    def frozen(self) -> Any:
        """The laws of all the draws."""
        return self.law(self.outputs.numpy())


def gaussian(std: float, *, learn: bool = False) -> br.Gaussian:
    return br.Gaussian(torch.tensor(std, dtype=torch.float64), learn=learn)


def learned_gaussian() -> br.Gaussian:
    likelihood = gaussian(1.0, learn=True)
    with torch.no_grad():
        likelihood.log_noise_std.fill_(math.log(0.4))
    return likelihood.requires_grad_(False)


def updated_gamma_noise() -> GaussianGammaNoise:
    likelihood = GaussianGammaNoise().double()
    likelihood.update(3.0, 20)
    return likelihood


def heteroscedastic(outputs: np.ndarray) -> Any:
    mean, raw = np.split(outputs, 2, axis=-1)
    return stats.norm(mean, 1e-3 + np.log1p(np.exp(raw)))


@dataclass(frozen=True)
class MixtureLaw:
    """A mixture of scipy's normals, the components last, with the methods of a frozen distribution."""

    weights: np.ndarray
    normals: Any
    dist = None

    def mean(self) -> np.ndarray:
        return (self.weights * self.normals.mean()).sum(-1)

    def var(self) -> np.ndarray:
        return (self.weights * (self.normals.var() + self.normals.mean() ** 2)).sum(-1) - self.mean() ** 2

    def logpdf(self, y: np.ndarray) -> np.ndarray:
        return special.logsumexp(self.normals.logpdf(y[..., None]), b=self.weights, axis=-1)

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return (self.weights * self.normals.cdf(np.asarray(y)[..., None])).sum(-1)


def mixture(outputs: np.ndarray) -> MixtureLaw:
    """Of two entries with three components each."""
    means, log_stds, logits = np.moveaxis(outputs.reshape(*outputs.shape[:-1], 3, 2, 3), -3, 0)
    return MixtureLaw(special.softmax(logits, axis=-1), stats.norm(means, np.exp(log_stds)))


def outputs_of(size: int, *, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(DRAWS, EXAMPLES, size, generator=generator, dtype=torch.float64)


def cases() -> dict[str, Case]:
    numbers = outputs_of(2)[0] + 0.3
    stds = torch.tensor([0.3, 2.0], dtype=torch.float64)
    bits = torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0], [0, 1]])
    counts = torch.tensor([[0.0, 1], [3, 0], [2, 9], [40, 1], [1, 1]])
    noise = updated_gamma_noise()
    gamma_std = math.sqrt((6 + 1.5) / (6 + 10))
    t = StudentT(torch.tensor(3.0, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64))
    return {
        "gaussian": Case(gaussian(0.3), outputs_of(2), numbers, lambda f: stats.norm(f, 0.3)),
        "gaussian per output": Case(br.Gaussian(stds), outputs_of(2), numbers, lambda f: stats.norm(f, stds.numpy())),
        "gaussian learned": Case(learned_gaussian(), outputs_of(2), numbers, lambda f: stats.norm(f, 0.4)),
        "gamma noise": Case(noise, outputs_of(2), numbers, lambda f: stats.norm(f, gamma_std)),
        "heteroscedastic": Case(br.HeteroscedasticGaussian(), outputs_of(4), numbers, heteroscedastic),
        "gaussian mixture": Case(br.GaussianMixture(), outputs_of(18), numbers, mixture),
        "student t": Case(t, outputs_of(1), numbers[:, :1], lambda f: stats.t(6, f, math.sqrt(2 / 3))),
        "poisson": Case(br.Poisson(), outputs_of(2), counts, lambda f: stats.poisson(np.exp(f))),
        "bernoulli": Case(br.Bernoulli(), outputs_of(2), bits, lambda f: stats.bernoulli(special.expit(f))),
        "bernoulli, one column": Case(
            br.Bernoulli(), outputs_of(1), bits[:, :1], lambda f: stats.bernoulli(special.expit(f))
        ),
    }  # fmt: skip


CASES = cases()


GAUSSIAN = ["gaussian", "gaussian per output", "gaussian learned", "gamma noise", "heteroscedastic"]


CLASSES = torch.tensor([0, 3, 2, 1, 0])


def close(got: Tensor, expected: Any, tolerance: float = 1e-12) -> None:
    expected = torch.as_tensor(np.asarray(expected))
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)

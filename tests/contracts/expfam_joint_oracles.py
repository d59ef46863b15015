"""Independent accounts of the families of several variables: dense matrices, enumeration, scipy's special functions."""

from __future__ import annotations

import itertools
import math
import warnings
from abc import abstractmethod

import numpy as np
import scipy.special
import torch
import torch.distributions as D
from torch import Tensor

from bayesrule.expfam import ExponentialFamily, Natural


class Joint(D.Distribution):
    """A distribution written out for the tests, which knows the KL to another of its kind."""

    @abstractmethod
    def kl_to(self, other: Joint) -> Tensor: ...


@D.register_kl(Joint, Joint)
def _kl(p: Joint, q: Joint) -> Tensor:
    return p.kl_to(q)


def digamma(value: Tensor) -> Tensor:
    return torch.as_tensor(scipy.special.digamma(value.numpy()))


def normal_normal(p_mean: Tensor, p_strength: Tensor, q_mean: Tensor, q_strength: Tensor, expected: Tensor) -> Tensor:
    """E_p[KL] of N(m, (κΛ)⁻¹) and N(m', (κ'Λ)⁻¹) for E_p[Λ] known."""
    dim, ratio = p_mean.shape[-1], q_strength / p_strength
    shift = p_mean - q_mean
    far = torch.einsum("...i,...ij,...j->...", shift, expected, shift)
    return 0.5 * dim * (ratio - 1 - ratio.log()) + 0.5 * q_strength * far


class NormalGammaOracle(Joint):
    def __init__(self, _: ExponentialFamily, natural: Natural) -> None:
        self.strength = -2 * natural["quadratic"]
        self.mean_ = natural["linear"] / self.strength
        rate = -natural["precision"] - natural["linear"] ** 2 / (2 * self.strength)
        self.gamma = D.Gamma(natural["log"] + 0.5, rate)
        super().__init__(self.strength.shape, torch.Size([2]), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        x, precision = value[..., 0], value[..., 1]
        conditional = D.Normal(self.mean_, (self.strength * precision) ** -0.5)
        return self.gamma.log_prob(precision) + conditional.log_prob(x)

    def expected_log(self) -> Tensor:
        return digamma(self.gamma.concentration) - self.gamma.rate.log()

    def entropy(self) -> Tensor:
        return self.gamma.entropy() + 0.5 * (math.log(2 * math.pi * math.e) - self.strength.log() - self.expected_log())

    def kl_to(self, other: NormalGammaOracle) -> Tensor:
        conditional = normal_normal(
            self.mean_[..., None],
            self.strength,
            other.mean_[..., None],
            other.strength,
            self.gamma.mean[..., None, None],
        )
        return D.kl_divergence(self.gamma, other.gamma) + conditional

    def moments(self) -> dict[str, Tensor]:
        tau = self.gamma.mean
        return {
            "log": self.expected_log(),
            "precision": tau,
            "linear": tau * self.mean_,
            "quadratic": tau * self.mean_**2 + 1 / self.strength,
        }


class NormalWishartOracle(Joint):
    def __init__(self, _: ExponentialFamily, natural: Natural) -> None:
        self.strength = -2 * natural["quadratic"]
        self.mean_ = natural["linear"] / self.strength[..., None]
        outer = self.mean_[..., :, None] * self.mean_[..., None, :]
        self.inverse_scale = -2 * natural["precision"] - self.strength[..., None, None] * outer
        self.dim = self.mean_.shape[-1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of singular draws, of which none is taken
            self.wishart = D.Wishart(2 * natural["log"] + self.dim, precision_matrix=self.inverse_scale)
        super().__init__(self.strength.shape, torch.Size([self.dim, self.dim + 1]), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        x, precision = value[..., 0], value[..., 1:]
        conditional = D.MultivariateNormal(self.mean_, precision_matrix=self.strength[..., None, None] * precision)
        # Draws with nearly singular precision do not pass torch's own validation.
        self.wishart._validate_args = False
        return self.wishart.log_prob(precision) + conditional.log_prob(x)

    def expected_log(self) -> Tensor:
        degrees = self.wishart.df[..., None] - torch.arange(self.dim)
        return digamma(degrees / 2).sum(-1) + self.dim * math.log(2) - torch.logdet(self.inverse_scale)

    def wishart_entropy(self) -> Tensor:
        dim, degrees = self.dim, self.wishart.df
        half = degrees / 2
        normalizer = half * dim * math.log(2) - half * torch.logdet(self.inverse_scale)
        normalizer = normalizer + torch.as_tensor(scipy.special.multigammaln(half.numpy(), dim))
        return normalizer - 0.5 * (degrees - dim - 1) * self.expected_log() + half * dim

    def entropy(self) -> Tensor:
        gaussian = 0.5 * self.dim * (math.log(2 * math.pi * math.e) - self.strength.log()) - 0.5 * self.expected_log()
        return self.wishart_entropy() + gaussian

    def kl_to(self, other: NormalWishartOracle) -> Tensor:
        expected = self.wishart.df[..., None, None] * torch.linalg.inv(self.inverse_scale)
        half = other.wishart.df / 2
        cross = half * self.dim * math.log(2) - half * torch.logdet(other.inverse_scale)
        cross = cross + torch.as_tensor(scipy.special.multigammaln(half.numpy(), self.dim))
        cross = cross - 0.5 * (other.wishart.df - self.dim - 1) * self.expected_log()
        cross = cross + 0.5 * torch.einsum("...ij,...ji->...", other.inverse_scale, expected)
        conditional = normal_normal(self.mean_, self.strength, other.mean_, other.strength, expected)
        return cross - self.wishart_entropy() + conditional

    def moments(self) -> dict[str, Tensor]:
        expected = self.wishart.df[..., None, None] * torch.linalg.inv(self.inverse_scale)
        linear = (expected @ self.mean_[..., None])[..., 0]
        quadratic = (linear * self.mean_).sum(-1) + self.dim / self.strength
        return {"log": self.expected_log(), "precision": expected, "linear": linear, "quadratic": quadratic}


class ChainGaussianOracle(Joint):
    """The dense Gaussian of all states at once."""

    def __init__(self, _: ExponentialFamily, natural: Natural) -> None:
        self.shape = natural["linear"].shape[-2:]
        length, dim = self.shape
        precision = natural["linear"].new_zeros(*natural["linear"].shape[:-2], length * dim, length * dim)
        for t in range(length):
            here = slice(t * dim, (t + 1) * dim)
            precision[..., here, here] = -2 * natural["quadratic"][..., t, :, :]
            if t + 1 < length:
                there = slice((t + 1) * dim, (t + 2) * dim)
                precision[..., here, there] = -natural["link"][..., t, :, :]
                precision[..., there, here] = -natural["link"][..., t, :, :].mT
        mean = torch.linalg.solve(precision, natural["linear"].flatten(-2))
        self.dense = D.MultivariateNormal(mean, precision_matrix=precision)
        super().__init__(mean.shape[:-1], self.shape, validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        return self.dense.log_prob(value.flatten(-2))

    def entropy(self) -> Tensor:
        return self.dense.entropy()

    def kl_to(self, other: ChainGaussianOracle) -> Tensor:
        return D.kl_divergence(self.dense, other.dense)

    def moments(self) -> dict[str, Tensor]:
        length, dim = self.shape
        mean = self.dense.mean
        second = self.dense.covariance_matrix + mean[..., :, None] * mean[..., None, :]
        blocks = second.unflatten(-1, (length, dim)).unflatten(-3, (length, dim)).transpose(-3, -2)
        return {
            "linear": mean.unflatten(-1, (length, dim)),
            "quadratic": torch.stack([blocks[..., t, t, :, :] for t in range(length)], dim=-3),
            "link": torch.stack([blocks[..., t, t + 1, :, :] for t in range(length - 1)], dim=-3),
        }


class ChainCategoricalOracle(Joint):
    """All sequences, enumerated."""

    def __init__(self, _: ExponentialFamily, natural: Natural) -> None:
        length, classes = natural["state"].shape[-2], natural["state"].shape[-1] + 1
        self.paths = list(itertools.product(range(classes), repeat=length))
        self.codes = torch.tensor([classes**t for t in reversed(range(length))])
        self.last = classes - 1
        scores = [self._score(natural, path) for path in self.paths]
        self.all = D.Categorical(logits=torch.stack(scores, dim=-1))
        super().__init__(natural["state"].shape[:-2], torch.Size([length, classes]), validate_args=False)

    def _score(self, natural: Natural, path: tuple[int, ...]) -> Tensor:
        total = natural["state"].new_zeros(natural["state"].shape[:-2])
        for t, k in enumerate(path):
            if k != self.last:
                total = total + natural["state"][..., t, k]
            if t and k != self.last and path[t - 1] != self.last:
                total = total + natural["link"][..., t - 1, path[t - 1], k]
        return total

    def log_prob(self, value: Tensor) -> Tensor:
        return self.all.log_prob((value.argmax(-1) * self.codes).sum(-1))

    def entropy(self) -> Tensor:
        return self.all.entropy()

    def kl_to(self, other: ChainCategoricalOracle) -> Tensor:
        return D.kl_divergence(self.all, other.all)

    def moments(self) -> dict[str, Tensor]:
        one_hot = torch.as_tensor(np.eye(self.last + 1)[np.array(self.paths)])[..., :-1]  # (paths, length, free)
        pairs = one_hot[:, :-1, :, None] * one_hot[:, 1:, None, :]
        return {
            "state": torch.einsum("...p,ptk->...tk", self.all.probs, one_hot),
            "link": torch.einsum("...p,ptjk->...tjk", self.all.probs, pairs),
        }


class FiniteMixtureOracle(Joint):
    """Gaussian components, the weights by softmax of η_k + A(λ_k) with A written out densely."""

    def __init__(self, _: ExponentialFamily, natural: Natural) -> None:
        precision = -2 * natural["quadratic"]
        mean = torch.linalg.solve(precision, natural["linear"][..., None])[..., 0]
        self.gaussians = D.MultivariateNormal(mean, precision_matrix=precision)
        partition = 0.5 * (natural["linear"] * mean).sum(-1) - 0.5 * torch.logdet(precision / (2 * math.pi))
        none = natural["logits"].new_zeros(*natural["logits"].shape[:-1], 1)
        self.indicator = D.OneHotCategorical(logits=torch.cat([natural["logits"], none], -1) + partition)
        self.count = partition.shape[-1]
        super().__init__(mean.shape[:-2], torch.Size([self.count + mean.shape[-1]]), validate_args=False)

    def log_prob(self, value: Tensor) -> Tensor:
        indicator, x = value[..., : self.count], value[..., self.count :]
        each = self.gaussians.log_prob(x.unsqueeze(-2))
        return self.indicator.log_prob(indicator) + (indicator * each).sum(-1)

    def entropy(self) -> Tensor:
        return self.indicator.entropy() + (self.indicator.probs * self.gaussians.entropy()).sum(-1)

    def kl_to(self, other: FiniteMixtureOracle) -> Tensor:
        each = D.kl_divergence(self.gaussians, other.gaussians)
        return D.kl_divergence(self.indicator, other.indicator) + (self.indicator.probs * each).sum(-1)

    def moments(self) -> dict[str, Tensor]:
        probs, mean = self.indicator.probs, self.gaussians.mean
        second = self.gaussians.covariance_matrix + mean[..., :, None] * mean[..., None, :]
        return {
            "logits": probs[..., :-1],
            "linear": probs[..., None] * mean,
            "quadratic": probs[..., None, None] * second,
        }

"""What the tests of optimizers share: noises, a linear-Gaussian problem, small networks, and one way to step."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.errors import InvalidArgument
from bayesrule.optim import PosteriorOptimizer
from bayesrule.random import Law

EVERY = br.optim.OPTIMIZERS
BINARY = (br.optim.BayesBiNN, br.optim.STE)
OPTIMIZERS = tuple(kind for kind in EVERY if kind not in BINARY)
"""Those with Gaussian posteriors."""
TAPPING = tuple(kind for kind in OPTIMIZERS if kind not in (br.optim.IVON, br.optim.KTiedVON))
NAMES = [kind.__name__ for kind in OPTIMIZERS]
PRICED = ("fisher", "T_stats", "noise", "warm_up")
WITHOUT = {
    br.optim.OGN: ("noise", "mirrored"),
    br.optim.IVON: PRICED,
    br.optim.KTiedVON: PRICED,
    br.optim.BayesBiNN: (*PRICED, "prior", "mirrored", "max_kl", "T_inv"),
    br.optim.STE: (*PRICED, "prior", "mirrored", "max_kl", "T_inv"),
}
"""Options that some kinds leave out."""


def silent(shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
    """Draws at the mean."""
    return torch.zeros(shape, dtype=like.dtype)


@dataclass
class Recorded:
    """Fresh noise, kept for an oracle to use again."""

    noises: list[Tensor] = field(default_factory=list)
    scale: float = 1.0

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        self.noises.append(self.scale * torch.randn(shape, dtype=like.dtype))
        return self.noises[-1]

    def mirrored(self) -> Callable[..., Tensor]:
        """The same noises with the other sign, in the same order."""
        left = list(self.noises)
        return lambda shape, law, like: -left.pop(0)


def step(optimizer: PosteriorOptimizer, loss: Callable[[], Tensor], **options: Any) -> float:
    with optimizer.sampled_params(**options):
        optimizer.zero_grad()
        value = loss()
        value.backward()
    optimizer.step()
    return value.item()


@dataclass(frozen=True)
class LinearGaussian:
    """``Y = [X, 1] W + noise``, whose posterior is a matrix normal in closed form   [ERRATA, MN 6]."""

    x: Tensor
    y: Tensor
    noise_std: float = 0.3
    prior_std: float = 0.7
    kl_weight: float = 1.0

    @classmethod
    def make(cls, kl_weight: float = 1.0) -> LinearGaussian:
        generator = torch.Generator().manual_seed(3)
        mix = torch.randn(3, 3, dtype=torch.float64, generator=generator)
        x = torch.randn(40, 3, dtype=torch.float64, generator=generator) @ mix + 0.5
        y = torch.randn(40, 2, dtype=torch.float64, generator=generator)
        return cls(x, y, kl_weight=kl_weight)

    @property
    def design(self) -> np.ndarray:
        return np.concatenate([self.x.numpy(), np.ones((len(self.x), 1))], axis=1)

    @property
    def precision(self) -> np.ndarray:
        """Over inputs; every output has the same."""
        data = self.design.T @ self.design / self.noise_std**2 / self.kl_weight
        return data + np.eye(4) / self.prior_std**2

    @property
    def mean(self) -> np.ndarray:
        return np.linalg.solve(self.precision, self.design.T @ self.y.numpy() / self.noise_std**2 / self.kl_weight)

    def optimizer(self, kind: type[PosteriorOptimizer], **options: Any) -> PosteriorOptimizer:
        net = nn.Linear(3, 2, dtype=torch.float64)
        likelihood = br.Gaussian(torch.tensor(self.noise_std, dtype=torch.float64))
        return kind(
            net, n_data=len(self.x), prior=br.Normal(self.prior_std), likelihood=likelihood,
            fisher="exact", kl_weight=self.kl_weight, max_kl=None, **options,
        )  # fmt: skip

    def loss(self, optimizer: PosteriorOptimizer) -> Callable[[], Tensor]:
        return lambda: optimizer.nll(optimizer.model(self.x), self.y)


def network(*widths: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A tanh network."""
    torch.manual_seed(seed)
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out, dtype=dtype), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def regression(
    rows: int = 12, inputs: int = 3, outputs: int = 2, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(rows, inputs, dtype=torch.float64, generator=generator)
    return x, torch.randn(rows, outputs, dtype=torch.float64, generator=generator)


def make(kind: type[PosteriorOptimizer], net: nn.Module | None = None, **options: Any) -> PosteriorOptimizer:
    """An optimizer of a small network, with settings that all kinds take."""
    defaults: dict[str, Any] = {
        "n_data": 50,
        "lr": 0.05,
        "likelihood": br.Gaussian(0.5),
        "prior": br.Normal(0.8),
        "seed": 5,
    }
    if "likelihood" in options and options["likelihood"] is None:
        defaults["fisher"] = "empirical"
    if kind is br.optim.BayesBiNN:  # by default its draws are all but certain at the start
        defaults |= {"temperature": 1.0, "init_natural": 0.5}
    given = {key: value for key, value in {**defaults, **options}.items() if key not in WITHOUT.get(kind, ())}
    return kind(net if net is not None else network(3, 4, 2), **given)


def loss_of(optimizer: PosteriorOptimizer) -> Tensor:
    """Of the small regression, in the network's own precision."""
    x, y = regression()
    return optimizer.nll(optimizer.model(x.to(next(optimizer.model.parameters()).dtype)), y)


def values(optimizer: PosteriorOptimizer) -> list[Tensor]:
    """Copies of the weights as they are."""
    return [p.detach().clone() for p in optimizer.model.parameters()]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(left, right, strict=True))


def contents(value: Any) -> Any:
    """Tensors as lists, for comparisons by ==."""
    if isinstance(value, Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: contents(each) for key, each in value.items()}
    return [contents(each) for each in value] if isinstance(value, list | tuple) else value


def held(optimizer: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what lies between a block and its step is not in a state
        return contents([optimizer.state_dict(), dict(optimizer.model.state_dict())])


def refused(attempt: Callable[[], Any], match: str, kind: type[InvalidArgument] = InvalidArgument) -> InvalidArgument:
    with pytest.raises(kind, match=match) as found:
        attempt()
    assert found.value.got is not None
    assert found.value.remedy
    return found.value

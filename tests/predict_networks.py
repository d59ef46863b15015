"""Networks to predict with, each with nine examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.posteriors import (
    DiagonalCovariance,
    GaussianPosterior,
    Part,
)


class Wrapped(nn.Module):
    """A layer, and a function of its output."""

    def __init__(self, layer: nn.Module, function: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.function = layer, function

    def forward(self, x: Tensor) -> Any:
        return self.function(self.layer(x))


class Recurrent(nn.Module):
    """Outputs for every step: (examples, steps, outputs)."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


class Tied(nn.Module):
    """An embedding whose weight is the output layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(6, 3, padding_idx=0), nn.Linear(3, 6)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embedding(tokens)))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(2, 4)

    def forward(self, x: Tensor, z: Tensor) -> Tensor:
        return self.first(x) * self.second(z)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 2))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 2))


def numbers(*shape: int) -> Tensor:
    return torch.randn(9, *shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


TOKENS = torch.randint(6, (9, 4), generator=torch.Generator().manual_seed(5))


@dataclass(frozen=True)
class Case:
    """A network to convert, and nine examples."""

    network: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]
    options: dict[str, Any] = field(default_factory=dict)
    vmap: bool = True

    def build(self, dtype: torch.dtype = torch.float64) -> tuple[Any, tuple[Tensor, ...]]:
        torch.manual_seed(11)
        bnn = br.bayesianize(self.network().to(dtype), **{"posterior": br.Diagonal(0.3), **self.options})
        return bnn, tuple(x.to(dtype) if x.is_floating_point() else x for x in self.inputs)


CASES = {
    "mlp": Case(mlp, (numbers(3),), {"posterior": br.KTied(2, 0.3)}),
    "mlp, point bias": Case(mlp, (numbers(3),), {"bias": "point"}),
    "mlp, augmented": Case(mlp, (numbers(3),), {"posterior": br.MatrixNormal(0.3), "bias": "augment"}),
    "mlp, last layer": Case(mlp, (numbers(3),), {"posterior": br.Full(0.3), "layers": "last_layer"}),
    "mixed families": Case(
        mlp, (numbers(3),), {"posterior": {"0": br.MatrixNormalDiagonal("free", 0.3), "*": br.Diagonal(0.3)}}
    ),
    "convolution": Case(convolutional, (numbers(2, 4, 4),)),
    "recurrent": Case(Recurrent, (numbers(5, 3),), vmap=False),
    "tied": Case(Tied, (TOKENS,), {"posterior": br.MatrixNormal(0.3)}),
    "sequence": Case(mlp, (numbers(4, 3),)),
    "transformer": Case(lambda: nn.TransformerEncoderLayer(4, 2, 6, batch_first=True), (numbers(3, 4),), vmap=False),
    "two inputs": Case(TwoInputs, (numbers(3), numbers(2))),
}  # fmt: skip


every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def bytes_of(bnn: Any) -> int:
    return sum(q.mean.numel() * q.mean.element_size() for q in bnn.posteriors().values())


class Held:
    """A model that is no module, as an optimizer that holds a posterior."""

    training, batchable = True, False

    def __init__(self) -> None:
        self.net, self.likelihood = nn.Linear(3, 2).double(), br.Categorical()
        self.modes: list[bool] = []

    def default_likelihood(self) -> Any:
        return self.likelihood

    def posteriors(self) -> dict[str, Any]:
        mean = self.net.weight.detach()
        parts = (Part("weight", tuple(mean.shape)),)
        return {"weight": GaussianPosterior(mean.flatten(), DiagonalCovariance(torch.ones(6).double(), 1), parts)}

    def at(self, draws: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        assert not self.training
        return torch.func.functional_call(self.net, dict(draws), args, kwargs)

    def train(self, mode: bool = True) -> Any:
        self.training = mode
        self.modes.append(mode)

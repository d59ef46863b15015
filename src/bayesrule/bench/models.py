"""The networks that are measured, each with batches of its inputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrule.data.names import nearest
from bayesrule.errors import InvalidArgument
from bayesrule.experiments.ktied.models import lenet, mlp
from bayesrule.likelihoods import Categorical, Gaussian, Likelihood

CLASSES = 10
Task = Literal["classes", "numbers"]


@dataclass(frozen=True)
class Model:
    """A network and what it is trained on.

    Attributes:
        name: On the command line and in results.
        network: Makes it, plain.
        inputs: Makes so many random inputs.
        outputs: How many numbers the network returns for one.
        task: Whether targets are classes or numbers.
        drawn_at: Whether it makes sense to predict with many draws here: not for a layer alone.
    """

    name: str
    network: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    outputs: int = CLASSES
    task: Task = "classes"
    drawn_at: bool = True

    def targets(self, examples: int) -> Tensor:
        """As many random ones."""
        return (
            torch.randint(self.outputs, (examples,)) if self.task == "classes" else torch.randn(examples, self.outputs)
        )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Negative log-likelihood, a mean over examples, up to a constant."""
        if self.task == "classes":
            return F.cross_entropy(outputs, targets)
        return 0.5 * F.mse_loss(outputs, targets, reduction="sum") / len(outputs)

    @property
    def likelihood(self) -> Likelihood:
        """Of the same targets."""
        return Categorical() if self.task == "classes" else Gaussian(1.0)


class SequenceLSTM(nn.Module):
    """Embedding, LSTM, and logits of its last state."""

    def __init__(self, vocabulary: int = 5000, width: int = 128, classes: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        states, _ = self.lstm(self.embedding(tokens))
        return self.head(states[:, -1])


class SmallTransformer(nn.Module):
    """Embedding, encoder layers without dropout, and logits of the mean position."""

    def __init__(
        self, vocabulary: int = 5000, width: int = 128, heads: int = 4, depth: int = 2, classes: int = CLASSES
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True) for _ in range(depth)
        )
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits."""
        hidden = self.embedding(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.mean(1))


def dense(width: int, depth: int = 1) -> Model:
    """Square dense layers of one width, rectified in between, on regression targets."""
    name = f"dense-{width}" if depth == 1 else f"dense-{width}x{depth}"

    def network() -> nn.Module:
        layers: list[nn.Module] = []
        for _ in range(depth):
            layers += [nn.Linear(width, width), nn.ReLU()]
        return nn.Sequential(*layers[:-1])

    return Model(name, network, lambda n: torch.randn(n, width), width, "numbers", drawn_at=False)


def tokens(length: int, vocabulary: int = 5000) -> Callable[[int], Tensor]:
    """Sequences of random tokens."""
    return lambda n: torch.randint(vocabulary, (n, length))


MODELS: dict[str, Model] = {
    model.name: model
    for model in (
        Model("mlp-small", lambda: mlp(hidden=(128,)), lambda n: torch.randn(n, 784)),
        Model("mlp", mlp, lambda n: torch.randn(n, 784)),
        Model("lenet", lenet, lambda n: torch.randn(n, 3, 32, 32), 100),
        Model("lstm", SequenceLSTM, tokens(32), 2),
        Model("transformer", SmallTransformer, tokens(32)),
        *(dense(width) for width in (1024, 2048, 4096, 8192)),
        dense(4096, 4),
    )
}
"""By name; dense layers of other sizes are found by theirs, as ``dense-WIDTH`` or ``dense-WIDTHxDEPTH``."""


def model(name: str) -> Model:
    """One of them."""
    sizes = re.fullmatch(r"dense-([1-9]\d*)(?:x([1-9]\d*))?", name)
    if sizes:
        return dense(int(sizes[1]), int(sizes[2] or 1))
    if name not in MODELS:
        remedy = f"{nearest(name, MODELS)}Known: {', '.join(MODELS)}, and dense-WIDTHxDEPTH of any size."
        raise InvalidArgument(f"There is no model {name!r} to measure", remedy=remedy)
    return MODELS[name]

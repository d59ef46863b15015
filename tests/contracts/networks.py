"""Examples of networks to convert: each with an input. A new one joins the contract by one entry here."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map


@dataclass(frozen=True)
class Network:
    """A plain float64 network in eval mode, and what to call it with."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)

    def __call__(self, module: Callable[..., Any]) -> list[Tensor]:
        """The tensors that a module gives for this input, whatever structure it puts them in."""
        return floats(module(*self.args, **self.kwargs))


def floats(output: Any) -> list[Tensor]:
    """The floating-point tensors of an output."""
    return [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


class Recurrent(nn.Module):
    """Gives the outputs of a recurrent module and its last state, as a dict."""

    def __init__(self, rnn: nn.RNNBase) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: Tensor) -> dict[str, Any]:
        outputs, state = self.rnn(x)
        return {"outputs": outputs, "state": state}


class CellLoop(nn.Module):
    """A cell called once for each step; the number of steps depends on the input, so it cannot be traced."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell = cell
        self.head = nn.Linear(cell.hidden_size, 2)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class Attention(nn.Module):
    """Self-attention, or attention to given keys and values."""

    def __init__(self, attention: nn.MultiheadAttention) -> None:
        super().__init__()
        self.attention = attention

    def forward(self, query: Tensor, *, keys: Tensor | None = None, values: Tensor | None = None) -> tuple[Tensor, Any]:
        return self.attention(query, query if keys is None else keys, query if values is None else values)


class Decoder(nn.Module):
    """A decoder layer and what it attends to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True)

    def forward(self, target: Tensor, memory: Tensor) -> Tensor:
        return self.layer(target, memory)


class Tied(nn.Module):
    """An embedding that is its output layer's weight too."""

    def __init__(self, *, output_first: bool = False, bias: bool = False) -> None:
        super().__init__()
        if output_first:
            self.out = nn.Linear(3, 6, bias=bias)
            self.emb = nn.Embedding(6, 3)
        else:
            self.emb = nn.Embedding(6, 3)
            self.out = nn.Linear(3, 6, bias=bias)
        self.out.weight = self.emb.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.emb(tokens)))


class TiedByFunction(nn.Module):
    """An embedding whose weight is handed to a function, not to a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.emb(tokens)), self.emb.weight)


class TwoNames(nn.Module):
    """One module under two names, in a network whose output is not zero."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class ControlFlow(nn.Module):
    """Its path depends on the values of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other, self.head = nn.Linear(4, 5), nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor, *, scale: float = 1.0) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = self.one(x) if float(x.detach().sum()) > -1e9 else self.other(x)
        return self.head(torch.relu(hidden) * scale), {"hidden": hidden}


class Nested(nn.Module):
    """Containers in containers, and a list chosen by index."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(4, 5), nn.Sequential(nn.LayerNorm(5), nn.Linear(5, 5)))
        self.blocks = nn.ModuleList([nn.Linear(5, 5), nn.Sequential(nn.Linear(5, 5), nn.Dropout(0.0))])
        self.heads = nn.ModuleDict({"mean": nn.Linear(5, 2), "scale": nn.Linear(5, 1)})

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        hidden = self.stem(x)
        for block in self.blocks:
            hidden = hidden + torch.relu(block(hidden))
        return {name: head(hidden) for name, head in self.heads.items()}


class ResidualBlock(nn.Module):
    """Two convolutions with BatchNorm, and a projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(hidden)) + self.shortcut(x))


def resnet18(width: int = 2) -> nn.Module:
    """The shape of ResNet-18, narrow."""
    widths = [width, 2 * width, 4 * width, 8 * width]
    blocks: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    for stage, (inputs, outputs) in enumerate(zip([width, *widths], widths, strict=False)):
        blocks += [ResidualBlock(inputs, outputs, 1 if stage == 0 else 2), ResidualBlock(outputs, outputs, 1)]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8 * width, 5))


def _encoder_layer() -> nn.Module:
    return nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)


def _tokens() -> Tensor:
    return torch.tensor([[1, 5, 0], [2, 2, 4]])


_RECIPES: dict[str, Callable[[], Network]] = {
    "bare-linear": lambda: Network(nn.Linear(4, 3), (torch.randn(5, 4),)),
    "mlp": lambda: Network(nn.Sequential(nn.Linear(40, 6), nn.ReLU(), nn.Linear(6, 2)), (torch.randn(5, 40),)),
    "nested": lambda: Network(Nested(), (torch.randn(3, 4),)),
    "lstm": lambda: Network(
        Recurrent(nn.LSTM(3, 4, 2, bidirectional=True, batch_first=True)), (torch.randn(2, 5, 3),)
    ),
    "lstm-projected": lambda: Network(
        Recurrent(nn.LSTM(3, 4, 2, bidirectional=True, proj_size=2)), (torch.randn(5, 2, 3),)
    ),
    "gru": lambda: Network(Recurrent(nn.GRU(3, 4, 2)), (torch.randn(5, 2, 3),)),
    "rnn": lambda: Network(Recurrent(nn.RNN(3, 4, bias=False)), (torch.randn(5, 2, 3),)),
    "lstm-cells": lambda: Network(CellLoop(nn.LSTMCell(3, 4)), (torch.randn(2, 5, 3),)),
    "gru-cells": lambda: Network(CellLoop(nn.GRUCell(3, 4)), (torch.randn(2, 5, 3),)),
    "attention": lambda: Network(Attention(nn.MultiheadAttention(4, 2, batch_first=True)), (torch.randn(2, 3, 4),)),
    "attention-unlike": lambda: Network(
        Attention(nn.MultiheadAttention(4, 2, kdim=3, vdim=5, add_bias_kv=True)),
        (torch.randn(3, 2, 4),), {"keys": torch.randn(6, 2, 3), "values": torch.randn(6, 2, 5)},
    ),
    "encoder-layer": lambda: Network(_encoder_layer(), (torch.randn(2, 3, 4),)),
    "encoder": lambda: Network(
        nn.TransformerEncoder(_encoder_layer(), 2, enable_nested_tensor=True),
        (torch.randn(2, 3, 4),), {"src_key_padding_mask": torch.tensor([[False, False, True], [False, False, False]])},
    ),
    "decoder-layer": lambda: Network(Decoder(), (torch.randn(2, 3, 4), torch.randn(2, 5, 4))),
    "conv1d": lambda: Network(nn.Sequential(nn.Conv1d(2, 3, 2, stride=2), nn.ReLU()), (torch.randn(2, 2, 5),)),
    "conv2d": lambda: Network(
        nn.Conv2d(4, 6, 3, padding=2, dilation=2, groups=2, padding_mode="reflect"), (torch.randn(2, 4, 6, 5),)
    ),
    "conv3d": lambda: Network(nn.Sequential(nn.Conv3d(2, 3, 2, padding=1)), (torch.randn(2, 2, 2, 3, 2),)),
    "conv-transpose2d": lambda: Network(
        nn.ConvTranspose2d(4, 3, 3, stride=2, padding=1, output_padding=1), (torch.randn(2, 4, 3, 3),)
    ),
    "conv-transpose2d-groups": lambda: Network(
        nn.ConvTranspose2d(4, 6, 3, stride=2, output_padding=1, groups=2), (torch.randn(2, 4, 3, 3),)
    ),
    "embedding": lambda: Network(nn.Sequential(nn.Embedding(6, 4, padding_idx=0), nn.Linear(4, 2)), (_tokens(),)),
    "embedding-bag": lambda: Network(nn.Sequential(nn.EmbeddingBag(6, 4), nn.Linear(4, 2)), (_tokens(),)),
    "tied": lambda: Network(Tied(), (_tokens(),)),
    "tied-output-first": lambda: Network(Tied(output_first=True, bias=True), (_tokens(),)),
    "tied-by-function": lambda: Network(TiedByFunction(), (_tokens(),)),
    "two-names": lambda: Network(TwoNames(), (torch.randn(3, 4),)),
    "control-flow": lambda: Network(ControlFlow(), (torch.randn(3, 4),), {"scale": 2.0}),
    "resnet18": lambda: Network(resnet18(), (torch.randn(2, 3, 8, 8),)),
}  # fmt: skip

NAMES = sorted(_RECIPES)


def network(name: str) -> Network:
    """The example of this name, the same in every run."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(zlib.crc32(name.encode()))
        made = _RECIPES[name]()
        for parameter in made.module.parameters():  # zero biases and padding rows would hide mistakes
            nn.init.normal_(parameter, std=0.5)
    return Network(made.module.double().eval(), *to_dtype((made.args, made.kwargs), torch.float64))


def to_dtype(inputs: Any, dtype: torch.dtype) -> Any:
    """The same inputs, their floating-point tensors in another precision."""
    return tree_map(lambda leaf: leaf.to(dtype) if floats(leaf) else leaf, inputs)

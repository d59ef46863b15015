"""Networks to save, and the comparison of a model with what was read back."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import bayesrule as br


def inputs(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(4, *shape, generator=torch.Generator().manual_seed(2), dtype=dtype)


def moved(bnn: br.nn.BayesianModule) -> br.nn.BayesianModule:
    """Away from where a conversion starts, so that nothing is right by having been left alone."""
    with torch.no_grad():
        for tensor in (*bnn.parameters(), *bnn.buffers()):
            if tensor.is_floating_point():
                tensor += 0.05 * torch.rand_like(tensor)
            else:
                tensor += 1
    return bnn


def check_round_trip(net: nn.Module, folder: Path, *x: Tensor, **options: Any) -> br.nn.BayesianModule:
    """Save, load into another copy of the network, and compare everything."""
    bnn = moved(br.bayesianize(net, **options))
    br.save(bnn, folder)
    other = fresh(net)
    state, generator = {name: tensor.clone() for name, tensor in other.state_dict().items()}, torch.get_rng_state()
    loaded = br.load(folder, into=other)
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(tensor, state[name]) for name, tensor in other.state_dict().items())
    shutil.rmtree(folder)  # nothing may still be read from it
    check_equal(bnn, loaded, *x)
    return loaded


def fresh(net: nn.Module) -> nn.Module:
    """A network of the same architecture with other weights."""
    other = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    return other


def check_equal(bnn: br.nn.BayesianModule, loaded: br.nn.BayesianModule, *x: Tensor) -> None:
    before, after = bnn.state_dict(), loaded.state_dict()
    assert list(before) == list(after)
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype, name
        assert torch.equal(tensor, after[name]), name
    assert torch.equal(br.kl(bnn), br.kl(loaded))
    assert str(bnn.conversion) == str(loaded.conversion)
    assert {type(p) for p in bnn.parameters()} == {type(p) for p in loaded.parameters()}
    assert repr(bnn.likelihood) == repr(loaded.likelihood)
    predictions = [br.predict(each, x, 3, strategy="loop") for each in (bnn, loaded)]
    assert torch.equal(*(p.outputs for p in predictions))
    if bnn.likelihood is not None:
        assert torch.equal(*(p.mean for p in predictions))
        assert torch.equal(*(p.std for p in predictions))
        assert torch.equal(bnn.likelihood.kl(), loaded.likelihood.kl())
    for training in (True, False):  # the estimator of every layer, too
        passes = []
        for each in (bnn.train(training), loaded.train(training)):
            torch.manual_seed(1)
            passes.append(each(*x))
        assert torch.equal(*passes)


class Untraceable(nn.Module):
    """Its path depends on its input; one layer is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.twice = nn.Linear(5, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.wide(x) if float(x.detach().sum()) > -1e9 else x
        return self.twice(self.twice(hidden))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


class Misleading(nn.Module):
    """Layers called like presets and like patterns."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.all, self.last_layer = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.named = nn.ModuleDict({"a[0]": nn.Linear(4, 4), "a*": nn.Linear(4, 4), "ab": nn.Linear(4, 3)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.attention, self.all, self.last_layer, *self.named.values()):
            x = layer(x)
        return x


class Extras(nn.Module):
    """Buffers of several kinds, some of them views of others, and an empty one."""

    counts: Tensor
    whole: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.register_buffer("counts", torch.arange(3))
        self.register_buffer("whole", torch.rand(4, 3))
        self.register_buffer("part", self.whole[:2])
        self.register_buffer("turned", torch.rand(3, 2).T)
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("flag", torch.tensor(True).int())
        self.register_buffer("coarse", torch.rand(2).bfloat16())
        self.register_buffer("forgotten", torch.rand(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.whole.sum() + self.counts


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 2, 2), nn.Flatten(), nn.Linear(18, 2)
    )  # fmt: skip


TOKENS = torch.tensor([[1, 5, 0], [2, 2, 4]])

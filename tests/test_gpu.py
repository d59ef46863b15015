"""Converted models on a CUDA device, against the same models on the CPU."""

from __future__ import annotations

import copy
import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import bayesrule as br

pytestmark = pytest.mark.gpu


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(30, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 12, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(24, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.embedding(tokens))[0][:, -1])


def networks() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    torch.manual_seed(0)
    convolutional = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=2, dilation=2), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 4 * 4, 3),
    )  # fmt: skip
    transformer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return {
        "dense": (nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 3)), torch.randn(5, 6)),
        "convolutional": (convolutional, torch.randn(5, 3, 8, 8)),
        "recurrent": (Recurrent(), torch.randint(0, 30, (5, 7))),
        "transformer": (transformer, torch.randn(5, 4, 16)),
    }


NAMES = tuple(networks())
FAMILIES = {"diagonal": br.Diagonal(), "2-tied": br.KTied(2), "matrix normal": br.MatrixNormal()}


@pytest.fixture(params=NAMES)
def example(request: pytest.FixtureRequest) -> tuple[nn.Module, torch.Tensor]:
    return networks()[request.param]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_step_on_the_device(example: tuple[nn.Module, torch.Tensor], family: br.Diagonal) -> None:
    net, x = example
    net.eval()
    bnn = br.bayesianize(net, family, br.Normal(0.5)).cuda()
    mean, expected = bnn.at_mean(x.cuda()), net(x)
    torch.testing.assert_close(mean.cpu(), expected, rtol=1e-3, atol=1e-3)
    bnn.train()  # cuDNN has no backward pass of recurrent layers in eval mode
    (bnn(x.cuda()).square().mean() + br.kl(bnn) / 100).backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in bnn.parameters())
    cpu = copy.deepcopy(bnn).cpu()
    torch.testing.assert_close(br.kl(bnn).cpu(), br.kl(cpu), rtol=1e-5, atol=1e-3)


def test_outputs_are_random_in_every_mode(example: tuple[nn.Module, torch.Tensor]) -> None:
    net, x = example
    bnn = br.bayesianize(net, br.Diagonal(init_std=0.1)).cuda()
    for training in (True, False):
        bnn.train(training)
        with torch.no_grad():
            assert not torch.equal(bnn(x.cuda()), bnn(x.cuda()))


def test_prediction_is_keyed_by_its_seed(example: tuple[nn.Module, torch.Tensor]) -> None:
    net, x = example
    bnn = br.bayesianize(net, br.KTied(2), likelihood=br.Categorical()).cuda()
    whole, parts = (br.predict(bnn, x.cuda(), samples=8, batch_size=size).outputs for size in (5, 2))
    torch.testing.assert_close(whole, parts, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_and_gradient_scaling(example: tuple[nn.Module, torch.Tensor], dtype: torch.dtype) -> None:
    net, x = example
    bnn = br.bayesianize(net, br.KTied(2), br.Normal(0.5), br.LocalReparam()).cuda()
    optimizer, scaler = torch.optim.Adam(bnn.parameters(), lr=1e-3), torch.amp.GradScaler("cuda")
    before = torch.cat([p.detach().flatten() for p in bnn.parameters()])
    for _ in range(3):
        with torch.autocast("cuda", dtype):
            loss = bnn(x.cuda()).float().square().mean() + br.kl(bnn) / 100
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    after = torch.cat([p.detach().flatten() for p in bnn.parameters()])
    assert torch.isfinite(after).all()
    assert not torch.equal(before, after)


def test_checkpointing_recomputes_the_same_noise() -> None:
    net = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 3)).cuda()
    bnn, x = br.bayesianize(net, br.KTied(2), br.Normal(0.5)), torch.randn(5, 6, device="cuda")
    gradients = []
    for run in (lambda: bnn(x), lambda: checkpoint(bnn, x, use_reentrant=False)):
        bnn.zero_grad()
        torch.manual_seed(1)
        run().square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in bnn.parameters() if p.grad is not None]))
    torch.testing.assert_close(*gradients)


@pytest.mark.skipif(
    os.environ.get("BAYESRULE_SHAPE_CHECKS", "1") != "0",
    reason="torch 2.11 does not compile what has its shapes checked: set BAYESRULE_SHAPE_CHECKS=0",
)
def test_compiled_step_trains() -> None:
    net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 3)).cuda()
    bnn, x = br.bayesianize(net, br.KTied(2), br.Normal(0.5), br.LocalReparam()), torch.randn(64, 6, device="cuda")
    y = torch.randint(0, 3, (64,), device="cuda")
    loss = torch.compile(lambda: F.cross_entropy(bnn(x), y) + br.kl(bnn) / 1000, fullgraph=True)
    optimizer = torch.optim.Adam(bnn.parameters(), lr=1e-2)
    values = []
    for _ in range(60):
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert sum(values[-10:]) < sum(values[:10])

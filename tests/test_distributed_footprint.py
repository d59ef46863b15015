"""The formulas of what is kept and sent, against what really is; and the page that shows them."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.distributed import Footprint, footprint
from bayesrule.distributed.footprint import METHODS
from bayesrule.errors import InvalidArgument
from bayesrule.optim.messages import Alone, Messages

FAN_IN, FAN_OUT = 13, 7
FAMILIES = {"Diagonal": br.Diagonal(), "KTied": br.KTied(2), "MatrixNormal": br.MatrixNormal()}
HOLDERS = [name for name in METHODS if name not in (*FAMILIES, "Point")]
PAGE = Path(__file__).parents[1] / "docs" / "distributed.md"


class Watched(Alone):
    """Counts what would be sent."""

    def messages(self, messages: Messages) -> Messages:
        self.sent = sum(tensor.numel() for tensor in messages.tensors())
        return messages


def numbers(value: Any) -> int:
    """In all tensors of a state but single counts."""
    if isinstance(value, Tensor):
        return value.numel() if value.ndim else 0
    if isinstance(value, tuple):
        return sum(map(numbers, value))
    return sum(numbers(getattr(value, field.name)) for field in fields(value)) if is_dataclass(value) else 0


@pytest.mark.parametrize("name", HOLDERS)
def test_what_an_optimizer_keeps_and_sends(name: str) -> None:
    net = nn.Linear(FAN_IN, FAN_OUT, bias=False)
    optimizer = getattr(br.optim, name)(net, n_data=10, likelihood=br.Gaussian(1.0))
    optimizer.exchange = Watched()
    with optimizer.sampled_params():
        optimizer.nll(net(torch.randn(4, FAN_IN)), torch.randn(4, FAN_OUT)).backward()
    optimizer.step()
    kept = sum(numbers(state) for state in optimizer.states.values())
    kept += sum(room.numel() for room in optimizer._room) + 2 * net.weight.numel()
    expected = footprint(name, FAN_IN, FAN_OUT)
    assert (round(expected.kept * FAN_IN * FAN_OUT), round(expected.sent * FAN_IN * FAN_OUT)) == (
        kept,
        optimizer.exchange.sent,
    )


@pytest.mark.parametrize("name", ["Point", *FAMILIES])
def test_what_a_layer_keeps_and_sends(name: str) -> None:
    layer = nn.Linear(FAN_IN, FAN_OUT, bias=False)
    trained = br.bayesianize(layer, FAMILIES[name]) if name in FAMILIES else layer
    optimizer = torch.optim.Adam(trained.parameters())
    (trained(torch.randn(4, FAN_IN)).sum() + (br.kl(trained) if name in FAMILIES else 0)).backward()
    optimizer.step()
    sent = sum(p.grad.numel() for p in trained.parameters())
    moments = sum(numbers(tensor) for state in optimizer.state.values() for tensor in state.values())
    expected = footprint(name, FAN_IN, FAN_OUT)
    assert round(expected.kept * FAN_IN * FAN_OUT) == 2 * sent + moments
    assert round(expected.sent * FAN_IN * FAN_OUT) == sent


def test_bytes() -> None:
    found = Footprint(kept=4, sent=1)
    assert found.kept_bytes(100, processes=4) == 4 * 4 * 100 / 4
    assert found.sent_bytes(100, processes=4) == 2 * 3 / 4 * 4 * 100
    assert found.sent_bytes(100, processes=1) == 0


def test_no_such_method() -> None:
    with pytest.raises(InvalidArgument, match="no such method"):
        footprint("Laplace", 2, 2)


def page_rows() -> dict[str, list[str]]:
    rows = re.findall(r"^\| `(\w+)`[^|]* \|(.*)\|$", PAGE.read_text(), re.M)
    return {name: [cell.strip() for cell in rest.split("|")] for name, rest in rows}


@pytest.mark.parametrize("name", list(METHODS))
def test_the_page_shows_the_formulas(name: str) -> None:
    """For layers of 8192 × 8192, of which 16 are a billion weights, and eight processes."""
    found, weights = footprint(name, 8192, 8192), 16 * 8192**2
    expected = [
        f"{4 * found.kept:.1f}",
        f"{4 * found.sent:.1f}",
        f"{found.kept_bytes(weights) / 1e9:.1f}",
        f"{found.sent_bytes(weights, 8) / 1e9:.1f}",
    ]
    assert page_rows()[name] == expected

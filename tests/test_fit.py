"""`br.fit`: runs that are resumed, and what is refused before anything is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.errors import InvalidArgument

X = torch.linspace(-1, 1, 24).reshape(12, 2)
BATCHES = [(X[:6], X[:6].sum(1, keepdim=True)), (X[6:], X[6:].sum(1, keepdim=True))]


class StoppedError(Exception):
    pass


def fitted(**options: Any) -> br.train.Fitted:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    return br.fit(net, BATCHES, likelihood=br.Gaussian(0.1), **{"epochs": 4, "seed": 1, **options})


def weights(found: br.train.Fitted) -> list[Tensor]:
    return list(found.bnn.state_dict().values())


def stopped_after(number: int, **options: Any) -> None:
    def stop(_: Any, epoch: br.train.Epoch) -> None:
        if epoch.epoch == number:
            raise StoppedError

    with pytest.raises(StoppedError):
        fitted(callbacks=[stop], **options)


def test_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = fitted()
    stopped_after(2, out=tmp_path)
    resumed = fitted(out=tmp_path, resume=True)
    assert [epoch.epoch for epoch in resumed.history] == [1, 2, 3, 4]
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(weights(resumed), weights(whole), strict=True))


def test_a_checkpoint_is_not_replaced_unasked(tmp_path: Path) -> None:
    stopped_after(2, out=tmp_path)
    (checkpoint,) = tmp_path.iterdir()
    before = checkpoint.read_bytes()
    with pytest.raises(InvalidArgument, match=r"checkpoint of an earlier run.*resume=True"):
        fitted(out=tmp_path)
    assert checkpoint.read_bytes() == before
    fitted(out=tmp_path, resume=True)


@pytest.mark.parametrize("valid", [[], iter(())], ids=["list", "spent iterator"])
def test_validation_without_examples_is_named(valid: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"no validation batches|validation batches hold no example"):
        fitted(valid=valid)

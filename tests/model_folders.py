"""A sound model folder, ways to spoil it, and the check that it is refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import bayesrule as br
from bayesrule.errors import BayesruleError
from bayesrule.nn.model_folder import write_folder

TENSORS, CONFIG = "model.safetensors", "config.json"


class Net(nn.Module):
    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(5, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)))


def sound_model(folder: Path) -> Path:
    """A folder to spoil."""
    options = {"posterior": br.KTied(2), "prior": br.GroupARD("row", "gradient"), "likelihood": br.Gaussian(0.1)}
    return br.save(br.bayesianize(Net(), **options), folder)


def refused(folder: Path, match: str = "", into: nn.Module | None = None) -> str:
    """The message with which a folder is refused, by the library's own error and without a trace left behind."""
    net = Net() if into is None else into
    state, generator = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    with pytest.raises(BayesruleError, match=match) as error:
        br.load(folder, into=net)
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(tensor, state[name]) for name, tensor in net.state_dict().items())
    assert len(str(error.value)) > 20
    return str(error.value)


def forge(folder: Path, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change the configuration as if it had been saved so."""
    with safe_open(folder / TENSORS, "pt") as file:
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118, not a dict
    config = json.loads((folder / CONFIG).read_text())
    edit(config)
    write_folder(folder, config, tensors)

"""Faults while the command runs: a loss that is not finite, a disk that is full; what was good is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bayesrule.train.checkpoint import read_checkpoint
from bayesrule.train.member_loop import MemberLoop
from bayesrule.train.tabular import TabularModel
from command_line import FAST, bayesrule, classes, files, refused, write

LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
from bayesrule.cli import main
main()
"""
"""The command where no file may grow beyond so many bytes: the writes of the system itself fail, as on a full disk."""
LAYER = "2.homes.weight.posterior.mean"


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults")
    data = write(classes(), folder / "toy.csv")
    assert bayesrule("fit", data, *FAST, "--quiet", "--out", folder / "model").code == 0
    return folder


def spoiled_by(harm: Callable[[torch.Tensor], None]) -> Callable[[MemberLoop], Any]:
    """Training steps of which the twentieth does harm to one layer."""
    true = MemberLoop._train_step

    def step(loop: MemberLoop) -> Any:
        if loop.step == 20:
            (name,) = (name for name in loop.stacked.parameters if name.endswith(LAYER))
            harm(loop.stacked.parameters[name])
        return true(loop)

    return step


def not_a_number(parameter: torch.Tensor) -> None:
    with torch.no_grad():
        parameter[0, 0, 0] = torch.nan


def steep(parameter: torch.Tensor) -> None:
    parameter.register_hook(lambda gradient: gradient * torch.inf)


@pytest.mark.parametrize(
    ("harm", "message"), [(not_a_number, "The loss is not finite at step 20"), (steep, "The gradient is not finite")]
)
def test_a_run_that_diverges_names_the_layer_and_keeps_the_last_good_state(
    harm: Callable[[torch.Tensor], None], message: str, fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("fit", fitted / "toy.csv", *FAST, "--quiet", "--out", tmp_path / "model")
    with monkeypatch.context() as patched:
        patched.setattr(MemberLoop, "_train_step", spoiled_by(harm))
        refused(bayesrule(*words), 1, message, f"look at .*{LAYER}", "Got: losses of", "smaller learning rate")
    state = read_checkpoint(tmp_path / "model" / "training" / "checkpoint.safetensors")
    assert state["step"] == 20
    assert all(bool(value.isfinite().all()) for value in state["parameters"].values())
    assert bayesrule(*words, "--resume").code == 0
    resumed, whole = (TabularModel.load(folder / "model").members.state_dict() for folder in (tmp_path, fitted))
    assert all(torch.equal(resumed[name], value) for name, value in whole.items())


def limited(size: int, *words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED, str(size), *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_writes_that_fail_lose_nothing(fitted: Path, tmp_path: Path) -> None:
    copy, data = tmp_path / "model", fitted / "toy.csv"
    shutil.copytree(fitted / "model", copy)
    before = files(copy)
    for words, named in [
        (("fit", data, *FAST, "--out", tmp_path / "new"), "new"),
        (("fit", data, *FAST, "--out", copy, "--force"), "model"),
        (("predict", copy, data, "-o", tmp_path / "out.csv"), "out.csv"),
        (("compress", copy, "--rank", 1, "-o", tmp_path / "lean"), "lean"),
    ]:
        ran = limited(2000, *words)
        assert ran.returncode == 1, ran
        assert f"{named} could not be read or written.\nGot: File too large\nWhat to do: " in ran.stderr, ran
        assert "Traceback" not in ran.stderr
    assert files(copy) == before
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["model"]

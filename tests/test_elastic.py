"""Started by ``torchrun``: a killed process is started again, and the run ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"),
]
SECONDS = 180


def torchrun(*words: str, restarts: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [*command, f"--max-restarts={restarts}", *words],
        env=environment, capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip


SCRIPT = str(Path(__file__).with_name("elastic_training.py"))


def trained(out: Path, *words: str, restarts: int = 0) -> dict[str, Any]:
    done = torchrun(SCRIPT, str(out), *words, restarts=restarts)
    assert done.returncode == 0, done.stderr
    return torch.load(out / "end.pt", weights_only=True)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run that was left alone."""
    return trained(tmp_path_factory.mktemp("quiet"))


def same_weights(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return all(torch.equal(left["state"][name], value) for name, value in right["state"].items() if name != "told")


def test_a_killed_process_changes_nothing(tmp_path: Path, quiet: dict[str, Any]) -> None:
    disturbed = trained(tmp_path, "KILL", restarts=1)
    assert (quiet["world"], disturbed["world"]) == (2, 2)
    assert (quiet["restarted"], disturbed["restarted"]) == (False, True)
    assert quiet["state"]["told"].tolist() == [1, 2, 3, 4, 5]
    assert disturbed["state"]["told"].tolist() == [3, 4, 5]  # two epochs were in the checkpoint
    assert same_weights(disturbed, quiet)


def test_a_signal_to_one_stops_all_at_the_same_step_to_go_on_later(tmp_path: Path, quiet: dict[str, Any]) -> None:
    done = torchrun(SCRIPT, str(tmp_path), "TERM")
    assert done.returncode != 0
    assert done.stderr.count("Training was interrupted in epoch 3 of 5") >= 2
    resumed = trained(tmp_path, "resume")
    assert resumed["state"]["told"].tolist() == [3, 4, 5]
    assert same_weights(resumed, quiet)


def test_the_command_under_torchrun(tmp_path: Path) -> None:
    command, out = str(Path(sys.executable).with_name("bayesrule")), tmp_path / "wine"
    done = torchrun(command, "fit", "wine", "--steps", "20", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Data: wine") == 1
    assert json.loads((out / "metrics.json").read_text())["test_accuracy"] > 0.3
    result = tmp_path / "trial"
    done = torchrun(command, "reproduce", "ktied/table1", "--preset", "smoke", "--out", str(result))
    assert done.returncode == 0, done.stderr
    assert json.loads((result / "result.json").read_text())["experiment"] == "ktied/table1"

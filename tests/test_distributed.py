"""Two processes are one: with noise keyed by example, they end where one process on the whole batches does."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import distributed_cases as cases

SIZE, SECONDS = 2, 240

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo"
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes ended with, in all cases: they are started once, also where tests run in parallel."""
    base = tmp_path_factory.getbasetemp()
    out = (base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base) / "two_processes"
    out.mkdir(exist_ok=True)
    with (out / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((out / f"{rank}.pt").exists() for rank in range(SIZE)):
            train_together(out)
    return [torch.load(out / f"{rank}.pt", weights_only=True) for rank in range(SIZE)]


def train_together(out: Path) -> None:
    (out / "rendezvous").unlink(missing_ok=True)
    command = [sys.executable, "-W", "error", cases.__file__]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    running = [
        subprocess.Popen(
            [*command, str(rank), str(SIZE), str(out / "rendezvous"), str(out)],
            env=environment, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(SIZE)
    ]  # fmt: skip
    try:
        said = [process.communicate(timeout=SECONDS)[1] for process in running]
    finally:
        for process in running:
            process.kill()
    assert [process.returncode for process in running] == [0] * SIZE, "\n".join(said)


@pytest.mark.parametrize("case", list(cases.TOGETHER))
def test_two_processes_equal_one_on_the_whole_batches(case: str, found: list[dict[str, Any]]) -> None:
    expected = cases.ALONE[case]()
    for process in found:
        assert process[case].keys() == expected.keys()
        for name, tensor in expected.items():
            torch.testing.assert_close(process[case][name], tensor, rtol=1e-6, atol=1e-9, msg=f"{case}: {name}")


@pytest.mark.parametrize("case", list(cases.TOGETHER))
def test_processes_end_at_the_same_numbers(case: str, found: list[dict[str, Any]]) -> None:
    first, second = (process[case] for process in found)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_noise_by_rank_differs_and_posteriors_do_not(found: list[dict[str, Any]]) -> None:
    first, second = (process["by rank"] for process in found)
    random = {"draw", "output"}
    assert not any(torch.isclose(first[name], second[name]).any() for name in random)
    assert all(torch.equal(first[name], second[name]) for name in first.keys() - random)


def test_a_sharded_model_is_put_together_and_saved(found: list[dict[str, Any]]) -> None:
    first, second = (process["saved"] for process in found)
    assert first["read"].keys() == first["whole"].keys() == second["whole"].keys()
    for name, tensor in first["read"].items():
        assert type(tensor) is torch.Tensor
        assert torch.equal(tensor, first["whole"][name])
        assert torch.equal(tensor, second["whole"][name])
    start = cases.converted().state_dict()
    assert all(not torch.equal(tensor, start[name]) for name, tensor in first["read"].items() if name in start)


@pytest.mark.parametrize(
    ("case", "part"),
    [
        ("other weights", "do not start from the same weights"),
        ("not finite", "not finite"),
        ("Auto", "LocalReparam"),
        *((name, f"{name} needs whole tensors") for name in cases.NEED_WHOLE),
        *((name, "Load br.distributed.whole_state_dict(bnn)") for name in cases.NEED_WHOLE),
    ],
)
def test_refusals_reach_every_process(case: str, part: str, found: list[dict[str, Any]]) -> None:
    assert all(part in process["refusals"][case] for process in found)

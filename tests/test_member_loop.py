"""Training of members: resumed, it ends as if it had not stopped; and calibration means the same on both its ways."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bayesrule as br
from bayesrule.train import CheckpointError, TrainingDiverged, TrainingInterrupted
from bayesrule.train.member_loop import MemberLoop, Progress
from bayesrule.train.members import Members, Settings, Task, build_member, make_likelihood, train_members
from bayesrule.train.stacked import StackedMembers

ROOT = Path(__file__).parents[1]
SETTINGS = Settings(hidden=(8,), folds=3, steps=30, draws=12)
TASKS: list[Task] = ["regression", "classification"]


def data(task: Task, rows: int = 41) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, 3, generator=generator)
    number = x[:, :1].sin() + 0.2 * torch.randn(rows, 1, generator=generator)
    return x, number if task == "regression" else torch.bucketize(number[:, 0], torch.tensor([-0.3, 0.3]))


def train(task: Task, settings: Settings = SETTINGS, **options: Any) -> tuple[Members, list[dict[str, Any]]]:
    return train_members(*data(task), task, settings, outputs=3, **options)


def outcome(task: Task, found: tuple[Members, list[dict[str, Any]]]) -> tuple[dict[str, Tensor], list[list[Any]]]:
    members, history = found
    times_left_out = [[value for name, value in entry.items() if name != "seconds"] for entry in history]
    return {**members.state_dict(), "outputs": members.predictive(data(task)[0]).outputs}, times_left_out


def check_equal(one: tuple[dict[str, Tensor], Any], other: tuple[dict[str, Tensor], Any]) -> None:
    assert one[1] == other[1]
    assert one[0].keys() == other[0].keys()
    for name, value in one[0].items():
        assert torch.equal(value, other[0][name]), name


class Stop(Exception):  # noqa: N818, it is no error
    pass


@pytest.mark.parametrize("task", TASKS)
def test_a_run_stopped_anywhere_ends_the_same(task: Task, tmp_path: Path) -> None:
    whole = outcome(task, train(task))
    checkpoint = tmp_path / "c"
    for stop in (1, 7, 18, 29):  # each goes on from where the one before it stopped

        def interrupt(progress: Progress, stop: int = stop) -> None:
            if progress.step == stop:
                raise Stop

        with pytest.raises(Stop):
            train(task, checkpoint=checkpoint, resume=True, on_progress=interrupt)
    resumed = train(task, checkpoint=checkpoint, resume=True)
    check_equal(whole, outcome(task, resumed))
    check_equal(whole, outcome(task, train(task, checkpoint=checkpoint, resume=True)))  # from its end


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_writes_a_checkpoint_and_says_how_to_go_on(
    number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(SETTINGS, steps=90)  # measured at every third step; the signal comes in the tenth
    whole = outcome("regression", train("regression", settings))
    step = MemberLoop._train_step

    def signalled(loop: MemberLoop) -> tuple[Tensor, Tensor]:
        if loop.step == 9:
            os.kill(os.getpid(), number)
        return step(loop)

    handlers = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patched:
        patched.setattr(MemberLoop, "_train_step", signalled)
        with pytest.raises(TrainingInterrupted, match=r"step 10 of 90.*resume"):
            train("regression", settings, checkpoint=tmp_path / "c")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == handlers
    check_equal(whole, outcome("regression", train("regression", settings, checkpoint=tmp_path / "c", resume=True)))


def test_other_data_or_settings_are_refused(tmp_path: Path) -> None:
    checkpoint = tmp_path / "c"
    train("regression", checkpoint=checkpoint)
    with pytest.raises(CheckpointError, match="other data or settings"):
        train("regression", replace(SETTINGS, seed=1), checkpoint=checkpoint, resume=True)
    x, y = data("regression")
    with pytest.raises(CheckpointError, match="other data or settings"):
        train_members(x + 1, y, "regression", SETTINGS, checkpoint=checkpoint, resume=True)
    with pytest.raises(CheckpointError, match="other data or settings"):
        train_members(x.flip(0), y, "regression", SETTINGS, checkpoint=checkpoint, resume=True)


def test_what_killed_writes_left_is_removed(tmp_path: Path) -> None:
    checkpoint = tmp_path / "c"
    train("regression", checkpoint=checkpoint)
    (tmp_path / ".c.0123456789abcdef").write_bytes(b"half a file")
    (tmp_path / ".other").write_bytes(b"not ours")
    train("regression", checkpoint=checkpoint, resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".other", "c"]


def test_training_leaves_torchs_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train("classification")
    assert torch.equal(torch.rand(3), expected)


def test_the_global_seed_does_not_matter() -> None:
    torch.manual_seed(1)
    first = outcome("regression", train("regression"))
    torch.manual_seed(2)
    check_equal(first, outcome("regression", train("regression")))


def test_a_loss_that_is_not_finite_names_its_place() -> None:
    x, y = data("regression")
    x[3, 1] = torch.inf
    with pytest.raises(TrainingDiverged, match="the inputs"):
        train_members(x, y, "regression", SETTINGS)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("log_scale", [-0.7, 0.4])
def test_a_calibrated_head_gives_the_density_it_was_calibrated_by(task: Task, log_scale: float) -> None:
    settings = replace(SETTINGS, deterministic=True)
    x, y = data(task, rows=42)
    generator = torch.Generator().manual_seed(0)
    members = [build_member(3, 3, task, settings, generator) for _ in range(settings.size)]
    folds = torch.arange(42).tensor_split(settings.folds)
    likelihood = make_likelihood(task, settings)
    loop = MemberLoop(StackedMembers(members), likelihood, x, y, folds, settings, generator, None, None)
    found = loop.held_out_log_densities(log_scale)
    assert found.shape == (2, 42)
    for number, member in enumerate(members):
        rows = folds[number % settings.folds]
        member.module[-1].log_scale.fill_(log_scale)  # type: ignore[index]
        expected = likelihood.expected_log_prob(member.at_mean(x[rows]), y[rows])
        torch.testing.assert_close(found[number // settings.folds, rows], expected, rtol=1e-5, atol=1e-5)


def test_members_never_train_on_the_fold_that_judges_them() -> None:
    x, y = data("regression")
    generator = torch.Generator().manual_seed(0)
    members = [build_member(3, 1, "regression", SETTINGS, generator) for _ in range(SETTINGS.size)]
    folds = torch.randperm(41, generator=generator).tensor_split(3)
    likelihood = br.GaussianMixture(3)
    loop = MemberLoop(StackedMembers(members), likelihood, x, y, folds, SETTINGS, generator, None, None)
    for number in range(SETTINGS.size):
        own = set(folds[number % 3].tolist())
        assert not own & set(loop.rows[number].tolist())
        assert set(loop.held_out[number].tolist()) <= own


def survive(kills: int) -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "kill_and_resume.py"), "--kills", str(kills)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(rf"{kills} kills in \d+ runs: every one resumed", done.stdout)


def test_ten_kills_change_nothing() -> None:
    survive(10)


@pytest.mark.slow
def test_two_hundred_kills_change_nothing() -> None:
    survive(200)

"""Saves that are cut short leave a whole model."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br


def version(number: float) -> br.nn.BayesianModule:
    """A model all of whose numbers, and whose configuration, tell which version it is."""
    bnn = br.bayesianize(nn.Linear(5, 3), br.Diagonal(0.1), br.Normal(1.0 + number))
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter.fill_(number)
    return bnn


def version_in(folder: Path) -> float:
    loaded = br.load(folder, into=nn.Linear(5, 3))
    (number,) = {value.item() for parameter in loaded.parameters() for value in parameter.detach().flatten()}
    assert {home.prior for home in loaded.homes().values()} == {br.Normal(1.0 + number)}
    return number


class Fault:
    """Raises at the n-th call of any of the functions it stands for."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.at, self.error, self.calls = at, error, 0

    def step(self) -> None:
        self.calls += 1
        if self.calls == self.at:
            raise self.error

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            self.step()
            return function(*args, **kwargs)

        return called

    def after(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.step()
            return result

        return called

    def opening(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Of files that break in the middle of a write."""

        def called(*args: Any, **kwargs: Any) -> Any:
            file = function(*args, **kwargs)
            return BreakingFile(file, self)

        return called


class BreakingFile:
    def __init__(self, file: Any, fault: Fault) -> None:
        self.file, self.fault = file, fault

    def __enter__(self) -> BreakingFile:
        return self

    def __exit__(self, *error: Any) -> None:
        self.file.close()

    def write(self, content: bytes) -> None:
        self.file.write(content[: len(content) // 2])
        self.fault.step()
        self.file.write(content[len(content) // 2 :])

    def flush(self) -> None:
        self.file.flush()

    def fileno(self) -> int:
        return self.file.fileno()


ERRORS = [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt(), MemoryError()]


def crashes(error: BaseException) -> Iterator[Fault]:
    """One fault for each step of a save, until none is left to fail."""
    for at in range(1, 100):
        fault = Fault(at, error)
        yield fault
        if fault.calls < at:
            return
    raise AssertionError("a save has no end of steps")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("first", [True, False], ids=["a new folder", "an old model"])
def test_a_crash_at_any_step_leaves_a_whole_model(error: BaseException, first: bool, tmp_path: Path) -> None:
    found = []
    for fault in crashes(error):
        folder = tmp_path / str(fault.at)
        if not first:
            br.save(version(1), folder)
        new = version(2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Path, "open", fault.opening(fault.before(Path.open)))
            patch.setattr(os, "fsync", fault.before(os.fsync))
            patch.setattr(os, "replace", fault.after(fault.before(os.replace)))
            raised: BaseException | None = None
            try:
                br.save(new, folder)
            except BaseException as caught:
                raised = caught
        assert raised is (error if fault.calls >= fault.at else None)
        assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
        if not first or (folder / "config.json").exists():
            found.append(version_in(folder))
        else:
            with pytest.raises(br.nn.ModelFolderError, match="is not a model folder"):
                br.load(folder, into=nn.Linear(5, 3))
    assert found[-1] == 2
    if not first:  # the old model until the tensors, in two pieces, are renamed: the sixth step; then the new one
        assert found == [1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2]


KILLS = """
    import os, random, signal, sys, time
    from pathlib import Path
    import torch, bayesrule as br
    from torch import nn

    torch.set_num_threads(1)
    folder, rounds, random_ = Path(sys.argv[1]), int(sys.argv[2]), random.Random(0)
    net = nn.Linear(300, 100)

    def save(number):
        bnn = br.bayesianize(net, br.Diagonal(), br.Normal(float(number)))
        with torch.no_grad():
            for parameter in bnn.parameters():
                parameter.fill_(number)
        br.save(bnn, folder)

    def check(at_least):
        loaded = br.load(folder, into=net)
        numbers = {p.min().item() for p in loaded.parameters()} | {p.max().item() for p in loaded.parameters()}
        numbers |= {home.prior.std for home in loaded.homes().values()}
        assert len(numbers) == 1, numbers
        (number,) = numbers
        assert number >= at_least, (number, at_least)
        return number

    save(1)
    last, interrupted = 1, 0
    for _ in range(rounds):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            for number in range(int(last) + 1, int(last) + 1000):
                save(number)
                os.write(writer, b".")
            os._exit(0)
        try:
            os.read(reader, 1)
            for _ in range(2):
                last = check(last)  # while it is being written
            time.sleep(random_.random() * 0.02)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(reader), os.close(writer)
        last = check(last)
        left = [path for path in folder.iterdir() if path.name.startswith(".")]
        interrupted += bool(left)
        for path in left:
            path.unlink()
    print(int(last), interrupted)
"""


def kill_and_read(folder: Path, rounds: int) -> tuple[int, int]:
    command = [sys.executable, "-c", textwrap.dedent(KILLS), str(folder), str(rounds)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    last, interrupted = map(int, run.stdout.split())
    return last, interrupted


def test_a_killed_process_leaves_a_whole_model(tmp_path: Path) -> None:
    last, interrupted = kill_and_read(tmp_path, 20)
    assert last > 20
    assert interrupted > 0  # some were killed in the middle of a file


@pytest.mark.slow
def test_many_killed_processes_leave_whole_models(tmp_path: Path) -> None:
    last, interrupted = kill_and_read(tmp_path, 500)
    assert last > 500
    assert interrupted > 20

"""Where the compiled library comes from, and what happens where it cannot be had."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bayesrule.kernels.native import is_there
from bayesrule.kernels.native.library import _compiled, library, serves

needs_compiler = pytest.mark.skipif(not is_there(), reason="needs a C compiler")

STEP = """
import torch, bayesrule as br
from bayesrule.kernels.native import is_there
from bayesrule.random import FromGenerator
torch.set_num_threads(1)
torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(9, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
bnn = br.bayesianize(net, br.KTied(2), br.Normal(1.0), br.{estimator}())
bnn.draws.noise = FromGenerator()
loss = bnn(torch.randn(4, 9)).square().mean() + br.kl(bnn) / 100
loss.backward()
print(is_there(), loss.item(), *(parameter.grad.double().norm().item() for parameter in bnn.parameters()))
"""


def step(estimator: str, **environment: str) -> tuple[str, list[float]]:
    """Whether there was a library, and the numbers of a step."""
    command = [sys.executable, "-W", "error", "-c", STEP.format(estimator=estimator)]
    inherited = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=inherited | environment, check=False)
    assert done.returncode == 0, done.stderr
    there, *numbers = done.stdout.split()
    return there, [float(number) for number in numbers]


@needs_compiler
@pytest.mark.parametrize("estimator", ["LocalReparam", "WeightSample"])
def test_a_step_is_the_same_with_and_without_it(estimator: str, tmp_path: Path) -> None:
    """Given torch's own normals in either case."""
    there, numbers = step(estimator, XDG_CACHE_HOME=str(tmp_path))
    without, plain = step(estimator, BAYESRULE_NATIVE="0")
    assert (there, without) == ("True", "False")
    assert numbers == pytest.approx(plain, rel=1e-5)
    assert [path.suffix for path in (tmp_path / "bayesrule" / "native").iterdir()] == [".so"]


def test_without_a_compiler_nothing_else_changes(tmp_path: Path) -> None:
    there, numbers = step("WeightSample", CC="no-such-compiler", XDG_CACHE_HOME=str(tmp_path))
    assert there == "False"
    assert numbers == step("WeightSample", BAYESRULE_NATIVE="0")[1]
    assert not list(tmp_path.iterdir())


@needs_compiler
def test_a_compiler_that_fails_is_none(tmp_path: Path) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\nexit 1\n")
    compiler.chmod(0o755)
    assert step("LocalReparam", CC=str(compiler), XDG_CACHE_HOME=str(tmp_path / "cache"))[0] == "False"


@needs_compiler
def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    (tmp_path / "bayesrule").write_text("a file where a folder should be")
    assert step("LocalReparam", XDG_CACHE_HOME=str(tmp_path))[0] == "True"
    assert (tmp_path / "bayesrule").is_file()


@needs_compiler
def test_a_broken_file_in_the_cache_is_made_again(tmp_path: Path) -> None:
    step("LocalReparam", XDG_CACHE_HOME=str(tmp_path))
    folder = tmp_path / "bayesrule" / "native"
    (kept,) = folder.iterdir()
    whole = kept.read_bytes()
    for broken in (b"", b"cut off", whole[:8000]):
        kept.write_bytes(broken)
        assert step("LocalReparam", XDG_CACHE_HOME=str(tmp_path))[0] == "True"
        (replaced,) = folder.iterdir()
        assert len(replaced.read_bytes()) > 8000
        kept = replaced


@needs_compiler
def test_no_home_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert _compiled(["cc"]).ktied_noise_kept(4, 3, 2, 5) > 0


@needs_compiler
def test_a_compiler_may_have_options_and_an_empty_one_is_the_systems(tmp_path: Path) -> None:
    for compiler in ("cc -g0", ""):
        assert step("LocalReparam", CC=compiler, XDG_CACHE_HOME=str(tmp_path))[0] == "True"
    for words in ("0", "false", "OFF"):
        assert step("LocalReparam", BAYESRULE_NATIVE=words, XDG_CACHE_HOME=str(tmp_path))[0] == "False"


@needs_compiler
def test_processes_that_compile_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", STEP.format(estimator="LocalReparam")]
    environment = {"PATH": "/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = {process.communicate()[0] for process in running}
    assert len(printed) == 1
    assert printed.pop().startswith("True")
    assert len(list((tmp_path / "bayesrule" / "native").iterdir())) == 1


TRACE = """
import torch, bayesrule as br
bnn = br.bayesianize(torch.nn.Linear(80, 90), br.KTied(2), estimator=br.WeightSample(), bias="point")
x = torch.randn(2, 80)
traced = torch.jit.trace(bnn, x, check_trace=False)
print(torch.equal(traced(x), traced(x)))
"""


def test_a_trace_draws_anew() -> None:
    """Numbers of Python would be constants in it. In a process of its own, since a trace has no shapes to check."""
    done = subprocess.run([sys.executable, "-c", TRACE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False"]


@needs_compiler
def test_only_ordinary_float32_in_order_on_a_cpu() -> None:
    x = torch.randn(4, 3)
    assert serves(12, x)
    assert library() is library()
    for other in (x.double(), x.mT, x.bfloat16(), x.to("meta")):
        assert not serves(12, other)

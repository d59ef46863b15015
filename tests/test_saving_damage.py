"""Saves that are cut short, and folders that are damaged, foreign or do not fit."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import bayesrule as br
from bayesrule.errors import BayesruleError, InvalidArgument
from bayesrule.nn import ModelFolderError
from bayesrule.nn.model_folder import write_folder

TENSORS, CONFIG = "model.safetensors", "config.json"


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
    if not first:  # the old model until the tensors are renamed (its fifth step), the new one from then on
        assert found == [1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2]


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


class Net(nn.Module):
    def __init__(self, hidden: int = 4) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(5, hidden), nn.BatchNorm1d(hidden), nn.Linear(hidden, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.norm(self.first(x)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound model."""
    options = {"posterior": br.KTied(2), "prior": br.GroupARD("row", "gradient"), "likelihood": br.Gaussian(0.1)}
    return br.save(br.bayesianize(Net(), **options), tmp_path / "model")


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


def test_no_folder_is_refused(tmp_path: Path) -> None:
    refused(tmp_path / "none", r"none is not a model folder: it has no model.safetensors.*no such folder.*br\.save")
    (tmp_path / "file").write_text("not a folder")
    refused(tmp_path / "file", r"is not a model folder.*no such folder")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "weights.pt").write_bytes(b"")
    refused(tmp_path / "other", r"is not a model folder.*weights\.pt")


@pytest.mark.parametrize("name", [TENSORS, CONFIG])
def test_a_missing_or_empty_file_is_refused(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    refused(folder, f"it has no {name}")
    (folder / name).mkdir()
    refused(folder, f"it has no {name}")
    (folder / name).rmdir()
    (folder / name).write_bytes(b"")
    refused(folder, "cannot be read|is not JSON")
    (folder / name).write_bytes(content)
    br.load(folder, into=Net())


@pytest.mark.parametrize("name", [TENSORS, CONFIG])
def test_a_truncated_file_is_refused(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    cuts = {*range(20), *range(0, len(content), len(content) // 60), *range(len(content) - 20, len(content))}
    for cut in sorted(cuts):
        (folder / name).write_bytes(content[:cut])
        refused(folder, "cannot be read|is not JSON")
    (folder / name).write_bytes(content + content)
    refused(folder, "cannot be read|is not JSON")


def damaged_bytes(content: bytes, times: int, seed: int) -> Iterator[bytes]:
    """One byte other than it was, or one bit."""
    generator = random.Random(seed)
    for i in range(times):
        damaged = bytearray(content)
        place = generator.randrange(len(damaged))
        damaged[place] ^= generator.randrange(1, 256) if i % 2 else 1 << generator.randrange(8)
        yield bytes(damaged)


def check_same(folder: Path, expected: dict[str, Tensor]) -> None:
    loaded = br.load(folder, into=Net())
    assert all(torch.equal(tensor, expected[name]) for name, tensor in loaded.state_dict().items())
    assert {str(home.prior) for home in loaded.homes().values()} == {str(br.GroupARD("row", "gradient"))}


@pytest.mark.parametrize("name", [TENSORS, CONFIG])
def test_a_flipped_byte_is_noticed_or_harmless(folder: Path, name: str) -> None:
    expected = br.load(folder, into=Net()).state_dict()
    content, noticed, times = (folder / name).read_bytes(), 0, 200 if name == TENSORS else 60
    for damaged in damaged_bytes(content, times, seed=0):
        (folder / name).write_bytes(damaged)
        try:
            check_same(folder, expected)
        except BayesruleError:
            noticed += 1
    # A flip in the JSON for people to read, or in the padding of the header, changes nothing that is loaded.
    assert noticed >= (0.95 if name == TENSORS else 0.5) * times


def test_a_flipped_bit_in_a_number_is_noticed(folder: Path) -> None:
    content = (folder / TENSORS).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    for place in range(start, len(content), 3):
        damaged = bytearray(content)
        damaged[place] ^= 1
        (folder / TENSORS).write_bytes(damaged)
        refused(folder, r"model.safetensors is damaged.*digest.*Restore it from a copy")


def test_tensors_of_another_model_are_noticed(folder: Path, tmp_path: Path) -> None:
    with safe_open(folder / TENSORS, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118, not a dict
    tensors["module.first.homes.weight.posterior.mean"] += 1e-6
    save_file(tensors, folder / TENSORS, metadata=metadata)
    refused(folder, "is damaged")


def test_files_of_others_are_refused(folder: Path) -> None:
    save_file({"weight": torch.zeros(3)}, folder / TENSORS)
    refused(folder, r"was not written by bayesrule.*without a configuration")
    save_file({"weight": torch.zeros(3)}, folder / TENSORS, metadata={"format": "pt"})
    refused(folder, r"was not written by bayesrule.*without a configuration")
    torch.save({"weight": torch.zeros(3)}, folder / TENSORS)
    refused(folder, "cannot be read")
    for text in ("[]", "3", "null", '"text"', "{}", '{"format": "other"}', '{"architectures": ["Bert"]}'):
        (folder / CONFIG).write_text(text)
        refused(folder, "was not written by bayesrule")


@pytest.mark.parametrize("content", [b"[" * 100_000, b"{", b"\xff\xfe", b"\x80\x04\x95", b"NaN!", b"1" * 5000 + b"x"])
def test_what_is_not_json_is_refused(folder: Path, content: bytes) -> None:
    (folder / CONFIG).write_bytes(content)
    refused(folder, r"config.json is not JSON")


@pytest.mark.parametrize("version", [0, 2, "1", None, [1]])
def test_another_version_is_refused(folder: Path, version: Any) -> None:
    forge(folder, lambda config: config.update(version=version))
    refused(folder, "another version of the format than this one, 1.*Use the version of bayesrule that wrote it")


@pytest.mark.parametrize("entry", ["posterior", "prior", "estimator", "bias", "likelihood", "shared", "parameters"])
def test_a_configuration_without_an_entry_is_refused(folder: Path, entry: str) -> None:
    forge(folder, lambda config: config.pop(entry))
    refused(folder, f"is incomplete.*missing.*{entry}")


SPECS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown family": (lambda c: c["posterior"].update(first={"name": "Cauchy"}), "Not a posterior of.*'Cauchy'"),
    "a prior as a family": (lambda c: c["posterior"].update(first={"name": "Normal"}), "Not a posterior"),
    "unknown prior": (lambda c: c["prior"].update(first={"name": "Laplace"}), "Not a prior.*'Laplace'"),
    "a value as a prior": (lambda c: c["prior"].update(first={"name": "DiagonalNormal"}), "Not a prior"),
    "a function as a prior": (lambda c: c["prior"].update(first={"name": "kl_divergence"}), "Not a prior"),
    "an abstract estimator": (lambda c: c["estimator"].update(first={"name": "Estimator"}), "Estimator does not take"),
    "unknown likelihood": (lambda c: c.update(likelihood={"name": "os.system"}), "Not a likelihood"),
    "no name": (lambda c: c["posterior"].update(first={"rank": 2}), "Not a posterior.*None"),
    "no spec": (lambda c: c["posterior"].update(first=3), "Not a posterior"),
    "an unknown argument": (lambda c: c["posterior"]["first"].update(colour=1), "KTied does not take.*colour"),
    "a rank of zero": (lambda c: c["posterior"]["first"].update(rank=0), "at least 1"),
    "a rank in words": (lambda c: c["posterior"]["first"].update(rank="two"), "KTied does not take"),
    "a negative scale": (lambda c: c["posterior"]["first"].update(init_std=-1.0), "positive"),
    "another rank": (lambda c: c["posterior"]["first"].update(rank=1), "does not fit.*log_factor"),
    "another family": (lambda c: c["posterior"].update(first={"name": "Diagonal"}), "does not fit.*log_std"),
    "an empty tensor": (lambda c: c["likelihood"].update(noise_std={}), "Gaussian does not take"),
    "a tensor of nothing": (lambda c: c["likelihood"]["noise_std"].update(tensor=None), "Gaussian does not take"),
    "a ragged tensor": (lambda c: c["likelihood"]["noise_std"].update(tensor=[[1.0], []]), "Gaussian does not take"),
    "no dtype": (lambda c: c["likelihood"]["noise_std"].update(dtype="load"), "Gaussian does not take"),
    "another likelihood": (lambda c: c.update(likelihood={"name": "Categorical"}), "does not fit.*log_noise_std"),
    "no likelihood": (lambda c: c.update(likelihood=None), "does not fit.*log_noise_std"),
    "unknown bias": (lambda c: c.update(bias="none"), "bias.*none"),
    "another bias": (lambda c: c.update(bias="point"), "does not fit.*first.bias"),
    "unknown layer": (lambda c: c["posterior"].update(third={"name": "Diagonal"}), "."),
    "no layer": (lambda c: c.update(posterior={}), "."),
    "a missing prior": (lambda c: c["prior"].pop("first"), "No entry for layer 'first'"),
    "shared numbers": (lambda c: c.update(shared=3), "cannot be built.*TypeError"),
    "lists for families": (lambda c: c.update(posterior=[1]), "cannot be built"),
    "no parameters": (lambda c: c.update(parameters=[]), "does not fit.*first.weight: saved None"),
    "odd parameters": (lambda c: c.update(parameters=[3]), "cannot be built"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "match"), SPECS.values(), ids=SPECS)
def test_a_configuration_that_makes_no_sense_is_refused(
    folder: Path, edit: Callable[[dict[str, Any]], Any], match: str
) -> None:
    forge(folder, edit)
    refused(folder, match)


NAMES = ["Diagonal", "Normal", "first", "KTied", [], {}, [[]], {"name": "Full"}]
VALUES = st.none() | st.booleans() | st.integers(-3, 5) | st.floats() | st.text(max_size=3) | st.sampled_from(NAMES)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_the_configuration_is_refused_or_harmless(folder: Path, data: st.DataObject) -> None:
    original = (folder / CONFIG).read_text(), (folder / TENSORS).read_bytes()

    def edit(config: dict[str, Any]) -> None:
        node: Any = config
        while True:  # down to some entry, which is replaced, removed or added to
            keys = sorted(node) if isinstance(node, dict) else range(len(node))
            key = data.draw(st.sampled_from(keys), label="key")
            below = node[key]
            if isinstance(below, dict | list) and below and data.draw(st.integers(0, 4), label="down"):
                node = below
                continue
            if data.draw(st.booleans(), label="remove"):
                del node[key]
            else:
                node[key] = data.draw(VALUES, label="value")
            return

    try:
        forge(folder, edit)
        with contextlib.suppress(BayesruleError):
            loaded = br.load(folder, into=Net())
            assert br.predict(loaded, torch.zeros(2, 5), 2).outputs.isfinite().all()
    finally:
        (folder / CONFIG).write_text(original[0])
        (folder / TENSORS).write_bytes(original[1])


def test_a_module_of_another_shape_is_refused_with_the_differences(folder: Path) -> None:
    message = refused(folder, r"does not fit the module.*Build the network", into=Net(hidden=7))
    for difference in (
        "first.weight: saved [4, 5], module [7, 5]",
        "first.bias: saved [4], module [7]",
        "norm.weight: saved [4], module [7]",
        "norm.bias: saved [4], module [7]",
        "second.weight: saved [3, 4], module [3, 7]",
    ):
        assert difference in message
    message = refused(folder, "does not fit the module", into=nn.Linear(5, 4))
    assert "first.weight: saved [4, 5], module None" in message
    assert "and 3 more" in message
    more = Net()
    more.extra = nn.Linear(1, 1)
    message = refused(folder, "does not fit the module", into=more)
    assert "extra.weight: saved None, module [1, 1]" in message
    assert "first" not in message


def test_other_buffers_and_ties_do_not_fit_either(folder: Path) -> None:
    plain = Net()
    plain.norm = nn.BatchNorm1d(4, track_running_stats=False)
    assert "module.norm.running_mean: saved [4], module None" in refused(folder, "does not fit", into=plain)
    buffered = Net()
    buffered.register_buffer("scale", torch.ones(2))
    assert "module.scale: saved None, module [2]" in refused(folder, "does not fit", into=buffered)
    tied = Net(hidden=4)
    tied.second = nn.Linear(4, 4)
    tied.first.bias = tied.second.bias
    refused(folder, "does not fit the module", into=tied)


def test_modules_that_cannot_be_converted_are_refused(folder: Path) -> None:
    lazy = Net()
    lazy.first = nn.LazyLinear(4)
    with pytest.raises(InvalidArgument, match=r"first\.weight belongs to a lazy module"):
        br.load(folder, into=lazy)
    with pytest.raises(BayesruleError, match=r"does not fit|Bayesian already"):
        br.load(folder, into=br.load(folder, into=Net()))


def test_an_unreadable_file_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(path: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_bytes", denied)
    message = refused(folder, r"cannot be read.*Permission denied")
    assert "model" in message


def test_the_errors_are_value_errors(tmp_path: Path) -> None:
    assert issubclass(ModelFolderError, BayesruleError)
    with pytest.raises(ValueError, match="is not a model folder"):
        br.load(tmp_path, into=Net())

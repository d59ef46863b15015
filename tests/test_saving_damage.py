"""Folders that are damaged, foreign or unreadable."""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import bayesrule as br
from bayesrule.errors import BayesruleError
from bayesrule.nn import ModelFolderError
from model_folders import CONFIG, TENSORS, Net, refused, sound_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound model."""
    return sound_model(tmp_path / "model")


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

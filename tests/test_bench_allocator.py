"""Steps that need not wait for the system's memory."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from bayesrule.bench import allocator, running
from bayesrule.errors import Unsupported
from command_line import bayesrule

GLIBC = hasattr(ctypes.CDLL(None), "gnu_get_libc_version")
PAGES_CLEARED = """
import resource, sys
import torch
from bayesrule.bench.allocator import keep_memory

if "keep" in sys.argv:
    keep_memory()
faults = []
for _ in range(3):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(faults[-1])
"""
"""Of the last of three tensors of 64 MiB, each freed before the next."""


@pytest.mark.skipif(not GLIBC, reason="needs glibc")
def test_what_is_freed_is_kept() -> None:
    def faults(*options: str) -> int:
        ran = subprocess.run(
            [sys.executable, "-c", PAGES_CLEARED, *options], capture_output=True, text=True, check=True
        )
        return int(ran.stdout)

    assert 10 * faults("keep") < faults()


def test_another_c_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: SimpleNamespace())
    with pytest.raises(Unsupported, match="cannot be told to keep memory"):
        allocator.keep_memory()


def test_only_who_asks_has_it_and_the_result_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(running, "keep_memory", lambda: asked.append(True))
    options = (
        "--models",
        "mlp-small",
        "--methods",
        "point",
        "--batch",
        2,
        "--rounds",
        1,
        "--seconds",
        0,
        "--inputs",
        0,
    )
    notes = []
    for folder, more in (("as-it-is", ()), ("kept", ("--keep-memory",))):
        ran = bayesrule("bench", *options, *more, "--out", tmp_path / folder)
        assert ran.code == 0, ran
        notes.append(" ".join(json.loads((tmp_path / folder / "result.json").read_text())["notes"]))
    assert asked == [True]
    assert ["kept the memory" in words for words in notes] == [False, True]

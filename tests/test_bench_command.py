"""`bayesrule bench`: what is refused before anything is measured, and what an interruption leaves."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from bayesrule.bench import MODELS, PEERS, Request, bench, running
from bayesrule.bench.models import dense
from bayesrule.bench.peers.peer import Peer, importing
from command_line import bayesrule, refused

REFUSED = {
    "a device": (("--device", "tpu"), "--device is cpu or cuda"),
    "threads": (("--threads", 0), "--threads is 1 at least"),
    "a seed": (("--seed", -1), "--seed is 0 at least"),
    "seconds": (("--seconds", "nan"), "--seconds is 0 at least"),
    "no end": (("--seconds", "inf"), "--seconds is finite"),
    "models": (("--models", ","), "--models names nothing"),
    "a batch": (("--batch", 0), "whole numbers from 1 on"),
    "a folder": (("--out", "file/costs"), "cannot be written"),
}


@pytest.mark.parametrize(("options", "said"), REFUSED.values(), ids=REFUSED)
def test_bad_options_are_named_before_anything_is_measured(
    options: tuple[Any, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(running, "steps", lambda *_: pytest.fail("measured"))
    ran = bayesrule("bench", "--models", "mlp-small", "--methods", "point", *options)
    assert ran.code == 2, ran
    assert said in ran.complaint.replace("\n", " ")


def test_a_library_that_alone_is_asked_for_must_be_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    needed = importing("no_such_library")
    monkeypatch.setitem(PEERS, "nowhere", Peer("nowhere", "pip install nowhere", needed, PEERS["ivon-opt"].build))
    ran = bayesrule("bench", "--models", "mlp-small", "--methods", "nowhere", "--out", tmp_path / "costs")
    assert ran.code == 2
    assert "nowhere cannot be measured here" in ran.complaint
    assert "pip install nowhere" in ran.complaint


def test_what_was_measured_before_an_interruption_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps, asked = running.steps, []

    def interrupted(*arguments: Any) -> running.Found:
        asked.append(arguments)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return steps(*arguments)

    monkeypatch.setattr(running, "steps", interrupted)
    ran = bayesrule(
        "bench", "--models", "mlp-small", "--methods", "point", "--batch", "2,3,3,4", "--rounds", 1, "--seconds", 0,
        "--inputs", 0, "--out", tmp_path,
    )  # fmt: skip
    assert ran.code == 1, ran
    assert "after 1 of 3 parts" in ran.complaint
    assert "3 of 3" not in ran.said
    result = json.loads((tmp_path / "result.json").read_text())
    assert {row["dataset"] for row in result["rows"]} == {"mlp-small, batch 2"}
    assert "Interrupted after 1 of 3 parts." in result["notes"]


TOO_WIDE = "dense-999999999999"  # its inputs alone are more than any machine can address
FEW = {"batches": (4,), "rounds": 1, "seconds": 0.0, "inputs": 0}


def test_a_model_that_no_memory_holds_is_named_with_a_remedy(tmp_path: Path) -> None:
    ran = bayesrule("bench", "--models", TOO_WIDE, "--methods", "ktied", "--out", tmp_path / "costs")
    refused(ran, 2, f"no memory here.*\n.*{TOO_WIDE}, batch 128", "Name a smaller model, such as dense-1024")
    assert not any((tmp_path / "costs").iterdir())


def test_a_model_that_no_memory_holds_does_not_cost_the_others_their_results() -> None:
    result = bench(Request(models=("dense-4", TOO_WIDE, "dense-5"), methods=("ktied",), **FEW), "bayesrule bench")
    assert {row["dataset"] for row in result["rows"]} == {"dense-4, batch 4", "dense-5, batch 4"}
    (reason,) = result["skipped"]
    assert reason.startswith(f"{TOO_WIDE}, batch 4, eager, float32: no memory (")


def test_a_contender_whose_network_finds_no_memory_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def network() -> nn.Module:
        made.append(None)
        if len(made) > 1:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes")
        return nn.Linear(4, 4)

    monkeypatch.setitem(MODELS, "once", replace(dense(4), name="once", network=network))
    result = bench(Request(models=("once",), methods=("ktied",), **FEW), "bayesrule bench")
    assert {row["method"] for row in result["rows"]} == {"point"}
    assert result["skipped"] == [
        "once, batch 4, eager, float32: ktied (RuntimeError: DefaultCPUAllocator: can't allocate memory: you tried to "
        "allocate 8 bytes)"
    ]


def test_an_error_that_is_not_of_memory_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> running.Found:
        raise RuntimeError("not of memory")

    monkeypatch.setattr(running, "steps", broken)
    with pytest.raises(RuntimeError, match="not of memory"):
        bench(Request(models=("dense-4",), methods=("ktied",), **FEW), "bayesrule bench")


def test_the_list_fits_a_page_and_its_commands_can_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    command = f"pip install --no-deps nowhere {' '.join(f'needed-by-nowhere-{number}' for number in range(9))}"
    monkeypatch.setitem(PEERS, "nowhere", Peer("nowhere", command, importing("nowhere"), PEERS["ivon-opt"].build))
    said = bayesrule("bench", "--list").said
    assert max(map(len, said.splitlines())) <= 100
    assert "nowhere is not installed, or not whole (No package metadata was found for nowhere):\n    pip" in said
    assert command in re.sub(r" \\\n +", " ", said)

"""`bayesrule bench`: what is refused before anything is measured, and what an interruption leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bayesrule.bench import PEERS, running
from bayesrule.bench.peers.peer import Peer, importing
from command_line import bayesrule

REFUSED = {
    "a device": (("--device", "tpu"), "--device is cpu or cuda"),
    "threads": (("--threads", 0), "--threads is 1 at least"),
    "a seed": (("--seed", -1), "--seed is 0 at least"),
    "seconds": (("--seconds", "nan"), "--seconds is 0 at least"),
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
    result = json.loads((tmp_path / "result.json").read_text())
    assert {row["dataset"] for row in result["rows"]} == {"mlp-small, batch 2"}

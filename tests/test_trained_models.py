"""Trained models shared between experiments: one training for one configuration, whoever asks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import bayesrule as br
from bayesrule.experiments import Context, Preset
from bayesrule.experiments.trained import RECORD, SECONDS, WEIGHTS, Trained, trained

CPU = torch.device("cpu")


def build() -> br.nn.BayesianModule:
    torch.manual_seed(0)
    return br.bayesianize(torch.nn.Linear(2, 3), br.Diagonal())


def training(calls: list[int], value: float = 1.5) -> Callable[[br.nn.BayesianModule], dict[str, Any]]:
    def train(bnn: br.nn.BayesianModule) -> dict[str, Any]:
        calls.append(1)
        with torch.no_grad():
            for parameter in bnn.parameters():
                parameter.fill_(value)
        return {"curve": [1.0, 0.5]}

    return train


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def context(told: list[str] | None = None) -> Context:
    progress = (lambda line: None) if told is None else told.append
    return Context(Preset((), ()), (), (), None, Path(), CPU, 0, progress=progress)


def ask(calls: list[int], configuration: dict[str, Any], known: Context | None = None) -> Trained:
    return trained(configuration, build, training(calls), known or context(), "a model")


def test_a_second_request_takes_the_first_ones_model() -> None:
    calls: list[int] = []
    first, second = ask(calls, {"lr": 0.1}), ask(calls, {"lr": 0.1})
    assert calls == [1]
    assert second.bnn is not first.bnn
    assert all(torch.equal(a, b) for a, b in zip(first.bnn.parameters(), second.bnn.parameters(), strict=True))
    assert all(bool((parameter == 1.5).all()) for parameter in second.bnn.parameters())
    assert first.record == second.record
    assert first.record.pop(SECONDS) > 0
    assert first.record == {"configuration": {"lr": 0.1}, "curve": [1.0, 0.5]}


def test_a_run_tells_of_a_model_once_and_counts_its_training_once() -> None:
    calls: list[int] = []
    for expected in (["a model"], ["a model; kept from before"]):
        told: list[str] = []
        known = context(told)
        first, second = ask(calls, {"lr": 0.1}, known), ask(calls, {"lr": 0.1}, known)
        assert told == expected
        assert list(known.effort.seconds.values()) == [first.record[SECONDS]] == [second.record[SECONDS]]
    assert calls == [1]


def test_another_configuration_trains_anew() -> None:
    calls: list[int] = []
    ask(calls, {"lr": 0.1})
    ask(calls, {"lr": 0.2})
    ask(calls, {"lr": 0.1, "seed": 1})
    assert len(calls) == 3


def test_the_order_of_a_configuration_does_not_matter() -> None:
    calls: list[int] = []
    ask(calls, {"lr": 0.1, "seed": 1})
    ask(calls, {"seed": 1, "lr": 0.1})
    assert calls == [1]


def test_a_model_without_its_record_is_trained_again(cache: Path) -> None:
    calls: list[int] = []
    ask(calls, {"lr": 0.1})
    (record,) = cache.rglob(RECORD)
    record.unlink()
    ask(calls, {"lr": 0.1})
    assert len(calls) == 2
    assert record.exists()


@pytest.mark.parametrize("name", [RECORD, WEIGHTS])
def test_a_damaged_file_is_trained_again(cache: Path, name: str) -> None:
    calls: list[int] = []
    ask(calls, {"lr": 0.1})
    (damaged,) = cache.rglob(name)
    damaged.write_bytes(b"{")
    again = ask(calls, {"lr": 0.1})
    assert len(calls) == 2
    assert again.record["curve"] == [1.0, 0.5]
    ask(calls, {"lr": 0.1})
    assert len(calls) == 2


def _slow(bnn: br.nn.BayesianModule, log: Path) -> dict[str, Any]:
    with log.open("a") as file:
        file.write("trained\n")
    return {}


def _ask_elsewhere(log: Path) -> None:
    trained({"lr": 0.1}, build, lambda bnn: _slow(bnn, log), context(), "a model")


def test_two_who_ask_at_once_train_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    # Threads ask as processes do: each opens the lock's file for itself.
    with ThreadPoolExecutor(2) as pool:
        for asked in [pool.submit(_ask_elsewhere, log) for _ in range(2)]:
            asked.result(timeout=60)
    assert log.read_text() == "trained\n"

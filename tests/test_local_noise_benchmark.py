"""The benchmark of local noise compares like with like, and counts bytes and turns as it says."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.bench.memory import peak_bytes

ROOT = Path(__file__).parents[1]
RESULT: dict[str, Any] = json.loads((ROOT / "results" / "local-noise" / "result.json").read_text())
SIZE = torch.float32.itemsize


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("local_noise")


def test_the_formed_layer_is_the_same_layer(bench: ModuleType) -> None:
    torch.manual_seed(0)
    tied, _ = bench.layers(24, torch.device("cpu"))[bench.OURS]
    tied = tied.double()
    formed, x = bench.Materialised(tied), torch.randn(3, 24, dtype=torch.float64)
    _, kl = formed(x)
    torch.testing.assert_close(kl, br.kl(tied), rtol=1e-10, atol=0)
    outputs = torch.stack([formed(x)[0] for _ in range(2000)]).detach()
    (posterior,) = tied.posteriors().values()
    variance = x.square() @ posterior.variance.detach()
    # Standard deviations of a normal sample of 2000, over 72 numbers: 0.09 is 5.7 standard errors, 1e-6 in all.
    assert float((outputs.std(0) / variance.sqrt() - 1).abs().max()) < 0.09
    torch.testing.assert_close(formed.mean, posterior.mean, rtol=0, atol=0)


def test_memory_is_what_is_held_and_what_is_made() -> None:
    layer, x = nn.Linear(8, 8, bias=False), torch.zeros(4, 8)

    def step() -> None:
        first = torch.empty(1000)
        del first
        second, third = torch.empty(700), torch.empty(800)
        del second, third

    assert peak_bytes((layer.weight, x), step, torch.device("cpu")) == SIZE * (64 + 32) + SIZE * 1500


def test_every_method_is_measured(bench: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "MIN_TURNS", 2)
    rows = bench.measure(32, 4, torch.device("cpu"), 0.0, 0)
    methods = list(bench.layers(8, torch.device("cpu")))
    assert list(dict.fromkeys(row["method"] for row in rows)) == methods
    found = {(row["method"], row["metric"]): row["value"] for row in rows}
    assert all(np.isfinite(value) and value > 0 for value in found.values())
    assert found[bench.OURS, "time ratio"] == found[bench.OURS, "memory ratio"] == 1.0
    assert {row["n"] for row in rows} == {2}


def test_the_kept_result_has_every_width() -> None:
    sizes = {row["dataset"] for row in RESULT["rows"]}
    assert {f"width {width}, batch 128" for width in (256, 512, 1024, 2048, 4096, 8192)} <= sizes
    memory = {
        (row["dataset"], row["method"]): row["value"] for row in RESULT["rows"] if row["metric"] == "memory ratio"
    }
    assert memory["width 8192, batch 128", "2-tied, std formed"] > 2
    assert memory["width 8192, batch 128", "mean-field, local noise"] > 3

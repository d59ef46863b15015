"""The ELBO audit: its page shows what was measured, and what was measured of this library is the exact KL."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
RESULT: dict[str, Any] = json.loads((ROOT / "results" / "elbo-audit" / "result.json").read_text())
ROWS = {row["library"]: row for row in RESULT["rows"]}


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("elbo_audit")


@pytest.fixture
def peers(audit: ModuleType) -> ModuleType:
    return importlib.import_module("elbo_peers")


def independent_kl(peers: ModuleType) -> float:
    """``Σ log(s/σ) + (σ² + μ²)/(2s²) − ½``, by NumPy."""
    means = np.concatenate([p.detach().numpy().ravel() for p in peers.network().parameters()])
    assert means.size == RESULT["network"]["weights"]
    std, prior_std = RESULT["network"]["posterior_std"], RESULT["network"]["prior_std"]
    return float(np.sum(math.log(prior_std / std) + (std**2 + means**2) / (2 * prior_std**2) - 0.5))


def test_the_page_shows_the_measured_table(audit: ModuleType) -> None:
    page = (ROOT / "docs" / "elbo-audit.md").read_text()
    table = "\n".join(line for line in page.splitlines() if line.startswith("|"))
    assert table == audit.markdown(RESULT)
    assert f"**{RESULT['exact']:,.3f} nats**" in page


def test_the_exact_value_is_exact(peers: ModuleType) -> None:
    assert math.isclose(RESULT["exact"], independent_kl(peers), rel_tol=1e-12)


def test_our_kl_is_the_exact_one(audit: ModuleType, peers: ModuleType) -> None:
    exact = independent_kl(peers)
    assert math.isclose(ROWS["bayesrule"]["value"], exact, rel_tol=1e-12)
    again = audit.measure("bayesrule", peers.network(), exact)
    assert math.isclose(again.value, exact, rel_tol=1e-12)
    assert math.isclose(again.ratio, 1, rel_tol=1e-12)


@pytest.mark.parametrize("library", ROWS)
def test_every_remedy_gives_the_sum(library: str) -> None:
    row = ROWS[library]
    assert math.isclose(row["ratio"], row["value"] / RESULT["exact"], rel_tol=1e-12)
    if row["draws"] == 1:
        assert math.isclose(row["summed_value"], RESULT["exact"], rel_tol=1e-9)
    else:  # 4.9 standard errors: a false alarm in 1e6
        assert abs(row["summed_value"] - RESULT["exact"]) < 4.9 * row["summed_sem"]


def test_the_libraries_named_in_the_claim_were_measured() -> None:
    named = {"bayesrule", "bayesian-torch", "blitz-bayesian-pytorch", "torchbnn", "posteriors", "torch-uncertainty"}
    assert named <= set(ROWS)
    assert {name for name, row in ROWS.items() if row["ratio"] < 0.99} == {
        "bayesian-torch",
        "torchbnn",
        "torch-uncertainty",
    }
    assert all(RESULT["versions"][name] == row["version"] for name, row in ROWS.items())
    assert RESULT["command"] == "python benchmarks/elbo_audit.py"


def test_a_library_that_is_not_installed_is_skipped_by_name(
    audit: ModuleType, peers: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(peers.LIBRARIES, "no-such-library", peers.bayesrule)
    assert audit.measure("no-such-library", peers.network(), 1.0) is None
    assert "skipped: no-such-library" in capsys.readouterr().err


def test_the_script_runs(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/elbo_audit.py", "--out", str(tmp_path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["rows"][0]["library"] == "bayesrule"
    assert "| bayesrule |" in done.stdout
    assert result["exact"] == pytest.approx(RESULT["exact"], rel=1e-12)

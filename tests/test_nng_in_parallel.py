"""Searches and tables by several processes: what `bayesrule reproduce` finds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bayesrule.experiments import EXPERIMENTS
from bayesrule.experiments.running import Request, reproduce

ROOT = Path(__file__).parents[1]


def rows(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "result.json").read_text())["rows"]


@pytest.mark.slow
def test_several_processes_find_what_one_finds(tmp_path: Path) -> None:
    command = [sys.executable, "benchmarks/nng_in_parallel.py", "--preset", "smoke", "--workers", "2"]
    subprocess.run([*command, "--out", str(tmp_path / "parallel")], cwd=ROOT, check=True, capture_output=True)
    for name in ("nng/search", "nng/deep-search", "nng/table1", "nng/table4"):
        reproduce(EXPERIMENTS[name], Request("smoke", tmp_path / "alone" / name))
        assert rows(tmp_path / "parallel" / name) == rows(tmp_path / "alone" / name)

"""Prediction reads and writes a piece at a time: memory does not grow with the file, and the output appears whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from bayesrule.train.tabular import TabularModel
from command_line import bayesrule, classes, write

BOUND = 100 * 2**20
"""Bytes by which the peak of memory may grow from a small file to one twenty times as long, which alone is as large."""
PEAK = """
import resource, sys
from bayesrule.cli import main
try:
    main()
finally:
    print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streaming")
    data = write(classes(), folder / "toy.csv")
    assert bayesrule("fit", data, "--steps", 1, "--hidden", 2, "--quiet", "--out", folder / "model").code == 0
    return folder / "model"


def test_pieces_are_written_as_they_come(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, out = write(classes(50), tmp_path / "new.csv"), tmp_path / "out.csv"
    true, sizes, names = TabularModel.predict_frame, [], set()

    def watched(self: TabularModel, frame: pd.DataFrame) -> Any:
        sizes.append(len(frame))
        names.update(path.name for path in tmp_path.iterdir() if path != data)
        return true(self, frame)

    monkeypatch.setattr(TabularModel, "predict_frame", watched)
    assert bayesrule("predict", model, data, "-o", out, "--rows", 20).code == 0
    assert sizes == [20, 20, 10]
    assert len(names) == 1
    assert out.name not in names  # until it is whole the output has another, hidden name
    assert next(iter(names)).startswith(f".{out.name}.")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.csv", "out.csv"]
    assert len(pd.read_csv(out)) == 50


def peak(model: Path, rows: int, folder: Path) -> int:
    """Bytes at the most while so many rows are predicted in a process of its own."""
    data, out = folder / f"{rows}.csv", folder / f"{rows}-out.csv"
    header, *lines = classes(1000).drop(columns="kind").to_csv(index=False).splitlines(keepends=True)
    with data.open("w") as file:
        file.write(header)
        for _ in range(rows // len(lines)):
            file.writelines(lines)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, "predict", str(model), str(data), "-o", str(out)],
        capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with out.open() as file:
        assert sum(1 for _ in file) == rows + 1
    data.unlink()
    out.unlink()
    return int(done.stdout.rpartition("peak ")[2])


@pytest.mark.slow
def test_a_million_rows_take_the_memory_of_a_few(model: Path, tmp_path: Path) -> None:
    few, many = (peak(model, rows, tmp_path) for rows in (50_000, 1_000_000))
    assert many - few < BOUND, (few, many)

"""Fuzzed CSV files through the command: done or refused, without a traceback, and never half a result.

A program of its own, since the run-time checks of shapes, which tests import the package with, would slow it fourfold:
``python tests/fuzzed_commands.py FIRST_SEED COUNT`` ends with the outcomes, or with the first seed that went wrong.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pandas as pd
import torch

from command_line import FAST, Ran, bayesrule, classes, files, write
from test_fuzzed_tables import cut, flip, fuzzed, insert, repeat_a_line

SETTINGS = ("--steps", "1", "--hidden", "3", "--quiet")
POSTERIORS = ("ktied:2", "ktied:1", "diagonal", "matrix-normal")
MODEL = {"config.json", "metrics.json", "model.safetensors", "report.html"}


def checked(ran: Ran, seed: int) -> int:
    """Done in silence, or refused by a message of ours for what was wrong with the data."""
    assert ran.code in (0, 2), (seed, ran)
    assert "Traceback" not in ran.said + ran.complaint, (seed, ran)
    if ran.code == 2:
        assert ran.complaint.startswith("Error: "), (seed, ran)
        assert "\nWhat to do: " in ran.complaint, (seed, ran)
    return ran.code


def fit(path: Path, seed: int) -> int:
    """Fit to any column of the file; a refused one leaves nothing behind."""
    rng = random.Random(seed)
    before = path.read_bytes()
    target = [] if rng.random() < 0.7 else ["--target", rng.choice(["column0", "column1", "y", "a", "nowhere"])]
    out = path.parent / "model"
    code = checked(
        bayesrule("fit", path, *SETTINGS, *target, "--posterior", rng.choice(POSTERIORS), "--out", out), seed
    )
    if code == 0:
        written = {name for name in files(out) if not name.startswith("tensorboard")}
        assert written == MODEL, seed
    assert {entry.name for entry in path.parent.iterdir()} == {path.name, *(["model"] if code == 0 else [])}, seed
    assert path.read_bytes() == before
    return code


def predict(model: Path, path: Path, seed: int) -> int:
    """Predict a file; a refused one leaves nothing behind, and a done one has a line for each row."""
    before = files(model), path.read_bytes()
    out = path.parent / "out.csv"
    ran = bayesrule("predict", model, path, "-o", out, "--rows", random.Random(seed).choice([7, 2000]))
    code = checked(ran, seed)
    assert {entry.name for entry in path.parent.iterdir()} - {"model", path.name} == (
        {out.name} if code == 0 else set()
    )
    assert (files(model), path.read_bytes()) == before, seed
    if code == 0:
        rows = len(pd.read_csv(out, keep_default_na=False))
        assert ran.said.startswith(f"{rows:,} row"), (seed, ran)
        out.unlink()
    return code


def damaged(content: bytes, seed: int) -> bytes:
    rng = random.Random(seed)
    return rng.choice([insert, cut, flip, repeat_a_line])(content, rng)


def outcomes(seeds: range, model: Path, folder: Path) -> Counter[tuple[str, int]]:
    """Each seed makes a file to fit and, with one more fault, to predict; and a damaged file of the trained model's."""
    seen: Counter[tuple[str, int]] = Counter()
    path = folder / "data.csv"
    right = classes(30).to_csv(index=False).encode()
    for seed in seeds:
        path.write_bytes(fuzzed(seed))
        code = fit(path, seed)
        seen["fit", code] += 1
        if code == 0:
            path.write_bytes(damaged(path.read_bytes(), seed))
            seen["predict with it", predict(folder / "model", path, seed)] += 1
            shutil.rmtree(folder / "model")
        path.write_bytes(damaged(right, seed))
        seen["predict", predict(model, path, seed)] += 1
    return seen


def judge(seen: Counter[tuple[str, int]]) -> None:
    """The fuzzer is neither too tame nor too wild."""
    files_of = {what: seen[what, 0] + seen[what, 2] for what, _ in seen}
    for (what, _), count in seen.items():
        assert count > files_of[what] // 20, seen
    assert len(seen) == 6, seen


def main(first: int, count: int) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        trained, work = Path(name) / "trained", Path(name) / "work"
        for folder in (trained, work):
            folder.mkdir()
        data = write(classes(), trained / "toy.csv")
        assert bayesrule("fit", data, *FAST, "--quiet", "--out", trained / "model").code == 0
        seen = outcomes(range(first, first + count), trained / "model", work)
    judge(seen)
    print(count, "files:", ", ".join(f"{what} {code}: {times}" for (what, code), times in sorted(seen.items())))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

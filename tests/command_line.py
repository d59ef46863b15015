"""The command run inside this process, and small tables for it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from bayesrule.cli.app import app

FAST = ("--steps", "30", "--hidden", "8")


@dataclass(frozen=True)
class Ran:
    code: int
    said: str
    complaint: str


def bayesrule(*words: object) -> Ran:
    result = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
    return Ran(result.exit_code, result.stdout, result.stderr)


def refused(ran: Ran, code: int, *parts: str) -> None:
    """The message says what was wrong, what was got, and what to do, without a traceback."""
    assert ran.code == code, ran
    assert "Traceback" not in ran.complaint + ran.said
    assert ran.complaint.startswith("Error: ")
    assert "\nWhat to do: " in ran.complaint
    for part in parts:
        assert re.search(part, ran.complaint), (part, ran.complaint)


def classes(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({
        "size": rng.normal(size=rows).round(3),
        "colour": rng.choice(["red", "blue", "green"], rows),
        "age": rng.normal(40, 9, rows).round(1),
    })  # fmt: skip
    frame.loc[::9, "age"] = np.nan
    return frame.assign(kind=np.where(frame["size"] + (frame["colour"] == "red") > 0.4, "yes", "no"))


def numbers(rows: int = 60) -> pd.DataFrame:
    frame = classes(rows).drop(columns="kind")
    return frame.assign(price=(10 + 3 * frame["size"] + 2 * (frame["colour"] == "red")).round(2))


def write(frame: pd.DataFrame, path: Path) -> Path:
    frame.to_csv(path, index=False)
    return path


def files(folder: Path) -> dict[str, bytes]:
    """Everything below a folder, hidden files included."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

"""Fuzzed files and damaged model folders through the command; a small part of each in every run of the tests."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def run(program: str, first: int, count: int) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error"}
    command = [sys.executable, str(TESTS / program), str(first), str(count)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def test_few_fuzzed_files() -> None:
    assert run("fuzzed_commands.py", 0, 40).startswith("40 files: ")


@pytest.mark.slow
def test_many_fuzzed_files() -> None:
    assert run("fuzzed_commands.py", 40, 2000).startswith("2000 files: ")


def test_few_damaged_model_folders() -> None:
    assert run("damaged_models.py", 0, 30).startswith("30 folders: ")


@pytest.mark.slow
def test_many_damaged_model_folders() -> None:
    said = run("damaged_models.py", 30, 500)
    assert said.startswith("500 folders: ")
    refused = sum(map(int, re.findall(r" 2: (\d+)", said)))
    assert 250 < refused < 480, said  # the harm done is neither too little nor always fatal

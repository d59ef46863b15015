"""The commit that a result names, and whether the source differs from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bayesrule.experiments import provenance

WHO = ("-c", "user.name=a", "-c", "user.email=a@a")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("src/package/code.py", "results/cpu/result.json", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("first")
    for words in (["init", "-q"], ["add", "."], [*WHO, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path / "src" / "package")
    return tmp_path


def test_a_commit_is_named_whole(checkout: Path) -> None:
    named = subprocess.run(
        ["git", "log", "-1", "--format=%H"], cwd=checkout, capture_output=True, text=True, check=True
    )
    assert provenance.commit() == named.stdout.strip()


@pytest.mark.parametrize(
    ("name", "dirty"),
    [("src/package/code.py", True), ("README.md", True), ("results/cpu/result.json", False), ("new.txt", False)],
)
def test_changes_are_said_but_those_of_results(checkout: Path, name: str, dirty: bool) -> None:
    (checkout / name).write_text("second")
    assert provenance.commit().endswith("-dirty") == dirty


def test_copies_without_a_history_say_what_they_are_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.delenv("BAYESRULE_COMMIT", raising=False)
    assert provenance.commit() == "unknown"
    monkeypatch.setenv("BAYESRULE_COMMIT", "abc")
    assert provenance.commit() == "abc"

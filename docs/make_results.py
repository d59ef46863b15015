"""Writes docs/results.md from every results/**/result.json, beside the published numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from bayesrule.experiments import EXPERIMENTS
from bayesrule.experiments.rendering import markdown_result

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "docs" / "results.md"
TITLES = {
    "elbo-audit": "The ELBO audit",
    "mnist-example": "MNIST, mean-field and 2-tied",
    "local-noise": "Local noise and KL of one dense layer, in time and memory",
}
"""Of results that are not experiments of the package."""
HEAD = """# Results

Every number the project has measured, made by `python docs/make_results.py` from the files `results/**/result.json`,
which also hold the versions of all packages. A number after ± is the standard error over runs. "Published" is the
number a result is compared with; claims are reported as they stand, held or not. [Experiments](experiments.md) says how
to measure them again."""


def title(name: str) -> str:
    """Of a result."""
    return EXPERIMENTS[name].title if name in EXPERIMENTS else TITLES.get(name, name)


def section(path: Path) -> str:
    """One result."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if result.get("synthetic"):
        raise ValueError(f"{path} was measured on synthetic data, which is never published")
    return markdown_result(result, title(result["experiment"]), level=2)


def page(folder: Path = ROOT / "results") -> str:
    """The whole page."""
    return "\n\n".join([HEAD, *map(section, sorted(folder.rglob("result.json")))]) + "\n"


if __name__ == "__main__":
    TARGET.write_text(page(), encoding="utf-8")

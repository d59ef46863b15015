"""What is added to the loss? The KL of one network, by this library and by others, beside the exact value.

    python benchmarks/elbo_audit.py [--out results/elbo-audit]

One multilayer perceptron, one mean-field posterior, one prior: the same numbers are put into every library that is
installed (benchmarks/README.md), and its KL call is asked. Libraries that are not installed are skipped, by name.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import platform
import subprocess
import sys
import warnings
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from elbo_peers import LIBRARIES, PRIOR_STD, SEED, STD, WIDTHS, exact_kl, network
from torch import nn

import bayesrule as br

ROOT = Path(__file__).parents[1]
COLUMNS = ("library", "version", "call", "returns", "ratio to the exact sum", "convention", "made a sum by", "then")


@dataclass(frozen=True)
class Row:
    """One line of the table. ``sem`` is the standard error over draws, 0 in closed form."""

    library: str
    version: str
    call: str
    convention: str
    value: float
    sem: float
    draws: int
    ratio: float
    remedy: str
    summed_value: float
    summed_sem: float
    summed_ratio: float


def measure(library: str, net: nn.Sequential, exact: float) -> Row | None:
    """One row, or None where the library cannot be imported."""
    try:
        version = importlib.metadata.version(library)
        answer = LIBRARIES[library](net)
    except ImportError as error:  # PackageNotFoundError is one
        print(f"skipped: {library} ({error})", file=sys.stderr)
        return None
    (value, sem), (summed, summed_sem) = _mean_and_sem(answer.returned), _mean_and_sem(answer.summed)
    return Row(
        library, version, answer.call, answer.convention, value, sem, len(answer.returned), value / exact,
        answer.remedy, summed, summed_sem, summed / exact,
    )  # fmt: skip


def _mean_and_sem(values: list[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], 0.0
    mean, sem = br.metrics.mean_and_sem(torch.tensor(values, dtype=torch.float64))
    return mean.item(), sem.item()


def audit() -> dict[str, Any]:
    """Everything `result.json` holds."""
    net = network()
    exact = exact_kl(net)
    # Some libraries make tensors of the default type inside: float64 everywhere leaves only their conventions to see.
    torch.set_default_dtype(torch.float64)
    rows = [row for library in LIBRARIES if (row := measure(library, net, exact)) is not None]
    describe = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    commit = subprocess.run(describe, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "experiment": "elbo-audit",
        "command": "python benchmarks/elbo_audit.py",
        "commit": commit,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__}
        | {row.library: row.version for row in rows},
        "seed": SEED,
        "network": {
            "widths": WIDTHS, "weights": sum(p.numel() for p in net.parameters()),
            "posterior_std": STD, "prior_std": PRIOR_STD, "dtype": "float64",
        },
        "exact": exact,
        "rows": [asdict(row) for row in rows],
    }  # fmt: skip


def markdown(result: dict[str, Any]) -> str:
    """The table of the documentation."""
    lines = [COLUMNS, ("---",) * len(COLUMNS)]
    for row in (Row(**fields) for fields in result["rows"]):
        returns = f"{row.value:,.7g}" if row.draws == 1 else f"{row.value:,.0f} ± {row.sem:,.0f}"
        lines.append(
            (
                row.library, row.version, f"`{row.call}`", returns, f"{row.ratio:.5g}",
                row.convention, row.remedy, f"{row.summed_ratio:.5g}",
            )
        )  # fmt: skip
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Set the KLs of several libraries beside the exact one.")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "elbo-audit", help="folder for result.json")
    out = parser.parse_args().out
    warnings.simplefilter("ignore")  # the other libraries', about deprecations in theirs
    torch.set_num_threads(1)
    result = audit()
    out.mkdir(parents=True, exist_ok=True)
    (out / "result.json").write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")
    print(f"exact: {result['exact']:,.3f}\n\n{markdown(result)}")


if __name__ == "__main__":
    main()

"""Converted networks with their losses compile to one graph, which gives the plain step's gradients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent / "contracts"
SCRIPT = SCRIPTS / "compiled_losses.py"


@pytest.mark.parametrize(
    ("family", "names"),
    [
        ("ktied", ("mlp", "lenet", "transformer")),
        pytest.param("diagonal", ("lenet", "transformer"), marks=pytest.mark.slow),
        ("matrix-normal", ("mlp",)),
    ],
)
def test_a_network_and_its_loss_are_one_graph(family: str, names: tuple[str, ...]) -> None:
    command = [sys.executable, str(SCRIPT), family, *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    graphs = [f"{name}, {family}: 1 graph, 0 breaks" for name in names]
    assert done.stdout.splitlines() == [*graphs, "2 graphs for any batch"]


def test_convolutions_have_their_gradients_from_a_real_compiler() -> None:
    """Which by its default options leaves out all but the KL's, without a word."""
    command = [sys.executable, str(SCRIPTS / "compiled_convolutions.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert float(done.stdout) < 1e-12

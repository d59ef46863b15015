"""Shared by all tests: shape checks on, one thread, fixed seeds, deterministic property tests."""

from __future__ import annotations

import os

import jaxtyping
import pytest

# Installed here, at import, because the hook only reaches modules imported after it: a conftest named by `testpaths` is
# loaded before anything is collected, in the main process and in every xdist worker alike.
if os.environ.get("BAYESRULE_SHAPE_CHECKS", "1") != "0":
    jaxtyping.install_import_hook("bayesrule", "shape_checks.checked")

import hypothesis
import torch

torch.set_num_threads(1)

# A slow machine is no failure: neither deadlines nor the check that drawing examples is fast.
hypothesis.settings.register_profile(
    "bayesrule", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("bayesrule")


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Each test starts from the same global seed, so that its draws do not depend on the order of the tests."""
    torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests for a GPU where there is none."""
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs a CUDA device")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(skip)

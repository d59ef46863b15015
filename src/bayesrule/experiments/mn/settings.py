"""How long every experiment runs, in one place: the paper gives no numbers of epochs but the auto-encoders'."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bayesrule.experiments.experiment import Preset, PresetName

TRIAL = {"epochs": 1, "seeds": 1, "draws": 2, "lrs": [1e-3], "annealings": ["linear"], "batch_size": 32}
"""Of smoke presets: everything runs, nothing is learned."""
GRID = {"lrs": [3e-3, 1e-2], "annealings": ["linear", "exponential"]}
"""Tried with the first seed for every method alike; the best −ELBO on validation data is trained with the others."""
ONE_SETTING = {"lrs": [2e-3], "annealings": ["linear"]}

FULLY_CONNECTED = {"epochs": 120, "seeds": 3, "draws": 100, **GRID, "batch_size": 256}
FASHION = {"epochs": 50, "seeds": 3, "draws": 100, **GRID, "annealings": ["linear"], "batch_size": 256}
CONVOLUTIONAL = {
    "epochs": 40, "seeds": 3, "draws": 100, "lrs": [1e-3, 3e-3], "annealings": ["linear"], "batch_size": 512,
}  # fmt: skip
ONE_VARIANCE = {"epochs": 15, "seeds": 3, "draws": 50, **ONE_SETTING, "batch_size": 512}
GROUP_SPARSE = {
    "epochs": 25, "seeds": 3, "draws": 50, **ONE_SETTING, "batch_size": 512, "epochs_of": {"mn-kronecker": 8},
}  # fmt: skip
"""The exact determinant takes eigenvalues in every step and cannot be part of a CUDA graph: fewer epochs."""
FOUR_TIMES = {
    "epochs": 50, "seeds": 2, "draws": 50, "lrs": [1e-3, 3e-3], "annealings": ["exponential"], "batch_size": 512,
    "choosing_epochs": 10, "train_on_all": True,
}  # fmt: skip
"""The step size is chosen in short runs without the validation images, which the long ones train on, as the paper's."""
HEADLINE = {
    "epochs": 250, "seeds": 1, "draws": 50, "lrs": [2e-3], "annealings": ["exponential"], "batch_size": 256,
    "validation": 5_000, "noise": "auto",
}  # fmt: skip
"""Five times as long as `FOUR_TIMES`, in smaller batches; with the weights' own draws, a third of the cost."""
EXPORTED = {
    "epochs": 100, "seeds": 3, "draws": 100, "lrs": [3e-3], "annealings": ["linear"], "batch_size": 256, "repeats": 100,
}  # fmt: skip
"""``repeats``: forward passes of each network that are timed."""
AUTO_ENCODER = {
    "epochs": 200, "anneal_epochs": 70, "patience": 50, "seeds": 3, "samples": 5000, "elbo_draws": 20, "images": 0,
}  # fmt: skip

QUICK_FULLY_CONNECTED = {
    "epochs": 15, "seeds": 1, "draws": 10, "lrs": [3e-3], "annealings": ["linear"], "batch_size": 256, "train": 20_000,
}  # fmt: skip
QUICK_EXPORTED = {**EXPORTED, "epochs": 12, "seeds": 1, "draws": 10}
QUICK_CONVOLUTIONAL = {**QUICK_FULLY_CONNECTED, "epochs": 6, "train": 5_000, "batch_size": 64}
QUICK_VGG = {**QUICK_CONVOLUTIONAL, "epochs": 3, "train": 2_000, "draws": 2}
TRIAL_AUTO_ENCODER = {
    "epochs": 1, "anneal_epochs": 1, "patience": 1, "seeds": 1, "samples": 4, "elbo_draws": 2, "images": 20,
}  # fmt: skip
QUICK_AUTO_ENCODER = {
    "epochs": 3, "anneal_epochs": 1, "patience": 3, "seeds": 1, "samples": 100, "elbo_draws": 5, "images": 500,
}  # fmt: skip


def presets(
    dataset: str,
    methods: tuple[str, ...],
    *,
    quick: Mapping[str, Any],
    paper: Mapping[str, Any],
    smoke: Mapping[str, Any] = TRIAL,
) -> dict[PresetName, Preset]:
    """The three presets of an experiment on one data set."""
    return {
        "smoke": Preset((dataset,), methods, {**smoke, "synthetic": 64}, synthetic=True),
        "quick": Preset((dataset,), methods, quick),
        "paper": Preset((dataset,), methods, paper),
    }

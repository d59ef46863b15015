"""How the networks on images are trained, and what every method is tuned over: as many candidates for each."""

from __future__ import annotations

from typing import Any

from bayesrule.experiments.experiment import Preset, PresetName

Settings = dict[str, Any]
MEMBERS = 5

POSTERIOR_OPTIONS: Settings = {
    "ogn": {"prior_std": 0.015, "extra_damping": 0.02},
    "vogn": {"prior_std": 0.015, "extra_damping": 0.02},
    "ivon": {"prior_std": 0.1},
    "ktied-von": {"prior_std": 0.07},
}
"""The same for all candidates, found in trials on validation images.

Where squared gradients say nothing the noise of VOGN is the prior's: a narrow one.
"""
GRIDS: Settings = {
    "adam": {"lr": [1e-3, 3e-3, 3e-4, 1e-2, 1e-4, 3e-5]},
    "adamw": {"lr": [1e-3, 3e-3, 3e-4], "weight_decay": [0.1, 1.0]},
    "adafactor": {"lr": [1e-2, 3e-2, 3e-3], "weight_decay": [0.1, 1.0]},
    "mc-dropout": {"lr": [1e-3, 3e-3, 3e-4], "dropout": [0.2, 0.5]},
    "ogn": {"lr": [0.05, 0.1], "kl_weight": [0.005, 0.01, 0.003]},
    "vogn": {"lr": [0.05, 0.1], "kl_weight": [0.005, 0.01, 0.003]},
    "ivon": {"lr": [0.1, 0.3], "kl_weight": [0.2, 0.5, 0.05]},
    "ktied-von": {"lr": [0.03, 0.05], "kl_weight": [0.05, 0.1, 0.02]},
}
"""The weight of the KL is below 1: at 1, mean-field posteriors of wide networks underfit."""
CIFAR_OPTIONS: Settings = {
    method: {**options, "plain_lr": 3e-3} for method, options in POSTERIOR_OPTIONS.items()
}  # fmt: skip
"""Normalisations take larger steps."""
CIFAR_GRIDS: Settings = {
    "adam": {"lr": [1e-3, 3e-3, 3e-4, 1e-2]},
    "adamw": {"lr": [1e-3, 3e-3], "weight_decay": [0.1, 1.0]},
    "adafactor": {"lr": [1e-2, 3e-2], "weight_decay": [0.1, 1.0]},
    "mc-dropout": {"lr": [1e-3, 3e-3], "dropout": [0.05, 0.2]},
    "ogn": {"lr": [0.03, 0.1], "kl_weight": [0.02, 0.005]},
    "vogn": {"lr": [0.03, 0.1], "kl_weight": [0.02, 0.005]},
    "ivon": {"lr": [0.1, 0.3], "kl_weight": [0.2, 0.05]},
    "ktied-von": {"lr": [0.05, 0.1], "kl_weight": [0.2, 0.05]},
}
BINARY_OPTIONS: Settings = {"bayesbinn": {"plain_lr": 1e-2}, "ste": {"plain_lr": 1e-2}}
"""``plain_lr``, of the last normalisation, whose scale is all that can make a prediction certain."""
BINARY_GRIDS: Settings = {
    "bayesbinn": {"lr": [3e-3, 1e-2, 1e-3], "momentum": [0.9, 0.99]},
    "ste": {"lr": [3e-3, 1e-2, 1e-3], "clip": [0.3, 1.0]},
    "full-precision": {"lr": [1e-3, 3e-3, 3e-4], "weight_decay": [0.1, 1.0]},
}


def _first_of(grids: Settings, others: int = 1) -> Settings:
    """One learning rate a method, and the first few values of its other number, if it has one."""
    return {
        method: {name: values[: 1 if name == "lr" and len(grid) > 1 else others] for name, values in grid.items()}
        for method, grid in grids.items()
    }


MNIST: Settings = {
    "network": "mlp", "epochs": 25, "batch_size": 250, "seeds": 3, "draws": 50, "members": MEMBERS, "rounds": 30,
    "laplace": "kfac", "prior_stds": [0.1, 0.05, 0.03, 0.02, 0.01, 0.005], "options": POSTERIOR_OPTIONS, "grids": GRIDS,
}  # fmt: skip
CIFAR: Settings = {
    **MNIST, "network": "resnet", "epochs": 15, "batch_size": 500, "seeds": 2, "flips": True, "laplace": "last-layer",
    "prior_stds": [0.3, 0.1, 0.03, 0.01], "options": CIFAR_OPTIONS, "grids": CIFAR_GRIDS,
}  # fmt: skip
QUICK: Settings = {
    **MNIST, "epochs": 10, "seeds": 1, "draws": 10, "members": 3, "rounds": 3, "train": 20_000,
    "prior_stds": [0.02],
    "grids": _first_of(GRIDS),
}  # fmt: skip
TRIAL: Settings = {
    **MNIST, "network": "small-mlp", "epochs": 1, "batch_size": 16, "seeds": 1, "draws": 2, "members": 2, "rounds": 1,
    "synthetic": 64, "prior_stds": [0.1, 0.01], "grids": _first_of(GRIDS, 2),
}  # fmt: skip
"""Everything runs, nothing is learned."""

UNCERTAINTY_METHODS = (
    "adam", "adamw", "adafactor", "ogn", "vogn", "ivon", "ktied-von", "laplace", "mc-dropout", "ensemble",
)  # fmt: skip
UNCERTAINTY: dict[PresetName, Preset] = {
    "smoke": Preset(
        ("mnist", "cifar-10"), UNCERTAINTY_METHODS,
        {"mnist": TRIAL, "cifar-10": {**TRIAL, "network": "small-resnet", "flips": True, "laplace": "last-layer"}},
        synthetic=True,
    ),
    "quick": Preset(("mnist",), UNCERTAINTY_METHODS, {"mnist": QUICK, "cifar-10": {**QUICK, "network": "resnet"}}),
    "paper": Preset(("mnist", "cifar-10"), UNCERTAINTY_METHODS, {"mnist": MNIST, "cifar-10": CIFAR}),
}  # fmt: skip

BINARY_MNIST: Settings = {
    "network": "binary-mlp", "epochs": 30, "batch_size": 250, "seeds": 3, "draws": 10, "options": BINARY_OPTIONS,
    "grids": BINARY_GRIDS,
}  # fmt: skip
BINARY_CIFAR: Settings = {
    **BINARY_MNIST, "network": "binary-convolutional", "epochs": 15, "batch_size": 500, "seeds": 2, "flips": True,
    "grids": _first_of(BINARY_GRIDS, 2),
}  # fmt: skip
BINARY_QUICK: Settings = {
    **BINARY_MNIST, "epochs": 10, "seeds": 1, "train": 20_000, "grids": _first_of(BINARY_GRIDS),
}  # fmt: skip
BINARY_TRIAL: Settings = {
    **BINARY_MNIST, "network": "small-binary-mlp", "epochs": 1, "batch_size": 16, "seeds": 1, "draws": 2,
    "synthetic": 64, "grids": _first_of(BINARY_GRIDS, 2),
}  # fmt: skip
BINARY_METHODS = ("bayesbinn", "ste", "full-precision")
BINARY: dict[PresetName, Preset] = {
    "smoke": Preset(
        ("mnist", "cifar-10"), BINARY_METHODS,
        {"mnist": BINARY_TRIAL, "cifar-10": {**BINARY_TRIAL, "network": "small-binary-convolutional", "flips": True}},
        synthetic=True,
    ),
    "quick": Preset(
        ("mnist",), BINARY_METHODS,
        {"mnist": BINARY_QUICK, "cifar-10": {**BINARY_QUICK, "network": "binary-convolutional"}},
    ),
    "paper": Preset(("mnist", "cifar-10"), BINARY_METHODS, {"mnist": BINARY_MNIST, "cifar-10": BINARY_CIFAR}),
}  # fmt: skip

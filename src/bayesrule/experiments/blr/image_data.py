"""The images that are trained on, and images from elsewhere in the same scale."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from bayesrule import data
from bayesrule.data import DataNotFound, LabelledSet

VALIDATION = 10_000
ELSEWHERE = {"mnist": "fashion-mnist", "cifar-10": "cifar-100"}
"""Test images of these are to be told from those of the set trained on."""
SHUFFLED = "shuffled pixels"
"""In place of a set that is not at hand: the test images, with their pixels in one random order."""


@dataclass(frozen=True, eq=False)
class Images:
    """A labelled set with its validation part, and images from elsewhere, all scaled alike."""

    labelled: LabelledSet
    elsewhere: Tensor
    elsewhere_name: str


@lru_cache(maxsize=2)
def images(name: str, folder: Path | None, device: torch.device, *, train: int = 0, synthetic: int = 0) -> Images:
    """A set by its name, ready to train on.

    Args:
        name: ``"mnist"``, in [0, 1], or ``"cifar-10"``, standardised by channel.
        folder: To look in first.
        device: Where it is put.
        train: Only the first so many training examples; 0 for all.
        synthetic: If not 0: a made-up stand-in of the same shape, with so many training examples.
    """
    whole = _raw(name, folder, synthetic).validation_split(min(VALIDATION, synthetic // 4) if synthetic else VALIDATION)
    scaling: Callable[[Tensor], Tensor] = data.unit_interval
    if name == "cifar-10":
        scaling = data.ChannelStandardiser.fit(whole.train_x)
    try:
        elsewhere, elsewhere_name = _raw(ELSEWHERE[name], folder, synthetic).test_x, ELSEWHERE[name]
    except DataNotFound:
        elsewhere, elsewhere_name = shuffled(whole.test_x), SHUFFLED
    whole = whole.first(train=train) if train else whole
    return Images(whole.map_x(scaling).to(device), scaling(elsewhere).to(device), elsewhere_name)


def shuffled(x: Tensor) -> Tensor:
    """Images with their pixels in one random order, the same for all."""
    order = torch.randperm(x.shape[-1] * x.shape[-2], generator=torch.Generator().manual_seed(0))
    return x.flatten(-2)[..., order].reshape(x.shape)


def mirrored(x: Tensor) -> Tensor:
    """Each image mirrored with probability one half."""
    flip = torch.rand(len(x), 1, 1, 1, device=x.device) < 0.5
    return torch.where(flip, x.flip(-1), x)


def _raw(name: str, folder: Path | None, synthetic: int) -> LabelledSet:
    if synthetic:
        return data.synthetic_like(name, train=synthetic, test=synthetic // 2, seed=0)
    return data.labelled_set(name, folder)

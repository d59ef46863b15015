"""The labelled sets that experiments train on, scaled and split as the papers do, on a device."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor

from bayesrule import data
from bayesrule.data import LabelledSet

Scaling = Callable[[Tensor], Tensor]
SCALED: dict[str, Scaling] = {
    "mnist": data.symmetric_interval,
    "fashion-mnist": data.symmetric_interval,
    "cifar-100": data.unit_interval,
}
"""Of those whose numbers do not depend on the set; CIFAR-10 is standardised by channel, texts stay as they are."""


@lru_cache(maxsize=2)
def ready_set(
    name: str, folder: Path | None, device: torch.device, *, validation: int, synthetic: int = 0
) -> LabelledSet:
    """A set ready to train on.

    Args:
        name: Of the set.
        folder: To look in first.
        device: Where it is put.
        validation: How many of the last training examples are set aside.
        synthetic: If not 0: a made-up stand-in of the same shape, with so many training examples.
    """
    if synthetic:
        whole = data.synthetic_like(name, train=synthetic, test=synthetic // 2, seed=0)
        validation = min(validation, synthetic // 4)
    else:
        whole = data.labelled_set(name, folder)
    whole = whole.validation_split(validation) if validation else whole
    if name == "cifar-10":
        whole = whole.map_x(data.ChannelStandardiser.fit(whole.train_x))
    elif name in SCALED:
        whole = whole.map_x(SCALED[name])
    return whole.to(device)

"""What happened in training, epoch by epoch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Epoch:
    """Means over one epoch.

    Attributes:
        epoch: Counted from 1.
        nll: Mean negative log-likelihood of the training batches, each at one draw.
        kl_per_example: ``KL / N`` at the epoch's end.
        kl_weight: The annealing weight at the epoch's end.
        valid_nll: Of the validation set, averaged over draws; None without one.
        learning_rate: At the epoch's end.
        seconds: Since the start of training, interruptions left out.
    """

    epoch: int
    nll: float
    kl_per_example: float
    kl_weight: float
    valid_nll: float | None
    learning_rate: float
    seconds: float

    def plain(self) -> dict[str, Any]:
        """As a dict."""
        return asdict(self)

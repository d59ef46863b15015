"""What a step has computed, before any of it is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bayesrule.optim.plain import PlainState


@dataclass(frozen=True)
class ProposedStep:
    """Means of parameters, and states of groups and of parameters without a posterior."""

    means: dict[str, Tensor]
    states: dict[str, Any]
    plain_states: dict[str, PlainState]

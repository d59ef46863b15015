"""What a step has computed, before any of it is kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from bayesrule.optim.buffers import leaves
from bayesrule.optim.plain import PlainState


@dataclass(frozen=True)
class ProposedStep:
    """Means of parameters, and states of groups and of parameters without a posterior."""

    means: dict[str, Tensor]
    states: dict[str, Any]
    plain_states: dict[str, PlainState]

    def tensors(self, groups: Iterable[str]) -> list[Tensor]:
        """New means, and those of the states of some groups that are not counts."""
        found = [leaf for name in groups for leaf in leaves(self.states[name]) if leaf.is_floating_point()]
        return [*self.means.values(), *found]

"""Curvature from gradients at draws, by Price's theorem: no taps, and any kind of layer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from bayesrule.curvature import Tapped
from bayesrule.errors import Unsupported
from bayesrule.optim.rule import Rule
from bayesrule.optim.shell import PosteriorOptimizer
from bayesrule.random import NoiseSource


class PriceRule(Rule):
    """A rule that learns its curvature from ``E_q[∇²ℓ] = E_q[Σ⁻¹(w − μ) ∇ℓ(w)ᵀ]``   [Price's theorem, App. D]."""

    from_draws = True

    @property
    def taps(self) -> bool:
        """None."""
        return False

    @abstractmethod
    def at_draw(self, state: Any, gradient: Tensor, deviation: Tensor, damping: Tensor) -> dict[str, Tensor]:
        """The curvature part of a message.

        Args:
            state: Before the step.
            gradient: At the draw.
            deviation: ``(w − μ) N/λ``.
            damping: γ.
        """

    def curvature(self, state: Any, tapped: Sequence[Tapped]) -> dict[str, Tensor]:
        """Refused: it needs no taps."""
        raise Unsupported(f"{type(self).__name__} takes no curvature from taps", remedy="Use at_draw.")


class PriceOptimizer(PosteriorOptimizer):
    """A `PosteriorOptimizer` whose blocks also hand over each draw's gradient times its deviation."""

    @contextmanager
    def sampled_params(self, *, noise: NoiseSource | None = None, loss_scale: float | None = None) -> Iterator[None]:
        """As `PosteriorOptimizer.sampled_params`; a scaled loss must come with its ``loss_scale``."""
        with super().sampled_params(noise=noise, loss_scale=loss_scale):
            yield
            self._multiply(loss_scale or 1.0)

    @torch.no_grad()
    def _multiply(self, loss_scale: float) -> None:
        """Gradient times deviation of every group that got a gradient; blocks count alike."""
        if self._block is None:
            return
        with self._full_precision():
            for name, group in self.groups.items():
                rule, own = self.rule_of(group), {part.name: self.trained[part.name] for part in group.parts}
                if not isinstance(rule, PriceRule) or rule.taps or all(p.grad is None for p in own.values()):
                    continue
                mean, drawn = self.mean(group), group.event({key: p.detach() for key, p in own.items()})
                gradients = {key: torch.zeros_like(p) if p.grad is None else p.grad for key, p in own.items()}
                gradient = group.event(gradients).to(mean) / loss_scale
                deviation, damping = (drawn.to(mean) - mean) / self.scale, self.priors.term(name).damping
                found = rule.at_draw(self.states[name], gradient, deviation, damping)
                self._block.add_curvature(name, found, 1)

"""Curvature from gradients at draws, by Price's theorem: no taps, and any kind of layer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bayesrule.curvature import Tapped
from bayesrule.errors import Unsupported
from bayesrule.optim.capture import Capture, curvatures_moved_in
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
            deviation: ``(w − μ) N/λ``, which may be written over.
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
        gradients = {name: p.grad for name, p in self.trained.items() if p.grad is not None}
        with self._full_precision():
            if self._capture is None or loss_scale != 1.0:
                products = self._products(gradients, loss_scale)
            else:
                products = self._replay_products(self._capture, gradients)
            for name, product in products.items():
                self._block.add_curvature(name, product, 1)

    def _products(self, gradients: Mapping[str, Tensor], loss_scale: float) -> dict[str, dict[str, Tensor]]:
        """By group."""
        products = {}
        for name, group in self.groups.items():
            rule, own = self.rule_of(group), {part.name: gradients.get(part.name) for part in group.parts}
            if not isinstance(rule, PriceRule) or rule.taps or all(gradient is None for gradient in own.values()):
                continue
            filled = {key: torch.zeros_like(self.trained[key]) if g is None else g for key, g in own.items()}
            drawn, gradient, damping = self._drawn_by[name], group.event(filled), self.priors.term(name).damping
            deviation = drawn.deviation * (drawn.factor / self.scale / loss_scale)
            products[name] = rule.at_draw(self.states[name], gradient.to(deviation), deviation, damping)
        return products

    def _replay_products(self, capture: Capture, gradients: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """The same, captured."""
        moved = capture.moved_in("gradient", gradients)
        rooms = capture.moved_in("deviation", {name: drawn.deviation for name, drawn in self._drawn_by.items()})
        self._drawn_by = {name: replace(drawn, deviation=rooms[name]) for name, drawn in self._drawn_by.items()}
        signs = tuple(drawn.factor for drawn in self._drawn_by.values())
        key = ("products", tuple(moved), tuple(rooms), signs, self._circumstances())
        return capture.do(key, lambda: curvatures_moved_in(capture, self._products(moved, 1.0)))

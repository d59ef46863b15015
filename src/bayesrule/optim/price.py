"""Curvature from gradients at draws, by Price's theorem: no taps, and any kind of layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from bayesrule.curvature import Tapped
from bayesrule.errors import Unsupported
from bayesrule.optim.capture import Capture, curvatures_moved_in
from bayesrule.optim.group import Group
from bayesrule.optim.rule import Rule
from bayesrule.optim.shell import PosteriorOptimizer


class PriceRule(Rule):
    """A rule that learns its curvature from ``E_q[∇²ℓ] = E_q[Σ⁻¹(w − μ) ∇ℓ(w)ᵀ]``   [Price's theorem, App. D]."""

    from_draws = True
    product: ClassVar[str | None] = None
    """What a curvature is called that is the gradient times the deviation, entry by entry; None for others."""

    @property
    def taps(self) -> bool:
        """None."""
        return False

    def at_draw(self, state: Any, gradient: Tensor, deviation: Tensor, damping: Tensor) -> dict[str, Tensor]:
        """The curvature part of a message, of rules without a `product`.

        Args:
            state: Before the step.
            gradient: At the draw.
            deviation: ``(w − μ) N/λ``, which may be written over.
            damping: γ.
        """
        raise Unsupported(f"{type(self).__name__} says nothing of its curvature", remedy="Define product, or at_draw.")

    def curvature(self, state: Any, tapped: Sequence[Tapped]) -> dict[str, Tensor]:
        """Refused: it needs no taps."""
        raise Unsupported(f"{type(self).__name__} takes no curvature from taps", remedy="Use at_draw.")


class PriceOptimizer(PosteriorOptimizer):
    """A `PosteriorOptimizer` whose blocks also hand over each draw's gradient times its deviation."""

    @torch.no_grad()
    def _leave(self, loss_scale: float) -> None:
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
        told, wide = self._filled(gradients)
        if isinstance(self.rule, PriceRule) and self.rule.product is not None:
            return self._plain_products(self.rule.product, told, wide, loss_scale)
        products = {}
        for group, gradient in zip(told, self._gradient_events.of(told, wide), strict=True):
            rule, damping = self.rule_of(group), self.priors.term(group.name).damping
            if isinstance(rule, PriceRule) and not rule.taps:
                deviation = self._scaled_deviation(group, loss_scale)
                products[group.name] = rule.at_draw(self.states[group.name], gradient, deviation, damping)
        return products

    def _plain_products(
        self, name: str, groups: Sequence[Group], gradients: Mapping[str, Tensor], loss_scale: float
    ) -> dict[str, dict[str, Tensor]]:
        """The same entry by entry, in the parameters' own layouts: gradients need not become events for that."""
        deviations = {group.name: self._scaled_deviation(group, loss_scale) for group in groups}
        parts = {part: piece for group in groups for part, piece in self._parts(group, deviations[group.name]).items()}
        if parts:
            torch._foreach_mul_(list(parts.values()), [gradients[part] for part in parts])
        return {group: {name: deviation} for group, deviation in deviations.items()}

    def _scaled_deviation(self, group: Group, loss_scale: float) -> Tensor:
        """``(w − μ) N/λ``, over the scale of the loss; in place, unless it is still needed."""
        drawn = self._drawn_by[group.name]
        factor = drawn.factor / self.scale / loss_scale
        return drawn.deviation * factor if group.name in self._mirror else drawn.deviation.mul_(factor)

    def _replay_products(self, capture: Capture, gradients: dict[str, Tensor]) -> dict[str, dict[str, Tensor]]:
        """The same, captured."""
        moved = capture.moved_in("gradient", gradients)
        rooms = capture.moved_in("deviation", {name: drawn.deviation for name, drawn in self._drawn_by.items()})
        self._drawn_by = {name: replace(drawn, deviation=rooms[name]) for name, drawn in self._drawn_by.items()}
        signs = tuple(drawn.factor for drawn in self._drawn_by.values())
        key = ("products", tuple(moved), tuple(rooms), signs, self._circumstances())
        return capture.do(key, lambda: curvatures_moved_in(capture, self._products(moved, 1.0)))

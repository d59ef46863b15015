"""Draws of a posterior that an optimizer holds, put into the weights; and gradients as the groups' events."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.curvature import state_dtype
from bayesrule.kernels import FastNoise
from bayesrule.optim.capture import Capture
from bayesrule.optim.group import Drawn, Events, Group
from bayesrule.optim.holder import PosteriorHolder
from bayesrule.optim.joining import apart
from bayesrule.optim.param_groups import alike
from bayesrule.optim.rule import Rule
from bayesrule.random import NoiseSource

NOTHING = nullcontext()


class DrawingHolder(PosteriorHolder):
    """Adds fresh deviations to the weights, or the last ones with the other sign."""

    def __init__(self, model: nn.Module, rule: Rule, *, mirrored: bool, **options: Any) -> None:
        super().__init__(model, rule, **options)
        self.mirrored = mirrored
        self.source: NoiseSource | None = None
        """Of draws and sampled targets, in place of the own generator: set where several processes train together."""
        joinable = tuple(self.groups.values()) if self._capture is None else ()  # recorded work has rooms of its own
        self._mean_events, self._gradient_events = (Events(joinable, self.means()) for _ in range(2))
        self._drawn_by: dict[str, Drawn] = {}
        self._split: dict[str, tuple[Tensor, dict[str, Tensor]]] = {}
        self._likes: dict[tuple[str, ...], Tensor | None] = {}

    def _draw(self, groups: list[Group], noise: NoiseSource | None) -> None:
        """A fresh deviation in the weights, or the last one with the other sign."""
        last = {} if noise is not None else {group.name: self._mirror[group.name] for group in groups
                                             if group.name in self._mirror}  # fmt: skip
        fresh = [group for group in groups if group.name not in last]
        if self._capture is None or noise is not None or self.source is not None:
            deviations = self._perturb(fresh, last, noise)
        else:
            last = self._capture.moved_in("deviation", last)
            deviations = self._replay_draw(self._capture, fresh, last)
        self._mirror = deviations if self.mirrored and noise is None else {}
        if self.rule.from_draws:
            root = self.scale**0.5
            self._drawn_by = {name: Drawn(deviation, root) for name, deviation in deviations.items()}
            self._drawn_by |= {name: Drawn(deviation, -root) for name, deviation in last.items()}

    def _perturb(self, fresh: list[Group], last: dict[str, Tensor], noise: NoiseSource | None) -> dict[str, Tensor]:
        """Deviations added to the weights, and those that are fresh."""
        normals = dict(zip((group.name for group in fresh), self._normals(fresh, noise), strict=True))
        deviations: dict[str, Tensor] = {}
        for names in alike(normals, self._placement, self.trained):
            states, priors = [self.states[name] for name in names], [self.priors.term(name) for name in names]
            rule = self.rule_of(self.groups[names[0]])
            found = rule.deviations(states, [normals[name] for name in names], priors)
            deviations |= dict(zip(names, found, strict=True))
        self._put(deviations, self.scale**0.5)
        self._put(last, -(self.scale**0.5))
        return deviations

    def _replay_draw(self, capture: Capture, fresh: list[Group], last: dict[str, Tensor]) -> dict[str, Tensor]:
        """The same, captured; fresh deviations lie in rooms, where anything needs them after the draw."""
        names = tuple(group.name for group in fresh)

        def work() -> dict[str, Tensor]:
            deviations = self._perturb(fresh, last, None)
            if self.mirrored:
                return capture.kept_in("deviation", deviations)
            return capture.moved_in("deviation", deviations) if self.rule.from_draws else {}

        return capture.do(("draw", names, tuple(last), self.mirrored, self._circumstances()), work)

    def _circumstances(self) -> tuple[Any, ...]:
        """What captured work depends on beside its rooms: hyper-parameters, and where tensors lie."""
        terms = [self.priors.term(name) for name in self.groups]
        places: list[Tensor] = [*self.trained.values(), *(term.damping for term in terms)]
        places += [term.mean for term in terms if term.mean is not None]
        rules = tuple(id(self.rule_of(group)) for group in self.groups.values())
        return rules, self.scale, tuple(place.data_ptr() for place in places)

    def _normals(self, groups: list[Group], noise: NoiseSource | None) -> list[Tensor]:
        """One normal for each weight: from a source group by group, from the own generator of a device all at once."""
        names = tuple(group.name for group in groups)
        if names not in self._likes:
            kinds = {(p.device, state_dtype(p.dtype)) for p in (self.trained[name] for name in names)}
            alone = len(kinds) == 1
            self._likes[names] = next(torch.empty((), device=d, dtype=t) for d, t in kinds) if alone else None
        like = self._likes[names]
        if noise is not None or like is None:
            source = noise or self._own_noise()
            means = [self.trained[name].detach() for name in names]
            return [source(group.event_shape, "normal", mean.to(state_dtype(mean.dtype)))
                    for group, mean in zip(groups, means, strict=True)]  # fmt: skip
        shapes = [group.event_shape for group in groups]
        size, joint = sum(map(math.prod, shapes)), len(shapes[0]) == 1
        flat = self._own_noise()((size,) if joint else (size, 1), "normal", like)
        return [flat] if joint else apart(flat, shapes)

    def _put(self, deviations: Mapping[str, Tensor], factor: float) -> None:
        if not deviations:
            return
        parts = {name: value for group, deviation in deviations.items()
                 for name, value in self._parts(self.groups[group], deviation).items()}  # fmt: skip
        for name in parts.keys() & self._masters.keys():
            self.trained[name].copy_(torch.add(self._masters[name], parts.pop(name), alpha=factor))
        if parts:
            torch._foreach_add_([self.trained[name] for name in parts], list(parts.values()), alpha=factor)

    def _parts(self, group: Group, deviation: Tensor) -> dict[str, Tensor]:
        """Views of a draw's deviation, which are needed when it is put into the weights and when they leave it."""
        if group.name not in self._split or self._split[group.name][0] is not deviation:
            self._split[group.name] = deviation, group.split(deviation)
        return self._split[group.name][1]

    def _own_noise(self) -> NoiseSource:
        return self.source or (lambda shape, law, like: FastNoise(self.generator(like.device))(shape, law, like))

    def _filled(self, gradients: Mapping[str, Tensor]) -> tuple[list[Group], dict[str, Tensor]]:
        """Groups that got a gradient, and gradients of all their parameters, in the precision of their means."""
        if len(gradients) == len(self.trained) and not self._masters:
            return list(self.groups.values()), dict(gradients)
        told = [group for group in self.groups.values() if any(part.name in gradients for part in group.parts)]
        named = [part.name for group in told for part in group.parts]
        return told, {name: self._widened(name, gradients[name]) if name in gradients
                      else torch.zeros_like(self.mean_of(name)) for name in named}  # fmt: skip

    def _widened(self, name: str, gradient: Tensor) -> Tensor:
        """In the precision of the mean."""
        return gradient.to(self._masters[name]) if name in self._masters else gradient

    def _full_precision(self) -> AbstractContextManager[Any]:
        kind = next(iter(self.trained.values())).device.type
        return torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else NOTHING

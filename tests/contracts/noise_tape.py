"""Noise that can be looked at afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from bayesrule.random import Law, draw


@dataclass
class Tape:
    """Fresh noise, kept with its law."""

    noises: list[Tensor] = field(default_factory=list)
    laws: list[Law] = field(default_factory=list)

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        self.noises.append(draw(shape, law, like))
        self.laws.append(law)
        return self.noises[-1]

    @property
    def normals(self) -> list[Tensor]:
        return [noise for noise, law in zip(self.noises, self.laws, strict=True) if law == "normal"]

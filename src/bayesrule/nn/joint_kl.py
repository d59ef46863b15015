"""The KL of a whole model, its short ones found together."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bayesrule.kernels import JointDivergence, Piece
from bayesrule.nn.home import Home, kl_of_homes
from bayesrule.posteriors import Family, Variational
from bayesrule.priors import Prior

FEWEST = 2
"""Pieces that are worth one call."""


class JointKL:
    """Which KLs of a model are found together: what is looked up once, as long as the model stays as it is."""

    def __init__(self, homes: Sequence[Home]) -> None:
        self.facts = [_facts(home) for home in homes]
        pieces = [_piece(home) for home in homes]
        found = [piece for piece in pieces if piece is not None]
        self.joint = JointDivergence(found) if len(found) >= FEWEST else None
        self.others = [home for home, piece in zip(homes, pieces, strict=True) if piece is None or self.joint is None]

    def fits(self, homes: Sequence[Home]) -> bool:
        """Whether nobody has changed a prior, a family or which tensors are parameters."""
        if len(homes) != len(self.facts):
            return False
        for home, (posterior, family, prior, parameters) in zip(homes, self.facts, strict=True):
            if home.posterior is not posterior or posterior.family is not family or home.prior is not prior:
                return False
            for mine, parameter in zip(posterior._parameters.values(), parameters, strict=True):
                if mine is not parameter:
                    return False
        return True


_known: WeakKeyDictionary[nn.Module, JointKL] = WeakKeyDictionary()


def kl_of_model(model: nn.Module, homes: Sequence[Home]) -> Tensor:
    """The KL of all homes of a model together."""
    if torch.compiler.is_compiling():
        return kl_of_homes(homes)
    known = _known.get(model)
    if known is None or not known.fits(homes):
        known = _known[model] = JointKL(homes)
    total = None if known.joint is None else known.joint.sum()
    if total is None:
        return kl_of_homes(homes)
    return total + kl_of_homes(known.others).to(total.device) if known.others else total


Facts = tuple[Variational, Family, Prior, tuple[Tensor | None, ...]]


def _facts(home: Home) -> Facts:
    return home.posterior, home.posterior.family, home.prior, tuple(home.posterior._parameters.values())


def _piece(home: Home) -> Piece | None:
    numbers, stored = home.prior.numbers(), home.posterior.stored()
    return None if numbers is None or stored is None else home.posterior.family.piece(stored, *numbers)

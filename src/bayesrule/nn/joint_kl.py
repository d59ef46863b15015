"""The KL of a whole model, its short ones found together, where possible by the node that drew the weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bayesrule.kernels import DrawnKL, JointDivergence, JointDraw, Term
from bayesrule.nn.home import Home, HomeFacts, kl_of_homes

FEWEST = 2
"""Pieces that are worth one call."""


class JointKL:
    """Which KLs of a model are found together: what is looked up once, as long as the model stays as it is.

    Args:
        homes: Of the model.
        drawn: What was drawn together before the last pass.
    """

    def __init__(self, homes: Sequence[Home], drawn: JointDraw | None) -> None:
        self.facts, self.drawn = HomeFacts(homes), drawn
        terms = [_term(home) for home in homes]
        by_mean = {id(term.piece.mean): term for term in terms if term is not None}
        means = [] if drawn is None else [id(mean) for mean in drawn.means]
        together = [by_mean.pop(mean) for mean in means] if all(mean in by_mean for mean in means) else []
        apart = [term for term in by_mean.values() if term.piece.mean.is_cpu]
        self.of_drawn = JointDivergence(together) if together else None
        self.apart = JointDivergence(apart) if len(apart) >= FEWEST else None
        served = {id(term.piece.mean) for term in (*together, *(apart if self.apart is not None else ()))}
        self.others = [home for home in homes if id(home.mean) not in served]

    def fits(self, homes: Sequence[Home], drawn: JointDraw | None) -> bool:
        """Whether these are still the homes, and what is known of them still holds."""
        return homes == self.facts.homes and drawn is self.drawn and self.facts.hold()

    def sum(self, kl: DrawnKL | None) -> Tensor | None:
        """The KL of all together; None where each has to be found for itself."""
        of_drawn = None if kl is None or self.of_drawn is None else kl.sum(self.of_drawn)
        asked = [self.apart] if of_drawn is not None else [self.of_drawn, self.apart]
        sums = [joint.sum() for joint in asked if joint is not None]
        kls = [total for total in (of_drawn, *sums) if total is not None]
        if not kls or None in sums:
            return None
        if self.others:
            kls.append(kl_of_homes(self.others).to(kls[0].device))
        return kls[0] if len(kls) == 1 else torch.stack(kls).sum(0)


def _term(home: Home) -> Term | None:
    numbers, piece = home.prior.numbers(), home.posterior.piece()
    if numbers is None or piece is None or (piece.rank and numbers[0]):
        return None
    return Term(piece, *numbers)

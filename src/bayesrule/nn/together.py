"""What is found for a whole model by one call: the draws of a pass, and their KL."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.kernels import DrawnKL, JointDraw
from bayesrule.nn.draw_table import DrawTable
from bayesrule.nn.home import Home, kl_of_homes
from bayesrule.nn.joint_draws import JointDraws
from bayesrule.nn.joint_kl import JointKL


class Together:
    """Of one model: what is looked up once, as long as the model stays as it is."""

    def __init__(self) -> None:
        self._draws: JointDraws | None = None
        self._kl: JointKL | None = None
        self._last: tuple[JointDraw | None, DrawnKL | None] = None, None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and files of a model begin without a pass."""
        return Together, ()

    def draw(self, model: nn.Module, table: DrawTable) -> None:
        """Before a pass begins: draw what its layers will read, where that is done by one call."""
        if not table.may_draw_ahead:
            return
        draws = self._draws
        if draws is None or not draws.fit(table.shared):
            draws = JointDraws(model, table.shared)
        served = draws.served()
        if not served and draws.outdated():
            draws = JointDraws(model, table.shared)
            served = draws.served()
        kl = table.draw_ahead(draws.facts.homes, draws.joint, draws.device) if served else None
        # Parameters that were computed, for `functional_call`, have a graph behind them, which must not be kept alive.
        self._draws, self._last = (draws, (draws.joint, kl)) if draws.of_leaves else (None, (None, None))

    def kl(self, homes: list[Home]) -> Tensor:
        """The KL of all homes of the model, as part of the last pass where it can."""
        if torch.compiler.is_compiling():
            return kl_of_homes(homes)
        kl, (joint, drawn) = self._kl, self._last
        if kl is None or not kl.fits(homes, joint):
            kl = JointKL(homes, joint)
        self._kl = kl if kl.facts.of_leaves else None
        total = kl.sum(drawn)
        return kl_of_homes(homes) if total is None else total

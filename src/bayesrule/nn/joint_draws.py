"""Which of a model's weights are drawn together, before a pass begins."""

from __future__ import annotations

import torch
from torch import nn

from bayesrule.estimators import WeightSample
from bayesrule.kernels import Joint, JointDraw
from bayesrule.nn.draw_table import place_of
from bayesrule.nn.home import Home, HomeFacts
from bayesrule.nn.layer import BayesianLayer


class JointDraws:
    """The small matrices and vectors that layers will read in the next pass, as far as one can tell.

    What is drawn in vain is lost. What is missed is drawn when it is read: on a CPU by the same code and noise, where
    gradients are asked for and saved tensors are watched as at the pass's beginning, and elsewhere from the generator.

    Args:
        model: The model.
        shared: The posteriors that are used several times in a pass.
    """

    def __init__(self, model: nn.Module, shared: set[str]) -> None:
        self.layers = [module for module in model.modules() if isinstance(module, BayesianLayer)]
        self.estimators = [layer.estimator for layer in self.layers]
        self.shared = set(shared)
        reading = [layer for layer in self.layers if _may_draw_whole(layer, shared)]
        self.whole = [(layer, _draws_whole(layer, shared)) for layer in reading]
        self.choosing = [each for each in self.whole if each[0].estimator.chooses]
        homes = {home.name: home for layer in reading for home in _homes(layer)}
        self.candidates = {name: piece for name, home in homes.items() if (piece := home.posterior.piece()) is not None}
        self.lie = self._lie()
        fitting = {name: piece for name, piece in self.candidates.items() if piece.is_single_and_in_order}
        pieces = fitting or self.candidates  # what fits nowhere may fit once the model is in another precision
        self.all = Joint(list(pieces.values())) if pieces else None
        read = {home.name for layer, whole in self.whole if whole for home in _homes(layer)}
        self.names = [
            name for name, piece in pieces.items() if name in read and (piece.mean.is_cpu or name not in shared)
        ]
        self.facts = HomeFacts(homes[name] for name in self.names)
        places = [place_of(name) for name in self.names]
        self.joint = JointDraw([pieces[name] for name in self.names], places) if self.names else None

    def served(self) -> bool:
        """Whether there is code for whatever layers may read of these.

        Then every pass takes a seed, whatever is known of it: so that it leaves torch's generator as the next one will.
        """
        if self.all is None or not self.all.served():
            return False
        return self.joint is None or self.joint.draws.ready()

    @property
    def device(self) -> torch.device:
        """Of all that are `served`."""
        return torch.device("cpu") if self.all is None else self.all.device

    @property
    def of_leaves(self) -> bool:
        """Whether no parameter of these was computed from others."""
        return self.all is None or all(parameter.is_leaf for parameter in self.all.parameters)

    def outdated(self) -> bool:
        """Whether parameters lie otherwise or elsewhere, or in another precision, than when they were looked at."""
        return self._lie() != self.lie

    def _lie(self) -> list[tuple[object, ...]]:
        pieces = self.candidates.values()
        return [(piece.is_single_and_in_order, piece.mean.device, piece.mean.shape) for piece in pieces]

    def fit(self, shared: set[str]) -> bool:
        """Whether the layers would still be taken to read the same, of the same posteriors."""
        if shared != self.shared or [layer.estimator for layer in self.layers] != self.estimators:
            return False
        for layer, whole in self.choosing:
            if _draws_whole(layer, shared) != whole:
                return False
        return self.facts.hold()


def _draws_whole(layer: BayesianLayer, shared: set[str]) -> bool:
    """Whether a layer is taken to read its weights, rather than to let their noise enter its output otherwise."""
    if layer.contraction is None or not layer.estimator.chooses or layer.last_choice is None:
        return True
    return isinstance(layer.last_choice[1], WeightSample) or layer._home("weight").name in shared


def _may_draw_whole(layer: BayesianLayer, shared: set[str]) -> bool:
    """Whether it ever reads them."""
    if layer.contraction is None or layer._home("weight").name in shared:
        return True
    return not layer.contraction.picks_rows and (layer.estimator.chooses or isinstance(layer.estimator, WeightSample))


def _homes(layer: BayesianLayer) -> list[Home]:
    return [layer._home(name) for name in layer.qualified]

"""What the model is shown beside: the same networks as point estimates, one of them and several."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

import torch

from bayesrule.nn import BayesianModule
from bayesrule.report import Method
from bayesrule.train.members import Members, Settings, point_estimate
from bayesrule.train.tabular import TableFit, TabularModel


def networks(model: TabularModel) -> list[BayesianModule]:
    """The members, by the type they have."""
    return cast("list[BayesianModule]", list(model.members.members))


def rival_settings(settings: Settings, ensemble: int) -> Settings:
    """Point estimates, as many as the ensemble needs; trained together, each stopped early on a fold of its own."""
    return replace(point_estimate(settings), folds=max(settings.folds, ensemble))


def first_members(model: TabularModel, count: int) -> TabularModel:
    """The model with its first members only, in equal shares."""
    every = model.members
    members = networks(model)[:count]
    shares = torch.full((len(members),), 1 / len(members))
    return replace(model, members=Members(members, every.likelihood, shares, every.settings))


def rival_methods(model: TabularModel, fit: TableFit, ensemble: int) -> list[Method]:
    """Rows of the comparison: one point estimate and, if asked for, a deep ensemble; measured on the test rows."""
    sizes = [1, min(ensemble, len(model.members.members))] if ensemble > 1 else [1]
    return [_measured(first_members(model, size), fit, size) for size in sizes]


def _measured(model: TabularModel, fit: TableFit, size: int) -> Method:
    name = "Point estimate" if size == 1 else f"Deep ensemble of {size}"
    return Method(name, model.evaluate(fit.test_frame, fit.test_targets), plain_numbers(model), fit.seconds)


def plain_numbers(model: TabularModel) -> int:
    """Weights and biases of all members, as the plain networks had them."""
    return sum(math.prod(row.shape) for member in networks(model) for row in member.conversion)

"""How noise enters the members' training: every estimator gives each row the posterior's covariance."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.errors import Unsupported
from bayesrule.estimators import Estimator
from bayesrule.nn import BayesianModule
from bayesrule.posteriors import Family
from bayesrule.random import Law
from bayesrule.train.members import Members, Settings, train_members
from bayesrule.train.stacked import StackedMembers
from bayesrule.train.tabular import TabularModel, fit_table
from tabular_cases import SETTINGS, table

INPUTS, OUTPUTS, MEMBERS, ROWS = 3, 4, 2, 5
INDEPENDENT: list[Family] = [br.Diagonal(0.1), br.KTied(2, 0.1)]
CORRELATED: list[Family] = [br.MatrixNormal(0.1), br.MatrixNormalDiagonal("kronecker", 0.1), br.Full(0.1)]
ANY = [br.LocalReparam(), br.WeightSample(), br.Auto()]
PAIRS = [
    *((family, estimator) for family in INDEPENDENT + CORRELATED for estimator in ANY),
    *((family, br.Flipout()) for family in INDEPENDENT),
]


def make(family: Family, estimator: Estimator, *hidden: int) -> list[BayesianModule]:
    torch.manual_seed(1)
    members = []
    for _ in range(MEMBERS):
        layers = [nn.Linear(*sizes) for sizes in pairwise((INPUTS, *hidden, OUTPUTS))]
        member = br.bayesianize(nn.Sequential(*layers).double(), family, br.Normal(1.0), estimator)
        with torch.no_grad():
            for parameter in member.parameters():  # off their initial values: nothing is alike or zero
                parameter.add_(0.2 * torch.randn_like(parameter))
        members.append(member)
    return members


def some_inputs() -> Tensor:
    return torch.randn(MEMBERS, ROWS, INPUTS, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


class Leaves:
    """Normals that are zero and remembered, to differentiate by; signs that are random and remembered."""

    def __init__(self) -> None:
        self.leaves: list[Tensor] = []
        self.signs: list[Tensor] = []
        self.generator = torch.Generator().manual_seed(3)

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        if law == "sign":
            self.signs.append(torch.randint(2, shape, generator=self.generator).to(like.dtype) * 2 - 1)
            return self.signs[-1]
        self.leaves.append(torch.zeros(shape, dtype=like.dtype, requires_grad=True))
        return self.leaves[-1]


def joint_covariance(members: list[BayesianModule], x: Tensor, noise: Leaves) -> Tensor:
    """Of all outputs of a layer, exactly: they are linear in the normals."""
    outputs = StackedMembers(members).outputs(x, noise).flatten()
    rows = [torch.autograd.grad(output, noise.leaves, retain_graph=True) for output in outputs]
    jacobian = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows])
    size = (MEMBERS, ROWS, OUTPUTS)
    return (jacobian @ jacobian.mT).reshape(*size, *size)


def dense_covariance(member: BayesianModule, x: Tensor) -> Tensor:
    """``Cov(x_aᵀW + b, x_cᵀW + b)`` of all pairs of rows, by the dense covariance of the row-major weight."""
    weight, bias = member.posteriors()["0.weight"], member.posteriors()["0.bias"]
    dense = weight.covariance.dense().reshape(INPUTS, OUTPUTS, INPUTS, OUTPUTS)
    return torch.einsum("ai,iojp,cj->aocp", x, dense, x) + torch.diag(bias.variance)[:, None]


@pytest.mark.parametrize(("family", "estimator"), PAIRS, ids=repr)
def test_each_row_has_the_posteriors_covariance_and_members_share_nothing(family: Family, estimator: Estimator) -> None:
    members, x = make(family, estimator), some_inputs()
    found = joint_covariance(members, x, Leaves())
    for number, member in enumerate(members):
        expected = dense_covariance(member, x[number]).detach()
        for row in range(ROWS):
            torch.testing.assert_close(found[number, row, :, number, row], expected[row, :, row], rtol=1e-9, atol=1e-11)
    assert not found[0, :, :, 1].any()


@pytest.mark.parametrize("family", INDEPENDENT + CORRELATED, ids=repr)
def test_a_drawn_weight_is_shared_by_the_rows_and_local_noise_is_not(family: Family) -> None:
    x = some_inputs()
    members = make(family, br.WeightSample())
    found = joint_covariance(members, x, Leaves())
    expected = dense_covariance(members[1], x[1]).detach()
    torch.testing.assert_close(found[1, :, :, 1], expected, rtol=1e-9, atol=1e-11)
    if isinstance(family, br.Full):
        return  # has no local noise: its weights are drawn
    local = joint_covariance(make(family, br.LocalReparam()), x, Leaves())
    rows = torch.arange(ROWS)
    between = local[0, :, :, 0].clone()
    between[rows, :, rows] = 0
    assert not between.any()


def test_flipout_has_signs_for_every_row_of_every_member() -> None:
    noise = Leaves()
    members, x = make(br.Diagonal(0.1), br.Flipout()), some_inputs()
    found = joint_covariance(members, x, noise)
    inputs, outputs = noise.signs
    assert (inputs.shape, outputs.shape) == (x.shape, (MEMBERS, ROWS, OUTPUTS))
    flipped = dense_covariance(members[0], x[0] * inputs[0]).detach()  # the law given the signs: x_a ∘ s_a for x_a …
    bias = torch.diag(members[0].posteriors()["0.bias"].variance).detach()
    between = (flipped - bias[:, None]) * outputs[0][:, :, None, None] * outputs[0] + bias[:, None]  # … and y_a ∘ r_a
    torch.testing.assert_close(found[0, :, :, 0], between, rtol=1e-9, atol=1e-11)


def test_auto_counts_the_rows_of_one_member() -> None:
    noise, hidden = Leaves(), 16_000  # so many that 5 rows of local noise cost less than a draw, and 10 rows more
    StackedMembers(make(br.Diagonal(0.1), br.Auto(), hidden)).outputs(some_inputs(), noise)
    shapes = [tuple(leaf.shape) for leaf in noise.leaves]
    drawn, local = (MEMBERS, INPUTS, hidden), (MEMBERS, ROWS, OUTPUTS)
    assert drawn in shapes
    assert local in shapes
    assert (MEMBERS, hidden, OUTPUTS) not in shapes


def test_flipout_refuses_what_is_correlated() -> None:
    x, y = torch.randn(12, 2), torch.randn(12, 1)
    with pytest.raises(Unsupported, match="independent entries"):
        train_members(x, y, "regression", replace(SETTINGS, posterior=br.MatrixNormal(), estimator=br.Flipout()))


@pytest.mark.parametrize("estimator", [br.WeightSample(), br.Flipout(), br.Auto(), br.Mean()], ids=repr)
def test_a_model_keeps_its_estimator(estimator: Estimator, tmp_path: Path) -> None:
    settings = replace(SETTINGS, estimator=estimator)
    model, fit = fit_table(table().drop(columns="price"), "kind", settings=settings)
    loaded = TabularModel.load(model.save(tmp_path / "model"))
    assert loaded.members.settings.estimator == estimator
    assert all(row.estimator == type(estimator).__name__ for row in loaded.members.members[0].conversion)
    assert torch.equal(loaded.predictive(fit.test_frame).outputs, model.predictive(fit.test_frame).outputs)


def test_the_mean_estimator_makes_a_penalised_point_estimate() -> None:
    settings = replace(SETTINGS, estimator=br.Mean(), steps=20, temperatures=(0.1,))
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    members, history = train_members(x, x[:, :1], "regression", settings)
    assert isinstance(members, Members)
    expected = torch.stack([member.at_mean(x) for member in members.members])
    assert torch.equal(members.predictive(x).outputs, expected.detach())
    assert all(point["kl_per_example"] > 0 for point in history)


def test_scikit_learn_takes_an_estimator() -> None:
    x = np.random.default_rng(0).normal(size=(30, 3))
    few = {"steps": 5, "hidden": (4,), "folds": 2, "draws": 8}
    model = br.BayesianRegressor(estimator=br.Flipout(), **few).fit(x, x[:, 0])
    assert model.members_.settings.estimator == br.Flipout()
    assert model.get_params()["estimator"] == br.Flipout()
    default = br.BayesianRegressor(**few).fit(x, x[:, 0])
    assert default.members_.settings.estimator == Settings().estimator == br.LocalReparam()
    assert not np.array_equal(model.predict(x), default.predict(x))

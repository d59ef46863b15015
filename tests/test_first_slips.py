"""Slips that a newcomer makes, and that must not pass unnoticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.optim.swa_utils import AveragedModel

import bayesrule as br
from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shape checks of the test suite, which would speak first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))


def objective(**options: object) -> br.NegativeELBO:
    return br.NegativeELBO(br.bayesianize(net(), likelihood=br.Categorical()), 40, **options)


def test_an_annealing_schedule_needs_the_step() -> None:
    loss = objective(annealing=br.annealing.LinearOverEpochs(5, 10))
    outputs, targets = torch.zeros(6, 3), torch.zeros(6).long()
    with pytest.raises(InvalidArgument, match="no step"):
        loss(outputs, targets)
    with pytest.raises(InvalidArgument, match="counted from 0"):
        loss(outputs, targets, step=-1)
    assert loss(outputs, targets, step=25).kl_weight == 0.5
    assert objective()(outputs, targets).kl_weight == 1.0


def test_a_loss_can_be_differentiated_by_itself() -> None:
    loss = objective()
    loss(loss.bnn(torch.randn(6, 4)), torch.zeros(6).long()).backward()
    assert all(parameter.grad is not None for parameter in loss.bnn.parameters())


def test_labels_of_sequences_are_not_labels_of_tokens() -> None:
    with pytest.raises(ShapeMismatch, match="its own target"):
        objective()(torch.zeros(6, 6, 3), torch.zeros(6).long())


@pytest.mark.parametrize("n_data", [0, 2.5, torch.ones(3)])
def test_the_number_of_examples_is_a_whole_number(n_data: object) -> None:
    with pytest.raises(InvalidArgument, match="n_data"):
        br.NegativeELBO(br.bayesianize(net(), likelihood=br.Categorical()), n_data)


def test_numpy_targets_are_named() -> None:
    with pytest.raises(InvalidArgument, match="ndarray"):
        objective()(torch.zeros(6, 3), np.zeros(6, dtype=np.int64))


class HeadFirst(nn.Module):
    """Registered in another order than it is run."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body = nn.Linear(8, 2), nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x).relu())


@pytest.mark.parametrize("example", [None, torch.zeros(3, 4)], ids=["traced", "example"])
def test_the_last_layer_is_the_last_one_run(example: torch.Tensor | None) -> None:
    bnn = br.bayesianize(HeadFirst(), layers="last_layer", example=example)
    assert set(br.posteriors(bnn)) == {"head.weight", "head.bias"}


def test_a_converted_model_is_in_the_mode_of_its_network() -> None:
    assert not br.bayesianize(net().eval()).training
    assert br.bayesianize(net().train()).training


@pytest.mark.parametrize(
    "options", [{"posterior": br.Normal(1.0)}, {"prior": br.Diagonal()}, {"likelihood": br.Categorical}]
)
def test_recipes_in_the_wrong_place_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument, match="must be an instance such as"):
        br.bayesianize(net(), **options)


def test_plain_networks_are_refused_by_name(tmp_path: object) -> None:
    plain, x = net(), torch.zeros(2, 4)
    for verb in (lambda: br.kl(plain), lambda: br.predict(plain, x), lambda: br.save(plain, str(tmp_path))):
        with pytest.raises(InvalidArgument, match=r"br\.bayesianize"):
            verb()


WRAPPERS = {
    "DataParallel": (nn.DataParallel, r"Give its \.module,"),
    "AveragedModel": (AveragedModel, r"Give its \.module,"),
    "AveragedModel of a wrapper": (lambda bnn: AveragedModel(nn.DataParallel(bnn)), r"Give its \.module\.module,"),
    "of a compiled model": (lambda bnn: nn.DataParallel(torch.compile(bnn, backend="eager")), r"Give its \.module,"),
    "a module of one's own": (lambda bnn: nn.ModuleDict({"norm": nn.LayerNorm(4), "head": bnn}), r"Give its \.head,"),
    "compiled": (lambda bnn: torch.compile(nn.DataParallel(bnn), backend="eager"), r"Give its \.module,"),
}
VERBS = {
    "kl": br.kl,
    "posteriors": br.posteriors,
    "predict": lambda model: br.predict(model, torch.zeros(2, 4)),
    "save": lambda model: br.save(model, "never written"),
    "mean_module": br.mean_module,
    "compress": lambda model: br.compress(model, 1),
    "prune": br.prune,
    "NegativeELBO": lambda model: br.NegativeELBO(model, 40),
    "data_parallel": br.distributed.data_parallel,
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("wrap", "remedy"), WRAPPERS.values(), ids=WRAPPERS)
def test_what_wraps_a_converted_model_is_refused_with_the_way_to_it(
    verb: str, wrap: Callable[[nn.Module], nn.Module], remedy: str
) -> None:
    wrapped = wrap(br.bayesianize(net(), br.Diagonal(), likelihood=br.Categorical()))
    with pytest.raises(InvalidArgument, match=remedy):
        VERBS[verb](wrapped)


@pytest.mark.parametrize("verb", VERBS)
def test_what_wraps_a_plain_network_is_refused_as_one(verb: str) -> None:
    for plain in (net(), AveragedModel(net())):
        with pytest.raises(InvalidArgument, match=r"Use br\.bayesianize"):
            VERBS[verb](plain)


@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo")
def test_data_parallel_processes_are_told_where_the_model_is(tmp_path: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(br.bayesianize(net(), likelihood=br.Categorical()))
        for verb in VERBS.values():
            with pytest.raises(InvalidArgument, match=r"DistributedDataParallel\. Give its \.module, the converted"):
                verb(wrapped)
        assert br.kl(wrapped.module) > 0
    finally:
        del wrapped
        dist.destroy_process_group()


def test_a_model_is_not_loaded_into_a_model(tmp_path: object) -> None:
    bnn = br.bayesianize(net())
    br.save(bnn, str(tmp_path))
    with pytest.raises(InvalidArgument, match="plain network"):
        br.load(str(tmp_path), into=bnn)


def test_flipout_of_a_correlated_posterior_is_refused_at_conversion() -> None:
    with pytest.raises(Unsupported, match="Flipout needs"):
        br.bayesianize(net(), br.MatrixNormal(), estimator=br.Flipout())


def test_full_posteriors_train_at_an_ordinary_learning_rate() -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 10)
    y = x @ torch.randn(10, 5) + 0.1 * torch.randn(200, 5)
    bnn = br.bayesianize(nn.Linear(10, 5), br.Full(), br.Normal(1.0), br.WeightSample(), br.Gaussian(0.1), bias="point")
    loss, optimizer = br.NegativeELBO(bnn, 200), torch.optim.Adam(bnn.parameters(), lr=2e-2)
    values = []
    for _ in range(300):
        value = loss(bnn(x), y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        values.append(value.total.item())
    assert sum(values[-20:]) / 20 < -3.0  # the optimum is near −4.2; with absolute off-diagonals it stayed above 5

"""Pruning as it is used: nothing changes behind the user's back, and what was given wrongly is said so."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.nn import BayesianModule
from bayesrule.prune import SparseTensor, load_pruned, measuring, save_pruned
from prune_networks import model

X = 2 + 3 * torch.randn(100, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(100) % 3


def normalised() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


def converted(**options: object) -> BayesianModule:
    return br.bayesianize(normalised(), br.Diagonal(init_std=0.01), **options).train()


def test_a_function_that_evaluates_cannot_change_the_network() -> None:
    bnn = converted()
    seen = []

    def evaluate(module: nn.Module) -> dict[str, float]:
        seen.append((module, module.training))
        mean = module(X).mean().item()
        module.train()(X)
        with torch.no_grad():
            module[0].weight.zero_()
        return {"mean": mean}

    plain, small = br.prune(bnn), br.prune(bnn, evaluate=evaluate)
    assert [training for _, training in seen] == [False, False]
    assert all(module is not small for module, _ in seen)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(tensor, small.state_dict()[name]), name
    assert small.pruning.after.measures["mean"] == pytest.approx(plain(X).mean().item(), rel=1e-6)
    assert not any(module.training for module in [*small.modules(), *br.mean_module(bnn).modules()])
    assert bnn.training


@pytest.mark.parametrize("given", [(X, Y), X, [X], [(X, Y, Y)], [(X[0], Y[0])], [{"x": X}]])
def test_what_is_no_list_of_batches_is_refused(given: object) -> None:
    with pytest.raises(InvalidArgument, match=r"iterable of batches.*evaluate=\[\(x, y\)\]"):
        br.prune(converted(likelihood=br.Categorical()), evaluate=given)


def test_batches_may_come_from_a_loader() -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(X, Y), 40)
    bnn = converted(likelihood=br.Categorical())
    several, one = (br.prune(bnn, evaluate=given).pruning.after.measures for given in (loader, [(X, Y)]))
    assert several == pytest.approx(one, rel=1e-5)


@pytest.mark.parametrize("example", [X[:, :5], (X, X), X[0, :2], ("text",)])
def test_an_example_that_does_not_fit_is_refused(example: object) -> None:
    with pytest.raises(InvalidArgument, match="The network does not run on the example") as refused:
        br.prune(converted(), example=example)
    assert "Node" not in str(refused.value)
    assert "%" not in str(refused.value)


def spinning(seconds: float) -> Callable[[], None]:
    def call() -> None:
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    return call


def test_waiting_is_not_counted_and_nobody_is_always_first() -> None:
    order: list[str] = []
    spin = spinning(0.002)

    def waits() -> None:
        order.append("a")
        time.sleep(0.004)
        spin()

    def works() -> None:
        order.append("b")
        spin()

    threads = torch.get_num_threads()
    slow, fast = measuring.processor_seconds([waits, works], repeats=1)
    assert torch.get_num_threads() == threads
    assert 0.002 <= fast < 0.004  # with the clock on the wall the other one would take three times as long
    assert 0.002 <= slow < 0.004
    timed = order[2 * measuring.WARM_UPS :]
    assert len(timed) == 2 * measuring.REPEATS
    assert all({first, second} == {"a", "b"} for first, second in zip(timed[::2], timed[1::2], strict=True))
    assert {*timed[::2]} == {"a", "b"}


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv1d(4, 4, 1, groups=2), nn.Conv1d(4, 8, 1, groups=2)
        self.block = nn.TransformerEncoderLayer(8, 2, 8, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.two(self.one(x)).mT)


def test_a_refusal_names_every_layer_and_the_module_around_it() -> None:
    bnn = br.bayesianize(Mixed(), br.Diagonal(init_std=0.2), example=torch.randn(2, 4, 3))
    with pytest.raises(Unsupported) as refused:
        br.prune(bnn)
    said = str(refused.value)
    assert "3 layers cannot be pruned structurally" in said
    assert "'one' (Conv1d), 'two' (Conv1d): each of its 2 groups" in said
    assert "'block' (TransformerEncoderLayer): its projections are cut into heads" in said
    assert "linear1" not in said
    assert "Got:" not in said
    table = br.prune(bnn, structure="auto").pruning
    assert table["block.linear1.weight"].note.startswith("part of 'block': its projections")


def test_zeros_of_a_model_pruned_before_and_what_is_left_after_a_cut_are_counted() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2)).double()
    masks = {"0.weight": torch.ones(5, 4, dtype=torch.bool), "2.weight": torch.ones(2, 5, dtype=torch.bool)}
    masks["0.weight"][0, 0] = False
    masks["2.weight"][:, 1] = False
    small = br.prune(model(net, masks))
    table = small.pruning
    assert (table.left, table.after.weights, table.after.nonzero) == (27, 24, 23)  # unit 1 takes four weights along
    assert (table["0.weight"].left, table["0.weight"].nonzero_after) == (19, 15)
    assert table.zeros_before == 0
    assert "zero before" not in str(table)
    again = br.prune(br.bayesianize(small, br.Diagonal(init_std=1e-9))).pruning
    assert again.zeros_before == again["0.weight"].zeros_before == 1
    assert "1 weights were zero before" in str(again)


def test_a_percentage_is_recognised() -> None:
    with pytest.raises(InvalidArgument, match=r"Did you mean 0\.95\?"):
        br.prune(converted(), target_sparsity=95)


def test_a_file_says_which_layer_does_not_fit(tmp_path: Path) -> None:
    bnn = converted()
    bnn.homes()["3.weight"].mean.data[:, :3] = 0.0
    small = br.prune(bnn)
    file = save_pruned(small, tmp_path / "small.safetensors")
    wrong = {
        r"'3' \(Linear\(.*\)\)": nn.Sequential(*normalised()[:3], nn.Linear(4, 3)),
        "no layer '3'": normalised()[:2],
        r"'3\.weight' of shape \(4, 5\).*\(3, 5\)": nn.Sequential(*normalised()[:3], nn.Linear(8, 4)),
        "with '4.weight'": nn.Sequential(*normalised(), nn.Linear(3, 3)),
    }
    for words, into in wrong.items():
        with pytest.raises(InvalidArgument, match=f"does not fit.*{words}"):
            load_pruned(file, into=into)
    for words, module in {"a network that has been pruned": small, "a converted model": bnn}.items():
        with pytest.raises(InvalidArgument, match=f"goes into a plain one.*{words}"):
            load_pruned(file, into=module)


def test_a_sparse_tensor_is_described_in_one_line() -> None:
    tensor = torch.zeros(3, 2, 5, 5)
    tensor[1, 1, 2] = 1.0
    sparse = SparseTensor.of(tensor)
    assert repr(sparse) == f"SparseTensor(shape=(3, 2, 5, 5), 5 of 150 entries, {sparse.nbytes} bytes)"
    assert sparse.csr().shape == (3, 50)


def test_the_conversion_table_shows_the_group() -> None:
    bnn = br.bayesianize(normalised(), prior=br.GroupARD("row"))
    assert re.search(r"GroupARD\(group='row'\)", str(bnn.conversion))
    assert repr(br.GroupARD()).startswith("GroupARD(group='row'")

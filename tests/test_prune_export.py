"""Pruned networks leave the library: sparse tensors, a file, ONNX; and the table says what they cost."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.errors import InvalidArgument
from bayesrule.nn import BayesianModule
from bayesrule.prune import SparseTensor, dense_state, load_pruned, save_pruned, sparse_bytes, sparse_state
from prune_networks import ConvNet, masked_by_hand, model, random_masks, with_statistics


def convnet() -> nn.Module:
    torch.manual_seed(0)
    return with_statistics(ConvNet(6, nn.ELU, padding=1, norm="batch", bias=False, residual=True, mean=False))


def converted(**options: object) -> BayesianModule:
    net = convnet()
    return model(net, random_masks(net, torch.Generator().manual_seed(3), entries=0.8), **options)


X = torch.randn(5, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("structure", ["units", "weights"])
def test_a_saved_network_is_the_same_and_smaller_on_disk(structure: str, tmp_path: Path) -> None:
    small = br.prune(converted(), structure=structure)
    file = save_pruned(small, tmp_path / "small.safetensors")
    assert [path.name for path in tmp_path.iterdir()] == ["small.safetensors"]
    net = convnet()
    loaded = load_pruned(file, into=net)
    assert torch.equal(loaded.eval()(X), small.eval()(X))
    assert not loaded.training
    assert {name: value.shape for name, value in loaded.state_dict().items()} == {
        name: value.shape for name, value in small.state_dict().items()
    }
    assert net.stem.out_channels == 6
    assert file.stat().st_size > small.pruning.after.sparse_bytes


def test_a_file_is_read_with_suspicion(tmp_path: Path) -> None:
    file = save_pruned(br.prune(converted()), tmp_path / "small.safetensors")
    with pytest.raises(InvalidArgument, match="does not fit"):
        load_pruned(file, into=nn.Linear(2, 2))
    (tmp_path / "cut").write_bytes(file.read_bytes()[:-9])
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(InvalidArgument, match=r"There is no file .*missing"):
        load_pruned(tmp_path / "missing", into=convnet())
    for name in ("cut", "text"):
        with pytest.raises(InvalidArgument, match="cannot be read"):
            load_pruned(tmp_path / name, into=convnet())
    br.save(converted(), tmp_path / "model")
    with pytest.raises(InvalidArgument, match="not a pruned network"):
        load_pruned(tmp_path / "model" / "model.safetensors", into=convnet())
    with pytest.raises(InvalidArgument, match=r"Only a network from br\.prune"):
        save_pruned(convnet(), tmp_path / "plain")


def test_sparse_tensors_hold_what_is_not_zero() -> None:
    small = br.prune(converted(), structure="weights")
    state = sparse_state(small)
    sparse = {name: value for name, value in state.items() if isinstance(value, SparseTensor)}
    assert "hidden.weight" in sparse
    for name, value in sparse.items():
        weight = small.get_parameter(name).detach()
        entries = int((weight != 0).sum())
        assert value.nbytes == 4 * (len(weight) + 1) + entries * (2 + 8) < weight.nbytes
        assert torch.equal(value.dense(), weight)
        assert torch.equal(value.csr().to_dense(), weight.flatten(1))
    assert small.pruning.after.sparse_bytes == sparse_bytes(small) == sum(value.nbytes for value in state.values())
    assert all(torch.equal(value, small.state_dict()[name]) for name, value in dense_state(state).items())


def test_wide_rows_take_wider_indices_and_entries_outside_are_refused() -> None:
    wide = torch.zeros(2, 40000)
    wide[1, 39999] = 3.0
    sparse = SparseTensor.of(wide)
    assert sparse.columns.dtype == torch.int32
    assert torch.equal(sparse.dense(), wide)
    for columns in (torch.tensor([40000]), torch.tensor([-1])):
        with pytest.raises(InvalidArgument, match="outside"):
            SparseTensor((2, 40000), sparse.starts, columns, sparse.values).dense()
    for starts in ([0, 0, 2], [0, 1], [1, 1, 1], [0, 2, 1]):
        with pytest.raises(InvalidArgument, match="outside"):
            SparseTensor((2, 40000), torch.tensor(starts), sparse.columns, sparse.values).dense()


def test_the_table_counts_weights_bytes_multiply_adds_and_measures() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    masks = {name: torch.ones(p.shape, dtype=torch.bool) for name, p in net.named_parameters() if p.ndim > 1}
    masks["3.weight"].view(3, 4, 4)[:, 1] = False
    bnn = model(net, masks, likelihood=br.Categorical())
    x, y = torch.randn(8, 1, 4, 4), torch.arange(8) % 3
    table = br.prune(bnn, example=x, evaluate=[(x[:5], y[:5]), (x[5:], y[5:])]).pruning
    assert (table.before.weights, table.after.weights) == (36 + 48, 27 + 36)
    assert (table.before.bytes, table.after.bytes) == (4 * (36 + 4 + 48 + 3), 4 * (27 + 3 + 36 + 3))
    assert (table.before.multiply_adds, table.after.multiply_adds) == (4 * 36 + 48, 4 * 27 + 36)
    assert table.before.seconds > 0 < table.after.seconds
    for cost, plain in ((table.before, br.mean_module(bnn)), (table.after, masked_by_hand(bnn, masks))):
        logits = plain(x).detach()
        assert cost.measures["nll"] == pytest.approx(nn.functional.cross_entropy(logits, y).item(), rel=1e-5)
        assert cost.measures["accuracy"] == (logits.argmax(1) == y).double().mean().item()
    text = str(table)
    for words in (
        "multiply-adds per example",
        "ms for 8 examples, one CPU thread",
        "accuracy",
        "36 (75.0 %)",
        "12 of 16",
        "16×3",
    ):
        assert words in text
    own = br.prune(bnn, evaluate=lambda module: {"largest": module(x).max().item()}).pruning
    assert set(own.before.measures) == {"largest"}
    assert len(table) == 2
    with pytest.raises(InvalidArgument, match="No weight 'bias'"):
        table["bias"]


def test_modes_threads_and_gradients_stay_as_they_were() -> None:
    bnn = converted()
    bnn.train()
    bnn.module.norm.eval()
    bnn.homes()["out.weight"].mean.requires_grad_(False)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    small = br.prune(bnn, example=X)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert not any(module.training for module in small.modules())
    assert (bnn.training, bnn.module.inner_norm.training, bnn.module.norm.training) == (True, True, False)
    assert (small.out.weight.requires_grad, small.hidden.weight.requires_grad) == (False, True)
    twin = copy.deepcopy(small)
    assert str(twin.pruning) == str(small.pruning)
    small(X).square().sum().backward()
    assert small.hidden.weight.grad is not None


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_onnx_gives_the_same_outputs(tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason=f"the export to ONNX needs {package}")
    runtime = pytest.importorskip("onnxruntime", reason="the check needs onnxruntime")
    bnn = converted().float()
    small, x = br.prune(bnn).eval(), X.float()
    file = tmp_path / "small.onnx"
    batch = torch.export.Dim("batch")
    torch.onnx.export(small, (x,), str(file), dynamo=True, dynamic_shapes=({0: batch},), verbose=False)
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    more = torch.randn(9, 2, 6, 6, generator=torch.Generator().manual_seed(1))
    (got,) = session.run(None, {session.get_inputs()[0].name: more.numpy()})
    np.testing.assert_allclose(got, small(more).detach().numpy(), rtol=1e-5, atol=1e-5)

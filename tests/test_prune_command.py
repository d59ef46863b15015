"""``bayesrule prune``: a smaller model folder that predicts, what it costs, and what is refused."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.cli.onnx_export import plain_mixture
from bayesrule.cli.pruned_members import pruned_member
from bayesrule.data import separate_target
from bayesrule.nn import BayesianModule
from bayesrule.nn.home import Home
from bayesrule.prune import measuring
from bayesrule.train.tabular import TabularModel
from command_line import bayesrule, classes, numbers, refused, write
from prune_networks import masked_by_hand

FAST = ("--steps", "30", "--hidden", "8,6")


@pytest.fixture(autouse=True)
def _timed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks of types make a prediction slow; that calls are timed well is tested elsewhere."""
    monkeypatch.setattr(measuring, "REPEATS", 1)
    monkeypatch.setattr(measuring, "WARM_UPS", 0)


@pytest.fixture(scope="module", params=[classes, numbers])
def fitted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fitted")
    data = write(request.param(), folder / "toy.csv")
    ran = bayesrule("fit", data, *FAST, "--out", folder / "model")
    assert ran.code == 0, ran
    return folder


def weights_of(member: BayesianModule) -> list[Home]:
    return [home for name, home in member.homes().items() if name.endswith("weight")]


def test_the_example_of_the_help_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert bayesrule("fit", "wine", *FAST, "--out", "my-wine").code == 0
    (example,) = re.findall(r"Example: bayesrule (.+)", bayesrule("prune", "--help").said)
    ran = bayesrule(*shlex.split(example))
    assert ran.code == 0, ran
    assert "Weights dropped: " in ran.said


def test_the_pruned_model_is_smaller_and_predicts(fitted: Path, tmp_path: Path) -> None:
    out, data = tmp_path / "small", fitted / "toy.csv"
    ran = bayesrule("prune", fitted / "model", "--target-sparsity", 0.7, "-o", out, "--data", data)
    assert ran.code == 0, ran
    before, after = TabularModel.load(fitted / "model"), TabularModel.load(out)
    for old, new in zip(before.members.members, after.members.members, strict=True):
        small = br.prune(old, target_sparsity=0.7, select_inputs=False)
        x = torch.randn(5, len(before.encoder.feature_names))
        masked = masked_by_hand(old, small.pruning.masks)
        torch.testing.assert_close(new.at_mean(x), masked(x), rtol=1e-4, atol=1e-5)
        assert sum(row.numbers for row in new.conversion) == sum(p.numel() for p in new.parameters())
        assert new.conversion.numbers <= old.conversion.numbers
    parameters = sum(member.conversion.numbers for member in after.members.members)
    assert after.info["parameters"] == parameters < sum(each.conversion.numbers for each in before.members.members)
    assert f"{parameters:,}" in ran.said
    for words in ("Hidden units", "Weights", "Bytes", "ms for 64 rows, one CPU thread", "NLL", "70."):
        assert words in ran.said
    assert f"Measured on all 60 rows of {data}; training rows may be among them." in ran.said
    metrics = json.loads((out / "metrics.json").read_text())
    table = separate_target(pd.read_csv(data), after.target_name)
    want = after.evaluate(table.features, table.target)
    assert {key.replace("data_", "test_"): value for key, value in metrics.items()} == pytest.approx(want, rel=1e-6)
    assert all(key.startswith("data_") for key in metrics)
    done = bayesrule("predict", out, data, "-o", tmp_path / "predictions.csv")
    assert done.code == 0, done
    assert len(pd.read_csv(tmp_path / "predictions.csv")) == 60
    again = bayesrule("prune", out, "-o", tmp_path / "again")  # a pruned model can be pruned
    assert again.code == 0
    zeros = sum(int((home.mean == 0).sum()) for new in after.members.members for home in weights_of(new))
    assert zeros > 0
    assert f"; {zeros:,} were zero before." in again.said
    assert "Not measured: --data" in again.said


@pytest.mark.parametrize(
    "posterior",
    [br.Diagonal(0.1, 0.5), br.KTied(2, 0.1), br.MatrixNormal(0.1), br.MatrixNormalDiagonal("free", 0.1), br.Full(0.1)],
    ids=lambda family: type(family).__name__,
)
def test_what_is_left_has_the_marginal_posterior(posterior: object) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 3)).double()
    bnn = br.bayesianize(net, posterior)
    homes = bnn.homes()
    for home in homes.values():
        for name, parameter in home.posterior.named_parameters():
            if name != "mean":
                parameter.data += 0.2 * torch.randn_like(parameter)
    homes["0.weight"].mean.data.fill_(50.0)
    homes["2.weight"].mean.data.fill_(50.0)
    homes["2.weight"].mean.data[:, [1, 4]] = 0.0  # nobody reads these units
    lean, pruning = pruned_member(bnn, None, None)
    kept = torch.tensor([0, 2, 3, 5])
    assert pruning.after.weights == 4 * 4 + 4 * 3
    old, new = bnn.posteriors(), lean.posteriors()
    torch.testing.assert_close(new["0.weight"].variance, old["0.weight"].variance[:, kept], rtol=1e-10, atol=0)
    torch.testing.assert_close(new["2.weight"].variance, old["2.weight"].variance[kept], rtol=1e-10, atol=0)
    torch.testing.assert_close(new["0.bias"].variance, old["0.bias"].variance[kept], rtol=1e-12, atol=0)
    noise = torch.randn(4, 4, dtype=torch.float64)
    whole = torch.zeros(4, 6, dtype=torch.float64)
    whole[:, kept] = noise
    want = old["0.weight"].covariance.matmul(whole)[:, kept]
    torch.testing.assert_close(new["0.weight"].covariance.matmul(noise), want, rtol=1e-9, atol=1e-12)


def test_a_layer_cut_below_its_rank_becomes_diagonal() -> None:
    torch.manual_seed(0)
    bnn = br.bayesianize(nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 3)), br.KTied(2, 0.1))
    for name in ("0.weight", "2.weight"):
        bnn.homes()[name].mean.data.fill_(50.0)
    bnn.homes()["2.weight"].mean.data[:, 1:] = 0.0
    lean, _ = pruned_member(bnn, None, None)
    assert lean.conversion["0.weight"].posterior.startswith("Diagonal")
    old, new = bnn.posteriors()["0.weight"].stddev, lean.posteriors()["0.weight"].stddev
    torch.testing.assert_close(new, old[:, :1], rtol=1e-6, atol=0)


def mixture_by_hand(model: TabularModel, x: torch.Tensor) -> list[np.ndarray]:
    """Means and variances by the law of total variance, member by member."""
    moments = [model.members.likelihood.moments(member.at_mean(x)) for member in model.members.members]
    shares = [float(share) for share in model.members.shares]
    mean = sum(share * each.mean for share, each in zip(shares, moments, strict=True)) / sum(shares)
    if model.task == "classification":
        return [mean.detach().numpy()]
    second = sum(s * (each.variance + each.mean**2) for s, each in zip(shares, moments, strict=True)) / sum(shares)
    std = (second - mean**2).sqrt()
    return [(model.target.mean + model.target.std * mean).detach().numpy(), (model.target.std * std).detach().numpy()]


def test_onnx_is_the_mixture_at_the_mean(fitted: Path, tmp_path: Path) -> None:
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason=f"the export to ONNX needs {package}")
    runtime = pytest.importorskip("onnxruntime", reason="the check needs onnxruntime")
    out = tmp_path / "small"
    ran = bayesrule("prune", fitted / "model", "-o", out, "--onnx")
    assert ran.code == 0, ran
    model = TabularModel.load(out)
    session = runtime.InferenceSession(str(out / "model.onnx"), providers=["CPUExecutionProvider"])
    x = torch.randn(7, len(model.encoder.feature_names), generator=torch.Generator().manual_seed(0))
    got = session.run(None, {"features": x.numpy()})
    with torch.no_grad():
        plain = plain_mixture(model)(x)
    plain = [plain] if isinstance(plain, torch.Tensor) else list(plain)
    for one, other, hand in zip(got, plain, mixture_by_hand(model, x), strict=True):
        np.testing.assert_allclose(one, other.numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(one, hand, rtol=1e-4, atol=1e-4)
    assert bayesrule("prune", fitted / "model", "-o", out, "--force").code == 0
    assert not (out / "model.onnx").exists()  # it was that of another model


def test_what_cannot_be_done_is_refused_and_leaves_nothing(fitted: Path, tmp_path: Path) -> None:
    model, out = fitted / "model", tmp_path / "small"
    refused(bayesrule("prune", model, "-o", model), 2, "would replace the model")
    refused(bayesrule("prune", tmp_path / "none", "-o", out), 2, "not a model folder")
    refused(bayesrule("prune", model / "model.safetensors", "-o", out), 2, "is a file, not a folder")
    refused(bayesrule("prune", fitted, "-o", out), 2, "not a model folder", "toy.csv", "written by bayesrule fit")
    refused(bayesrule("prune", model, "-o", out, "--target-sparsity", 1.5), 2, "between 0 and 1", "Got: 1.5")
    refused(bayesrule("prune", model, "-o", out, "--target-sparsity", 95), 2, r"Did you mean 0\.95\?")
    digits = bayesrule("prune", model, "-o", out, "--data", "digits")
    refused(digits, 2, "need its target, '(kind|price)'", "columns that the model was fitted on")
    assert "Name one" not in digits.complaint
    refused(bayesrule("prune", model, "-o", out, "--threshold", -99), 2, "Every weight would be dropped", "Raise")
    both = bayesrule("prune", model, "-o", out, "--threshold", 3, "--target-sparsity", 0.5)
    refused(both, 2, "either a threshold or a target")
    refused(bayesrule("prune", model, "-o", out, "--data", tmp_path / "none.csv"), 2, "none.csv")
    assert not out.exists()


def test_a_network_of_ones_own_is_pruned_in_python(tmp_path: Path) -> None:
    br.save(br.bayesianize(nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 3))), tmp_path / "own")
    ran = bayesrule("prune", tmp_path / "own", "-o", tmp_path / "small")
    refused(ran, 2, "prunes models of tables", r"br\.prune\(br\.load\(folder, into=network\)\)")
    ran = bayesrule("compress", tmp_path / "own", "--rank", 1, "-o", tmp_path / "small")
    refused(ran, 2, "compresses models of tables", r"br\.compress\(br\.load\(folder, into=network\), rank\)")


def test_the_generator_is_left_alone() -> None:
    torch.manual_seed(0)
    bnn: BayesianModule = br.bayesianize(nn.Sequential(nn.Linear(4, 6), nn.SiLU(), nn.Linear(6, 3)), br.Diagonal(0.01))
    state = torch.get_rng_state()
    pruned_member(bnn, None, None)
    assert torch.equal(torch.get_rng_state(), state)

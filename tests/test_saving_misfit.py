"""Configurations that make no sense, and modules that a model does not fit."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

import bayesrule as br
from bayesrule.errors import BayesruleError, InvalidArgument
from model_folders import CONFIG, TENSORS, Net, forge, refused, sound_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sound model."""
    return sound_model(tmp_path / "model")


@pytest.mark.parametrize("version", [0, 2, "1", None, [1]])
def test_another_version_is_refused(folder: Path, version: Any) -> None:
    forge(folder, lambda config: config.update(version=version))
    refused(folder, "another version of the format than this one, 1.*Use the version of bayesrule that wrote it")


@pytest.mark.parametrize("entry", ["posterior", "prior", "estimator", "bias", "likelihood", "shared", "parameters"])
def test_a_configuration_without_an_entry_is_refused(folder: Path, entry: str) -> None:
    forge(folder, lambda config: config.pop(entry))
    refused(folder, f"is incomplete.*missing.*{entry}")


SPECS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "unknown family": (lambda c: c["posterior"].update(first={"name": "Cauchy"}), "Not a posterior of.*'Cauchy'"),
    "a prior as a family": (lambda c: c["posterior"].update(first={"name": "Normal"}), "Not a posterior"),
    "unknown prior": (lambda c: c["prior"].update(first={"name": "Laplace"}), "Not a prior.*'Laplace'"),
    "a value as a prior": (lambda c: c["prior"].update(first={"name": "DiagonalNormal"}), "Not a prior"),
    "a function as a prior": (lambda c: c["prior"].update(first={"name": "kl_divergence"}), "Not a prior"),
    "an abstract estimator": (lambda c: c["estimator"].update(first={"name": "Estimator"}), "Estimator does not take"),
    "unknown likelihood": (lambda c: c.update(likelihood={"name": "os.system"}), "Not a likelihood"),
    "no name": (lambda c: c["posterior"].update(first={"rank": 2}), "Not a posterior.*None"),
    "no spec": (lambda c: c["posterior"].update(first=3), "Not a posterior"),
    "an unknown argument": (lambda c: c["posterior"]["first"].update(colour=1), "KTied does not take.*colour"),
    "a rank of zero": (lambda c: c["posterior"]["first"].update(rank=0), "at least 1"),
    "a rank in words": (lambda c: c["posterior"]["first"].update(rank="two"), "KTied does not take"),
    "a negative scale": (lambda c: c["posterior"]["first"].update(init_std=-1.0), "positive"),
    "another rank": (lambda c: c["posterior"]["first"].update(rank=1), "does not fit.*log_factor"),
    "another family": (lambda c: c["posterior"].update(first={"name": "Diagonal"}), "does not fit.*log_std"),
    "an empty tensor": (lambda c: c["likelihood"].update(noise_std={}), "Gaussian does not take"),
    "a tensor of nothing": (lambda c: c["likelihood"]["noise_std"].update(tensor=None), "Gaussian does not take"),
    "a ragged tensor": (lambda c: c["likelihood"]["noise_std"].update(tensor=[[1.0], []]), "Gaussian does not take"),
    "no dtype": (lambda c: c["likelihood"]["noise_std"].update(dtype="load"), "Gaussian does not take"),
    "another likelihood": (lambda c: c.update(likelihood={"name": "Categorical"}), "does not fit.*log_noise_std"),
    "no likelihood": (lambda c: c.update(likelihood=None), "does not fit.*log_noise_std"),
    "unknown bias": (lambda c: c.update(bias="none"), "bias.*none"),
    "another bias": (lambda c: c.update(bias="point"), "does not fit.*first.bias"),
    "unknown layer": (lambda c: c["posterior"].update(third={"name": "Diagonal"}), "."),
    "no layer": (lambda c: c.update(posterior={}), "."),
    "a missing prior": (lambda c: c["prior"].pop("first"), "No entry for layer 'first'"),
    "shared numbers": (lambda c: c.update(shared=3), "cannot be built.*TypeError"),
    "lists for families": (lambda c: c.update(posterior=[1]), "cannot be built"),
    "no parameters": (lambda c: c.update(parameters=[]), "does not fit.*first.weight: saved None"),
    "odd parameters": (lambda c: c.update(parameters=[3]), "cannot be built"),
}  # fmt: skip


@pytest.mark.parametrize(("edit", "match"), SPECS.values(), ids=SPECS)
def test_a_configuration_that_makes_no_sense_is_refused(
    folder: Path, edit: Callable[[dict[str, Any]], Any], match: str
) -> None:
    forge(folder, edit)
    refused(folder, match)


NAMES = ["Diagonal", "Normal", "first", "KTied", [], {}, [[]], {"name": "Full"}]


VALUES = st.none() | st.booleans() | st.integers(-3, 5) | st.floats() | st.text(max_size=3) | st.sampled_from(NAMES)


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_change_of_the_configuration_is_refused_or_harmless(folder: Path, data: st.DataObject) -> None:
    original = (folder / CONFIG).read_text(), (folder / TENSORS).read_bytes()

    def edit(config: dict[str, Any]) -> None:
        node: Any = config
        while True:  # down to some entry, which is replaced, removed or added to
            keys = sorted(node) if isinstance(node, dict) else range(len(node))
            key = data.draw(st.sampled_from(keys), label="key")
            below = node[key]
            if isinstance(below, dict | list) and below and data.draw(st.integers(0, 4), label="down"):
                node = below
                continue
            if data.draw(st.booleans(), label="remove"):
                del node[key]
            else:
                node[key] = data.draw(VALUES, label="value")
            return

    try:
        forge(folder, edit)
        with contextlib.suppress(BayesruleError):
            loaded = br.load(folder, into=Net())
            assert br.predict(loaded, torch.zeros(2, 5), 2).outputs.isfinite().all()
    finally:
        (folder / CONFIG).write_text(original[0])
        (folder / TENSORS).write_bytes(original[1])


def test_a_module_of_another_shape_is_refused_with_the_differences(folder: Path) -> None:
    message = refused(folder, r"does not fit the module.*Build the network", into=Net(hidden=7))
    for difference in (
        "first.weight: saved [4, 5], module [7, 5]",
        "first.bias: saved [4], module [7]",
        "norm.weight: saved [4], module [7]",
        "norm.bias: saved [4], module [7]",
        "second.weight: saved [3, 4], module [3, 7]",
    ):
        assert difference in message
    message = refused(folder, "does not fit the module", into=nn.Linear(5, 4))
    assert "first.weight: saved [4, 5], module None" in message
    assert "and 3 more" in message
    more = Net()
    more.extra = nn.Linear(1, 1)
    message = refused(folder, "does not fit the module", into=more)
    assert "extra.weight: saved None, module [1, 1]" in message
    assert "first" not in message


def test_other_buffers_and_ties_do_not_fit_either(folder: Path) -> None:
    plain = Net()
    plain.norm = nn.BatchNorm1d(4, track_running_stats=False)
    assert "module.norm.running_mean: saved [4], module None" in refused(folder, "does not fit", into=plain)
    buffered = Net()
    buffered.register_buffer("scale", torch.ones(2))
    assert "module.scale: saved None, module [2]" in refused(folder, "does not fit", into=buffered)
    tied = Net(hidden=4)
    tied.second = nn.Linear(4, 4)
    tied.first.bias = tied.second.bias
    refused(folder, "does not fit the module", into=tied)


def test_modules_that_cannot_be_converted_are_refused(folder: Path) -> None:
    lazy = Net()
    lazy.first = nn.LazyLinear(4)
    with pytest.raises(InvalidArgument, match=r"first\.weight belongs to a lazy module"):
        br.load(folder, into=lazy)
    with pytest.raises(BayesruleError, match="plain network it was converted from"):
        br.load(folder, into=br.load(folder, into=Net()))

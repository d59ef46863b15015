"""Models written and read back: the same to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle, product
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule import likelihoods
from bayesrule.posteriors import Family
from bayesrule.priors import Prior
from predict_networks import Tied
from round_trips import (
    TOKENS,
    Extras,
    Misleading,
    Recurrent,
    Untraceable,
    check_equal,
    check_round_trip,
    convolutional,
    inputs,
    mlp,
    moved,
)

FAMILIES = [
    br.Diagonal(0.1),
    br.KTied(2, 0.1),
    br.MatrixNormal(0.1),
    br.MatrixNormalDiagonal("kronecker", 0.1),
    br.MatrixNormalDiagonal("free", 0.1),
    br.Full(0.1),
]


PRIORS = [
    br.Normal(0.2),
    br.Normal(0.2, mean=0.1),
    br.Normal(0.5, mean="pretrained"),
    br.Normal(torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64)),
    br.HeNormal(bias_std=0.3),
    br.LearnedNormal(),
    br.LearnedNormal("model", mean=0.1),
    br.ARD(),
    *(br.GroupARD(group, learn) for group in ("row", "column", "both") for learn in ("closed-form", "gradient")),
]


ESTIMATORS = [br.Auto(), br.WeightSample(), br.LocalReparam(), br.Flipout(), br.Mean()]


def gamma_noise() -> likelihoods.Likelihood:
    noise = likelihoods.GaussianGammaNoise(5.0, 0.3)
    noise.update(3.0, 20)
    return noise


LIKELIHOODS: dict[str, Callable[[], likelihoods.Likelihood | None]] = {
    "none": lambda: None,
    "gaussian": lambda: br.Gaussian(0.3),
    "gaussian learned": lambda: br.Gaussian(0.3, learn=True),
    "gaussian per output": lambda: br.Gaussian(torch.tensor([0.3, 0.1, 2.0])),
    "gaussian double": lambda: br.Gaussian(torch.tensor(0.1, dtype=torch.float64)),
    "gamma noise": gamma_noise,
    "heteroscedastic": lambda: br.HeteroscedasticGaussian(0.02),
    "gaussian mixture": lambda: br.GaussianMixture(components=1),
    "student t": lambda: likelihoods.StudentT(3.0, 0.7),
    "categorical": br.Categorical,
    "bernoulli": br.Bernoulli,
    "poisson": br.Poisson,
}


@pytest.mark.parametrize(
    ("family", "prior", "estimator"),
    [(*pair, estimator) for pair, estimator in zip(product(FAMILIES, PRIORS), cycle(ESTIMATORS), strict=False)],
    ids=repr,
)
def test_every_family_with_every_prior(family: Family, prior: Prior, estimator: Any, tmp_path: Path) -> None:
    if isinstance(estimator, br.Flipout) and not isinstance(family, br.Diagonal | br.KTied):
        estimator = br.WeightSample()
    net = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 3)).double()
    check_round_trip(net, tmp_path / "m", inputs(5), posterior=family, prior=prior, estimator=estimator)


@pytest.mark.parametrize("likelihood", LIKELIHOODS.values(), ids=LIKELIHOODS)
@pytest.mark.parametrize(
    ("estimator", "dtype"), [*zip(ESTIMATORS, cycle([torch.float64, torch.float32]), strict=False)]
)
def test_every_likelihood_with_every_estimator(
    likelihood: Callable[[], Any], estimator: Any, dtype: torch.dtype, tmp_path: Path
) -> None:
    outputs = 4 if likelihood is LIKELIHOODS["heteroscedastic"] else 3
    net = nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, outputs)).to(dtype)
    options = {"estimator": estimator, "likelihood": likelihood()}
    check_round_trip(net, tmp_path / "m", inputs(5, dtype=dtype), **options)


PER_LAYER = {"posterior": {"0": br.Diagonal(0.1), "2": br.Point(), "*": br.Full(0.1)},
             "prior": {"0": br.ARD(), "*": br.Normal(0.3)},
             "estimator": {"4": br.LocalReparam(), "*": br.WeightSample()}}  # fmt: skip


MISLEADING = {lambda name, _: name == "named.a*": br.Full(0.1),
              lambda name, _: name == "named.a[0]": br.MatrixNormal(0.1), "last_layer": br.Diagonal(0.1),
              "*": br.KTied(3, 0.1)}  # fmt: skip


CASES: dict[str, tuple[Callable[[], nn.Module], Tensor, dict[str, Any]]] = {
    "bare layer": (lambda: nn.Linear(5, 3), inputs(5), {}),
    "tied": (Tied, TOKENS, {"posterior": br.MatrixNormal(0.1)}),
    "tied points": (lambda: nn.Sequential(Tied(), nn.Linear(6, 2)), TOKENS, {"layers": "1"}),
    "augmented": (
        mlp, inputs(5),
        {"bias": "augment", "posterior": br.MatrixNormal(0.1), "prior": br.GroupARD("row", "gradient")},
    ),
    "point biases": (mlp, inputs(5), {"bias": "point"}),
    "per layer": (mlp, inputs(5), PER_LAYER),
    "shared scale": (mlp, inputs(5), {"prior": br.LearnedNormal("model")}),
    "last layer": (mlp, inputs(5), {"layers": "last_layer"}),
    "channels": (
        convolutional, inputs(2, 4, 4),
        {"prior": br.GroupARD("channel", "gradient"), "posterior": br.Diagonal(0.1)},
    ),
    "statistics": (convolutional, inputs(2, 4, 4), {"layers": nn.Linear}),
    "recurrent": (Recurrent, inputs(5, 3), {"posterior": br.Diagonal(0.1)}),
    "transformer": (lambda: nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), inputs(3, 4), {}),
    "untraceable": (Untraceable, inputs(5), {"example": inputs(5), "estimator": br.LocalReparam()}),
    "untraced": (Untraceable, inputs(5), {"estimator": br.LocalReparam()}),
    "misleading": (Misleading, inputs(5), {"posterior": MISLEADING}),
    "extras": (Extras, inputs(5), {}),
}  # fmt: skip


@pytest.mark.parametrize(("network", "x", "options"), CASES.values(), ids=CASES)
def test_every_kind_of_network(
    network: Callable[[], nn.Module], x: Tensor, options: dict[str, Any], tmp_path: Path
) -> None:
    check_round_trip(network().double(), tmp_path / "m", x, **options)


def test_a_layer_found_to_be_used_twice_stays_drawn_once(tmp_path: Path) -> None:
    net = Untraceable().double()
    bnn = br.bayesianize(net, br.Diagonal(0.1), estimator=br.LocalReparam(), example=inputs(5))
    assert bnn.draws.shared == {"twice.weight", "twice.bias"}
    loaded = br.load(br.save(bnn, tmp_path), into=net)
    assert loaded.draws.shared == bnn.draws.shared
    assert isinstance(loaded.module.wide.estimator, br.LocalReparam)
    assert loaded.conversion["wide.weight"] == bnn.conversion["wide.weight"]


def test_tied_weights_are_still_tied(tmp_path: Path) -> None:
    loaded = check_round_trip(Tied().double(), tmp_path / "m", TOKENS)
    assert loaded.module.embedding.homes["weight"] is loaded.module.out.homes["weight"]
    points = check_round_trip(nn.Sequential(Tied(), nn.Linear(6, 2)).double(), tmp_path / "m", TOKENS, layers="1")
    assert points.module[0].embedding.weight is points.module[0].out.weight


def test_what_a_prior_learns_or_is_centred_on_is_kept(tmp_path: Path) -> None:
    net = nn.Linear(5, 3).double()
    learned = check_round_trip(net, tmp_path / "m", inputs(5), prior=br.GroupARD("both", "gradient"))
    assert isinstance(learned.homes()["weight"].hyperparameters.log_tau, nn.Parameter)
    centred = check_round_trip(net, tmp_path / "m", inputs(5), prior=br.Normal(0.1, mean="pretrained"))
    assert not isinstance(centred.homes()["weight"].hyperparameters.centre, nn.Parameter)


@pytest.mark.parametrize("std", [np.float32(0.3), torch.tensor([0.1, 0.2, 0.7]).half()])
def test_numbers_of_other_libraries_and_dtypes_are_kept_exactly(
    std: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # which refuses numpy's integers
    options = {"posterior": br.KTied(np.int64(2), np.float64(0.1)), "prior": br.Normal(std)}
    check_round_trip(nn.Linear(5, 3).double(), tmp_path / "m", inputs(5), **options)


def test_layers_of_different_dtypes_keep_theirs(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(5, 3), nn.Linear(3, 2).double())
    bnn = moved(br.bayesianize(net, likelihood=br.Gaussian(0.1).bfloat16()))
    loaded = br.load(br.save(bnn, tmp_path), into=net)
    assert {name: t.dtype for name, t in bnn.state_dict().items()} == {
        n: t.dtype for n, t in loaded.state_dict().items()
    }
    assert all(torch.equal(t, loaded.state_dict()[name]) for name, t in bnn.state_dict().items())


def test_the_network_it_is_loaded_into_may_have_another_dtype(tmp_path: Path) -> None:
    bnn = moved(br.bayesianize(nn.Linear(5, 3).double(), likelihood=br.Gaussian(0.1)))
    check_equal(bnn, br.load(br.save(bnn, tmp_path), into=nn.Linear(5, 3)), inputs(5))


def test_a_loaded_model_trains_on(tmp_path: Path) -> None:
    net = mlp().double()
    loaded = br.load(br.save(br.bayesianize(net), tmp_path), into=net)
    (loaded(inputs(5)).square().mean() + br.kl(loaded)).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in loaded.parameters())

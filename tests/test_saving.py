"""Models written and read back: the same to the last bit, and never half written."""

from __future__ import annotations

import copy
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from itertools import cycle, product
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import bayesrule as br
from bayesrule import likelihoods
from bayesrule.errors import Unsupported
from bayesrule.posteriors import Family
from bayesrule.priors import Prior

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
    "student t": lambda: likelihoods.StudentT(3.0, 0.7),
    "categorical": br.Categorical,
    "bernoulli": br.Bernoulli,
    "poisson": br.Poisson,
}


def inputs(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(4, *shape, generator=torch.Generator().manual_seed(2), dtype=dtype)


def moved(bnn: br.nn.BayesianModule) -> br.nn.BayesianModule:
    """Away from where a conversion starts, so that nothing is right by having been left alone."""
    with torch.no_grad():
        for tensor in (*bnn.parameters(), *bnn.buffers()):
            if tensor.is_floating_point():
                tensor += 0.05 * torch.rand_like(tensor)
            else:
                tensor += 1
    return bnn


def check_round_trip(net: nn.Module, folder: Path, *x: Tensor, **options: Any) -> br.nn.BayesianModule:
    """Save, load into another copy of the network, and compare everything."""
    bnn = moved(br.bayesianize(net, **options))
    br.save(bnn, folder)
    other = fresh(net)
    state, generator = {name: tensor.clone() for name, tensor in other.state_dict().items()}, torch.get_rng_state()
    loaded = br.load(folder, into=other)
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(tensor, state[name]) for name, tensor in other.state_dict().items())
    shutil.rmtree(folder)  # nothing may still be read from it
    check_equal(bnn, loaded, *x)
    return loaded


def fresh(net: nn.Module) -> nn.Module:
    """A network of the same architecture with other weights."""
    other = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.normal_()
    return other


def check_equal(bnn: br.nn.BayesianModule, loaded: br.nn.BayesianModule, *x: Tensor) -> None:
    before, after = bnn.state_dict(), loaded.state_dict()
    assert list(before) == list(after)
    for name, tensor in before.items():
        assert tensor.dtype == after[name].dtype, name
        assert torch.equal(tensor, after[name]), name
    assert torch.equal(br.kl(bnn), br.kl(loaded))
    assert str(bnn.conversion) == str(loaded.conversion)
    assert {type(p) for p in bnn.parameters()} == {type(p) for p in loaded.parameters()}
    assert repr(bnn.likelihood) == repr(loaded.likelihood)
    predictions = [br.predict(each, x, 3, strategy="loop") for each in (bnn, loaded)]
    assert torch.equal(*(p.outputs for p in predictions))
    if bnn.likelihood is not None:
        assert torch.equal(*(p.mean for p in predictions))
        assert torch.equal(*(p.std for p in predictions))
        assert torch.equal(bnn.likelihood.kl(), loaded.likelihood.kl())
    for training in (True, False):  # the estimator of every layer, too
        passes = []
        for each in (bnn.train(training), loaded.train(training)):
            torch.manual_seed(1)
            passes.append(each(*x))
        assert torch.equal(*passes)


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


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(6, 3, padding_idx=0), nn.Linear(3, 6)
        self.out.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(torch.tanh(self.embedding(tokens)))


class Untraceable(nn.Module):
    """Its path depends on its input; one layer is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.twice = nn.Linear(5, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.wide(x) if float(x.detach().sum()) > -1e9 else x
        return self.twice(self.twice(hidden))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0])


class Misleading(nn.Module):
    """Layers called like presets and like patterns."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.all, self.last_layer = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.named = nn.ModuleDict({"a[0]": nn.Linear(4, 4), "a*": nn.Linear(4, 4), "ab": nn.Linear(4, 3)})

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.attention, self.all, self.last_layer, *self.named.values()):
            x = layer(x)
        return x


class Extras(nn.Module):
    """Buffers of several kinds, some of them views of others, and an empty one."""

    counts: Tensor
    whole: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.register_buffer("counts", torch.arange(3))
        self.register_buffer("whole", torch.rand(4, 3))
        self.register_buffer("part", self.whole[:2])
        self.register_buffer("turned", torch.rand(3, 2).T)
        self.register_buffer("empty", torch.zeros(0, 3))
        self.register_buffer("flag", torch.tensor(True).int())
        self.register_buffer("coarse", torch.rand(2).bfloat16())
        self.register_buffer("forgotten", torch.rand(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * self.whole.sum() + self.counts


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 3))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, groups=2), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 2, 2), nn.Flatten(), nn.Linear(18, 2)
    )  # fmt: skip


TOKENS = torch.tensor([[1, 5, 0], [2, 2, 4]])
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


@pytest.mark.parametrize("std", [np.float32(0.3), np.array([0.1, 0.2, 0.7]), torch.tensor([0.1, 0.2, 0.7]).half()])
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


def test_a_loaded_model_does_not_depend_on_the_file(tmp_path: Path) -> None:
    net = nn.Linear(5, 3).double()
    bnn = moved(br.bayesianize(net))
    loaded = br.load(br.save(bnn, tmp_path), into=net)
    with (tmp_path / "model.safetensors").open("r+b") as file:  # in place: no new file, as a rename would make
        file.write(bytes(1000))
        file.truncate()
    check_equal(bnn, loaded, inputs(5))


def test_a_folder_holds_json_and_safetensors_for_everyone_to_read(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        folder = br.save(br.bayesianize(mlp(), prior=br.Normal(0.1)), tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert folder == tmp_path / "a" / "b"
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o640}
    config = json.loads((folder / "config.json").read_text())
    assert config["format"] == "bayesrule-model"
    assert config["prior"]["0"] == {"name": "Normal", "std": 0.1, "mean": 0.0}
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert json.loads(file.metadata()["config"]) == config
        assert "module.0.homes.weight.posterior.mean" in file.keys()  # noqa: SIM118, not a dict


def test_nothing_is_pickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("pickle was used")

    net = mlp()
    bnn = br.bayesianize(net)
    for module, names in (
        (pickle, ("dump", "dumps", "load", "loads", "Pickler", "Unpickler")),
        (torch, ("save", "load")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, refused)
    br.load(br.save(bnn, tmp_path), into=net)
    sources = Path(br.__file__).parent.rglob("*.py")
    assert not [path.name for path in sources if re.search(r"torch\.load|import pickle|from pickle", path.read_text())]


def test_what_could_not_be_read_back_is_not_written(tmp_path: Path) -> None:
    class KTied(br.KTied):
        """Not the library's, in spite of its name."""

    class Stateful(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"calls": 3}

        def set_extra_state(self, state: Any) -> None: ...

    with pytest.raises(Unsupported, match="KTied cannot be saved: it is not of bayesrule"):
        br.save(br.bayesianize(nn.Linear(5, 3), KTied(2)), tmp_path / "m")
    with pytest.raises(Unsupported, match=r"keeps tensors only.*0._extra_state"):
        br.save(br.bayesianize(nn.Sequential(Stateful(5, 3))), tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_a_model_can_be_written_over_another(tmp_path: Path) -> None:
    br.save(br.bayesianize(mlp()), tmp_path)
    (tmp_path / "metrics.json").write_text("{}")
    conv = br.bayesianize(nn.Conv2d(2, 3, 3), br.MatrixNormal(0.1), likelihood=br.Poisson())
    br.save(conv, tmp_path)
    check_equal(conv, br.load(tmp_path, into=nn.Conv2d(2, 3, 3)), inputs(2, 5, 5, dtype=torch.float32))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "metrics.json", "model.safetensors"]

"""What a conversion refuses, and what it leaves alone and says so."""

from __future__ import annotations

import inspect
import warnings
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.errors import BayesruleError, InvalidArgument
from bayesrule.nn.converter import Converter
from bayesrule.nn.self_check import ConversionError


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 2))


def encoder() -> nn.Module:
    return nn.ModuleDict({"encoder": mlp(), "head": nn.Linear(2, 2)})


def diverged() -> nn.Module:
    net = mlp()
    with torch.no_grad():
        net[2].weight[0, 1], net[2].weight[1, 1] = torch.nan, torch.inf
    return net


def lazy() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.LazyLinear(2))


REFUSALS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "misspelt layer": (encoder, {"layers": "haed"}, r"No layer matches 'haed'.*Did you mean 'head'\?"),
    "misspelt preset": (mlp, {"layers": "lastlayer"}, r"Did you mean 'last_layer'\?"),
    "one of several": (encoder, {"layers": ["head", "encodr.*"]}, r"No layer matches 'encodr\.\*'.*'encoder\.[02]'"),
    "absent type": (mlp, {"layers": nn.Conv2d}, r"No layer matches .*Conv2d.*shell pattern"),
    "predicate of none": (mlp, {"layers": lambda *_: False}, "No layer matches"),
    "no layers": (mlp, {"layers": []}, "No weight became Bayesian"),
    "misspelt posterior": (encoder, {"posterior": {"haed": br.Diagonal(), "*": br.Point()}}, "Did you mean 'head'"),
    "misspelt prior": (encoder, {"prior": {"hed": br.Normal(), "*": br.Normal()}}, "Did you mean 'head'"),
    "misspelt estimator": (encoder, {"estimator": {"hea": br.Mean(), "*": br.Auto()}}, "Did you mean 'head'"),
    "incomplete mapping": (encoder, {"posterior": {"head": br.Diagonal()}}, r'No entry for layer .*Add one for "\*"'),
    "only points": (mlp, {"posterior": br.Point()}, "No weight became Bayesian"),
    "not finite": (diverged, {}, r"weights of 2\.weight are not finite.*2 of 10 entries"),
    "nothing to convert": (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.ReLU()), {}, "no layer that can be converted"),
    "complex": (lambda: nn.Linear(4, 5, dtype=torch.complex64), {}, "no layer that can be converted"),
    "bayesian": (lambda: br.bayesianize(mlp()), {}, r"Bayesian already.*mean_module"),
    "bayesian inside": (lambda: nn.Sequential(br.bayesianize(mlp()).module), {}, "Bayesian already"),
    "no values": (lambda: nn.Linear(4, 5, device="meta"), {}, r"weight on the meta device.*to_empty"),
    "lazy": (lazy, {}, r"1\.weight belongs to a lazy module"),
}


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_refuses_what_it_cannot_convert_and_says_why(case: str) -> None:
    make, options, message = REFUSALS[case]
    net = make()
    with pytest.raises(InvalidArgument, match=message):
        br.bayesianize(net, **options)


def test_refuses_an_unknown_treatment_of_biases() -> None:
    convert = inspect.unwrap(Converter.__init__)  # the tests' type checks would refuse it first
    with pytest.raises(InvalidArgument, match=r'"diagonal", "point" or "augment".*\'full\''):
        convert(object.__new__(Converter), mlp(), br.Diagonal(), br.Normal(), br.Auto(), "full", None)


def test_the_message_names_every_layer_there_is() -> None:
    with pytest.raises(InvalidArgument) as raised:
        br.bayesianize(encoder(), layers="decoder*")
    assert all(repr(name) in str(raised.value) for name in ("encoder.0", "encoder.2", "head"))


def test_the_objective_refuses_what_it_cannot_use() -> None:
    bnn = br.bayesianize(mlp())
    with pytest.raises(InvalidArgument, match=r"needs a likelihood.*br\.Categorical"):
        br.NegativeELBO(bnn, n_data=10)
    for n_data in (0, -5):
        with pytest.raises(InvalidArgument, match="number of training examples"):
            br.NegativeELBO(bnn, n_data, br.Categorical())
    for temperature in (0.0, -1.0, float("nan")):
        with pytest.raises(InvalidArgument, match="temperature must be positive"):
            br.NegativeELBO(bnn, 10, br.Categorical(), temperature=temperature)


class Detached(nn.Module):
    """Reads its layer's weight so that nothing of the draw is left."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * 0


def test_an_example_shows_outputs_that_are_not_random() -> None:
    br.bayesianize(Detached())
    with pytest.raises(ConversionError, match="not random in train"):
        br.bayesianize(Detached(), example=torch.randn(2, 4))
    assert issubclass(ConversionError, BayesruleError)


def test_a_spread_below_the_precision_is_refused() -> None:
    net = nn.Linear(4, 3, bias=False)
    nn.init.ones_(net.weight)
    with pytest.raises(ConversionError, match=r"weight is not random.*init_std"):
        br.bayesianize(net, br.Diagonal(init_std=1e-12))
    br.bayesianize(net.double(), br.Diagonal(init_std=1e-12))


def test_a_single_half_precision_number_is_random_enough() -> None:
    net = nn.Linear(4, 1).half()
    nn.init.constant_(net.bias, 2.0)  # neighbouring numbers are 0.002 apart: every sixth pair of draws is equal
    for seed in range(40):
        torch.manual_seed(seed)
        br.bayesianize(net, br.Diagonal())


LEFT_ALONE: dict[str, tuple[Any, str, str]] = {
    "norm": (lambda: nn.LayerNorm(3), "0.weight", "norm layer"),
    "batch norm": (lambda: nn.BatchNorm2d(3), "0.bias", "norm layer"),
    "bag": (lambda: nn.EmbeddingBag(4, 3), "0.weight", "EmbeddingBag is not a layer bayesrule can convert"),
    "bilinear": (lambda: nn.Bilinear(2, 2, 3), "0.weight", "Bilinear is not a layer bayesrule can convert"),
    "activation": (nn.PReLU, "0.weight", "PReLU is not a layer bayesrule can convert"),
    "list": (lambda: nn.ParameterList([torch.ones(2)]), "0.0", "ParameterList is not a layer bayesrule can convert"),
    "max norm": (lambda: nn.Embedding(4, 3, max_norm=1.0), "0.weight", "max_norm rescales its weight in place"),
    "sparse": (lambda: nn.Embedding(4, 3, sparse=True), "0.weight", "sparse gradients"),
    "empty": (lambda: nn.Linear(3, 0), "0.weight", "a weight has no entries"),
    "complex": (lambda: nn.Linear(3, 3, dtype=torch.complex64), "0.bias", "not real floating-point numbers"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT_ALONE)
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors is a no-op")
def test_what_is_left_alone_is_shown_with_its_reason(case: str) -> None:
    make, name, reason = LEFT_ALONE[case]
    bnn = br.bayesianize(nn.Sequential(make(), nn.Linear(3, 2)))
    row = bnn.conversion[name]
    assert row.posterior == "Point"
    assert reason in row.note
    assert row.numbers == bnn.get_parameter(f"module.{name}").numel()
    assert reason in str(bnn.conversion)
    assert bnn.conversion["1.weight"].posterior == "KTied(rank=2)"


def test_an_unknown_parameter_of_the_table_is_named() -> None:
    with pytest.raises(InvalidArgument, match=r"no parameter 'bais'.*'bias'"):
        br.bayesianize(nn.Linear(2, 2)).conversion["bais"]


class Masked(nn.Linear):
    """A subclass whose forward is not its parent's."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.tril(), self.bias)


def patched() -> nn.Module:
    layer = nn.Linear(4, 4)
    layer.forward = partial(Masked.forward, layer)  # type: ignore[method-assign]
    return layer


@pytest.mark.parametrize("layer", [Masked(4, 4), patched()], ids=["subclass", "patch"])
@pytest.mark.parametrize("estimator", [br.LocalReparam(), br.Flipout(), br.Auto()], ids=lambda e: type(e).__name__)
def test_a_layer_with_a_forward_of_its_own_keeps_it(layer: nn.Module, estimator: br.estimators.Estimator) -> None:
    bnn = br.bayesianize(nn.Sequential(layer), br.Diagonal(0.5), estimator=estimator, bias="point")
    first_input = torch.eye(4)[3:]  # the last input reaches the last output only
    drawn = bnn(first_input) - bnn.module[0].bias
    assert torch.equal(drawn[0, :3], torch.zeros(3))
    assert drawn[0, 3] != bnn(first_input)[0, 3] - bnn.module[0].bias[3]
    assert bnn.conversion["0.weight"].note == f"{type(layer).__name__} has a forward of its own"


def test_weights_that_are_computed_stay_so() -> None:
    normed, spectral = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.utils.spectral_norm(nn.Linear(3, 4))
    bnn = br.bayesianize(nn.Sequential(normed, spectral), br.Diagonal(0.5))
    assert bnn.conversion["0.bias"].note == "its weight is computed"
    assert bnn.conversion["0.parametrizations.weight.original0"].posterior == "Point"
    assert bnn.conversion["1.weight_orig"].posterior == "Diagonal(init_std=0.5)"
    with bnn.draws.root():
        bnn.module(torch.randn(2, 4))
        scales = bnn.module[1].weight / bnn.module[1].weight_orig
    torch.testing.assert_close(scales, scales[0, 0].expand(4, 3))
    assert not torch.equal(bnn.module[1].weight_orig, bnn.module[1].weight_orig)


def test_networks_without_a_way_to_copy_them_say_so_by_torch() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        old = nn.utils.weight_norm(nn.Linear(4, 3))
    with pytest.raises(RuntimeError, match="deepcopy"):
        br.bayesianize(old)

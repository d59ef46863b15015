"""The choices of a conversion: which layers, which posterior, prior and estimator each gets, and what biases become."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.nn import BayesianModule


class Mixed(nn.Module):
    """Some of everything, to choose from."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.encoder = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 4))
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.encoder(self.conv(x).flatten(1))[:, None]
        return self.head(self.attention(hidden, hidden, hidden)[0][:, 0])


X = torch.linspace(-1, 1, 32).reshape(2, 1, 4, 4)


def bayesian_layers(bnn: BayesianModule) -> set[str]:
    return {name.rpartition(".")[0] for home in bnn.homes().values() for name in [home.name]}


SELECTIONS: dict[str, tuple[Any, set[str]]] = {
    "all": ("all", {"conv", "encoder.0", "encoder.2", "attention", "attention.out_proj", "head"}),
    "last": ("last_layer", {"head"}),
    "attention": ("attention", {"attention", "attention.out_proj"}),
    "name": ("head", {"head"}),
    "pattern": ("encoder.*", {"encoder.0", "encoder.2"}),
    "type": (nn.Conv2d, {"conv"}),
    "base type": (nn.Linear, {"encoder.0", "encoder.2", "attention.out_proj", "head"}),
    "predicate": (lambda name, module: getattr(module, "out_features", 0) == 4, {"encoder.2", "attention.out_proj"}),
    "several": (["conv", nn.MultiheadAttention, lambda name, _: name == "head"], {"conv", "attention", "head"}),
}


@pytest.mark.parametrize("case", SELECTIONS)
def test_layers_are_chosen_by_preset_pattern_type_or_predicate(case: str) -> None:
    layers, chosen = SELECTIONS[case]
    net = Mixed()
    bnn = br.bayesianize(net, br.Diagonal(), layers=layers)
    assert bayesian_layers(bnn) == chosen
    assert not torch.equal(bnn(X), bnn(X))
    torch.testing.assert_close(bnn.at_mean(X), net(X))
    for row in bnn.conversion:
        expected = "Diagonal()" if row.name.rpartition(".")[0] in chosen else "Point"
        assert (row.posterior, row.note == "not selected") == (expected, expected == "Point")


def test_each_layer_gets_the_first_entry_that_takes_it() -> None:
    bnn = br.bayesianize(
        Mixed(),
        {"head": br.Point(), nn.Linear: br.MatrixNormal(), "conv": br.Diagonal(0.1), "*": br.KTied(1)},
        {lambda name, _: name.startswith("encoder"): br.HeNormal(), "*": br.Normal(0.3)},
        {"encoder.0": br.LocalReparam(), nn.Conv2d: br.Flipout(), "all": br.WeightSample()},
    )
    rows = {row.name: row for row in bnn.conversion}
    assert rows["head.weight"].posterior == rows["head.bias"].posterior == "Point"
    assert rows["head.bias"].note == "Point was asked for"
    assert rows["encoder.0.weight"].posterior == "MatrixNormal()"
    assert rows["encoder.0.weight"].prior.startswith("HeNormal")
    assert rows["encoder.0.weight"].estimator == "LocalReparam"
    assert rows["conv.weight"].posterior == "Diagonal(init_std=0.1)"
    assert rows["conv.weight"].prior == "Normal(std=0.3)"
    assert rows["conv.weight"].estimator == "Flipout"
    assert rows["attention.in_proj_weight"].posterior == "KTied(rank=1)"
    assert rows["attention.out_proj.weight"].posterior == "MatrixNormal()"
    assert rows["encoder.2.weight"].estimator == "WeightSample"
    assert sum(row.numbers for row in bnn.conversion) == sum(p.numel() for p in bnn.parameters())


@pytest.mark.parametrize("family", [br.Diagonal(), br.KTied(2), br.MatrixNormal()], ids=lambda f: type(f).__name__)
@pytest.mark.parametrize("net", [nn.Linear(4, 3), nn.Conv2d(4, 6, 3, groups=2), nn.ConvTranspose2d(4, 6, 3, groups=2)])
def test_augmented_biases_are_a_row_of_the_weight(family: br.posteriors, net: nn.Module) -> None:
    net = net.double()
    x = torch.randn(2, 4, dtype=torch.float64) if isinstance(net, nn.Linear) else torch.randn(2, 4, 5, 5).double()
    bnn = br.bayesianize(net, family, bias="augment")
    (posterior,) = br.posteriors(bnn).values()
    assert [part.name for part in posterior.parts] == ["weight", "bias"]
    fan_out = net.bias.numel()
    fan_in = net.weight.numel() // fan_out + 1
    spread = {
        br.Diagonal: fan_in * fan_out, br.KTied: 2 * (fan_in + fan_out), br.MatrixNormal: fan_in**2 + fan_out**2
    }[type(family)]  # fmt: skip
    assert bnn.conversion["weight"].numbers == fan_in * fan_out + spread
    assert bnn.conversion["bias"].numbers == 0
    torch.testing.assert_close(bnn.at_mean(x), net(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(br.mean_module(bnn)(x), net(x), rtol=1e-12, atol=1e-12)
    assert not torch.equal(bnn(x), bnn(x))


def test_biases_stay_points_or_get_free_spreads() -> None:
    attention = nn.MultiheadAttention(4, 2, add_bias_kv=True)
    point = br.bayesianize(attention, bias="point")
    assert set(point.homes()) == {"in_proj_weight", "out_proj.weight"}
    assert {row.note for row in point.conversion if row.posterior == "Point"} == {"bias"}
    free = br.bayesianize(attention, br.MatrixNormal(0.3), br.HeNormal(bias_std=2.0))
    for name in ("in_proj_bias", "bias_k", "bias_v", "out_proj.bias"):
        assert free.conversion[name].posterior == "Diagonal(init_std=0.3)"
    kept = {"in_proj_bias", "bias_k", "bias_v", "out_proj.bias"}
    only = br.bayesianize(attention, br.Diagonal(0.3), br.HeNormal(bias_std=2.0))
    want = sum(
        torch.distributions.kl_divergence(
            torch.distributions.Normal(home.mean, home.posterior.log_std.exp()), torch.distributions.Normal(0.0, 2.0)
        ).sum()
        for name, home in only.homes().items()
        if name in kept
    )
    weights = [home for name, home in only.homes().items() if name not in kept]
    torch.testing.assert_close(br.kl(only) - br.nn.home.kl_of_homes(weights), want, rtol=1e-4, atol=1e-4)


def test_augmenting_leaves_tied_and_recurrent_layers_apart() -> None:
    tied = nn.ModuleDict({"emb": nn.Embedding(5, 3), "out": nn.Linear(3, 5)})
    tied["out"].weight = tied["emb"].weight
    assert set(br.bayesianize(tied, bias="augment").homes()) == {"emb.weight", "out.bias"}
    assert len(br.bayesianize(nn.GRU(2, 3), bias="augment").homes()) == 4


def test_a_prior_centred_on_the_network_leaves_only_variance_terms() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.LSTM(5, 3)).double()
    bnn = br.bayesianize(net, br.Diagonal(0.2, init_spread=0.0), br.Normal(0.5, mean="pretrained"))
    count, ratio = sum(p.numel() for p in net.parameters()), (0.2 / 0.5) ** 2
    assert br.kl(bnn).item() == pytest.approx(0.5 * count * (ratio - 1 - math.log(ratio)), rel=1e-12)
    with torch.no_grad():
        for home in bnn.homes().values():
            home.mean.add_(0.1)
    assert br.kl(bnn).item() == pytest.approx(0.5 * count * (ratio - 1 - math.log(ratio) + 0.1**2 / 0.25), rel=1e-12)


def test_a_learned_prior_of_the_model_is_shared_by_all_layers() -> None:
    """``KL = ½[d log(Σ E w² / d) − Σ log σ²]`` over all weights at once."""
    net = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)).double()
    bnn = br.bayesianize(net, br.Diagonal(0.2, init_spread=0.0), br.LearnedNormal(scope="model"))
    weights = nn.utils.parameters_to_vector(net.parameters())
    square = (weights.square() + 0.2**2).mean()
    want = 0.5 * weights.numel() * (square.log() - 2 * math.log(0.2))
    torch.testing.assert_close(br.kl(bnn), want, rtol=1e-12, atol=0)
    apart = br.bayesianize(net, br.Diagonal(0.2, init_spread=0.0), br.LearnedNormal(scope="layer"))
    assert br.kl(apart) < br.kl(bnn)


def test_a_rank_that_does_not_fit_becomes_diagonal_visibly() -> None:
    bnn = br.bayesianize(nn.Sequential(nn.Linear(9, 4), nn.Linear(4, 1)), br.KTied(3, init_std=0.05))
    head = bnn.conversion["1.weight"]
    assert (head.posterior, head.numbers) == ("Diagonal(init_std=0.05)", 8)
    assert head.note == "rank 3 does not fit a matrix of rank 1"
    assert bnn.conversion["0.weight"].posterior == "KTied(rank=3, init_std=0.05)"


def test_local_noise_is_not_asked_of_a_posterior_that_has_none() -> None:
    net = nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Conv2d(6, 4, 1))
    bnn = br.bayesianize(net, br.MatrixNormal(), estimator=br.LocalReparam())
    assert bnn.conversion["0.weight"].estimator == "WeightSample"
    assert bnn.conversion["0.weight"].note == "no local noise for MatrixNormal here"
    assert bnn.conversion["1.weight"].estimator == "LocalReparam"
    bnn(torch.randn(1, 4, 5, 5))


def test_layers_asked_for_their_mean_add_no_noise() -> None:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.GRUCell(5, 3), nn.Linear(3, 2)).double()
    x = torch.randn(6, 4, dtype=torch.float64)
    bnn = br.bayesianize(net, br.Diagonal(0.3), estimator=br.Mean())
    assert torch.equal(bnn(x), net(x))
    half = br.bayesianize(net, br.Diagonal(0.3), estimator={"3": br.WeightSample(), "*": br.Mean()})
    assert torch.equal(half.module[:3](x), net[:3](x))
    assert not torch.equal(half(x), half(x))


def test_frozen_weights_keep_frozen_means() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    net[0].requires_grad_(False)
    bnn = br.bayesianize(net, br.Diagonal())
    (bnn(torch.randn(2, 4)).sum() + br.kl(bnn)).backward()
    frozen, free = bnn.homes()["0.weight"], bnn.homes()["1.weight"]
    assert frozen.mean.grad is None
    assert frozen.posterior.log_std.grad is not None
    assert free.mean.grad is not None
    assert bnn.conversion["0.bias"].note == "its mean stays frozen"
    assert [p.requires_grad for p in br.mean_module(bnn).parameters()] == [False, False, True, True]


class Keeps(nn.Module):
    """Keeps activations, norms its inputs, and freezes its norm layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc, self.kept = nn.BatchNorm1d(4, momentum=0.9), nn.Linear(4, 2), None

    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.norm(x)
        return self.fc(self.kept)


@pytest.mark.parametrize("example", [None, torch.randn(8, 4) + 3], ids=["traced", "example"])
def test_a_conversion_leaves_no_trace_of_the_passes_it_makes(example: Tensor | None) -> None:
    net = Keeps()
    net.norm.eval()
    before = torch.get_rng_state()
    bnn = br.bayesianize(net, br.Diagonal(), example=example, generator=torch.Generator().manual_seed(1))
    assert torch.equal(torch.get_rng_state(), before)
    assert bnn.module.kept is None
    assert (bnn.module.training, bnn.module.norm.training) == (True, False)
    assert torch.equal(bnn.module.norm.running_mean, torch.zeros(4))
    assert bnn.module.norm.num_batches_tracked == 0


def test_the_generator_fixes_the_start() -> None:
    net = nn.Linear(4, 3)
    first, second = (br.bayesianize(net, br.KTied(2), generator=torch.Generator().manual_seed(5)) for _ in range(2))
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 10))


def lenet() -> nn.Module:
    convolutions = nn.Conv2d(3, 32, 5, padding="same"), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5, padding="same")
    return nn.Sequential(*convolutions, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4096, 512), nn.Linear(512, 100))


@pytest.mark.parametrize(
    ("family", "mlp_numbers", "cnn_numbers"),
    [
        (br.Diagonal(), 956_820, 4_405_320), (br.KTied(1), 481_614, 2_262_188),
        (br.KTied(2), 484_008, 2_267_408), (br.KTied(3), 486_402, 2_272_628),
    ], ids=["mean-field", "k=1", "k=2", "k=3"],
)  # fmt: skip
def test_parameter_counts_of_the_k_tied_paper(family: Any, mlp_numbers: int, cnn_numbers: int) -> None:
    """[k-tied Normal, Fig. 6]: 957, 482, 484, 486 and 4405, 2262, 2268, 2273 thousand."""
    assert br.bayesianize(mlp(), family).conversion.numbers == mlp_numbers
    cnn = br.bayesianize(lenet(), {nn.Conv2d: br.Diagonal(), "*": family})
    assert cnn.conversion.numbers == sum(p.numel() for p in cnn.parameters()) == cnn_numbers

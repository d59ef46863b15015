"""The tap's moments against per-example gradients by torch.func, as a dense oracle."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.curvature import (
    FunctionalTap,
    ModuleTap,
    Tapped,
    exact_cotangents,
    example_gradients,
    fan_in_moment,
    fan_out_moment,
    find_layers,
    moments,
    sampled_cotangents,
    squared_gradients,
    unfold,
    weight_gradient,
)
from bayesrule.errors import Unsupported


class Conv(nn.Module):
    """Strides, paddings and dilations of all kinds, a layer used twice, an in-place activation, a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 2), dilation=(1, 2))
        self.second = nn.Conv2d(3, 3, 3, padding="same", padding_mode="circular", bias=False)
        self.head = nn.Linear(3, 4)
        self.activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.first(x))
        x = torch.tanh(self.second(torch.tanh(self.second(x))))
        return self.head(x.mean((-2, -1)))


class Sequence(nn.Module):
    """Linear layers on (examples, positions, features), tied, with biases of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 4, bias=False)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.two(torch.tanh(self.one(x)))).sum(1))


CASES = {
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 4)), (7, 3)),
    "conv": (Conv, (6, 2, 6, 5)),
    "sequence": (Sequence, (5, 4, 3)),
}
cases = pytest.mark.parametrize("case", CASES)


def build(case: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(1)
    make, shape = CASES[case]
    return make().double(), torch.randn(shape, dtype=torch.float64)


def oracle(net: nn.Module, x: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Gradients of each example's cross-entropy, parameter by parameter."""

    def loss(parameters: dict[str, Tensor], one: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(net, parameters, (one[None],)), target[None])

    parameters = {name: p.detach() for name, p in net.named_parameters()}
    grads = [torch.func.grad(loss)(parameters, one, target) for one, target in zip(x, targets, strict=True)]
    return {name: torch.stack([grad[name] for grad in grads]) for name in parameters}


def tap(net: nn.Module, x: Tensor, cotangents) -> dict[str, Tapped]:
    seen: list[dict[str, Tapped]] = []
    layers = find_layers(net).layers
    with ModuleTap(net, layers, seen.append, cotangents)():
        net(x)
    (found,) = seen
    return found


def label_cotangents(targets: Tensor):
    return lambda outputs: (outputs.softmax(-1) - F.one_hot(targets, 4))[None]


@cases
def test_gradients_of_examples_are_those_of_torch_func(case: str) -> None:
    net, x = build(case)
    targets = torch.arange(len(x)) % 4
    want = oracle(net, x, targets)
    layers = {layer.name: layer for layer in find_layers(net).layers}
    found = tap(net, x, label_cotangents(targets))
    assert {part.name for layer in layers.values() for part in layer.parts} == set(want)
    for name, tapped in found.items():
        gradients = example_gradients(tapped)[0]
        rows = [want[part.name].flatten(2).mT if part.name.endswith("weight") else want[part.name][:, None]
                for part in layers[name].parts]  # fmt: skip
        dense = torch.cat(rows, dim=1)
        torch.testing.assert_close(gradients, dense, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(squared_gradients(tapped), dense.square().mean(0), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(weight_gradient(tapped), dense.mean(0), rtol=1e-10, atol=1e-12)


def test_squares_with_positions_are_formed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x = build("conv")
    found = tap(net, x, label_cotangents(torch.zeros(6, dtype=torch.int64)))
    whole = {name: squared_gradients(each) for name, each in found.items()}
    monkeypatch.setattr(moments, "ENTRIES_TOGETHER", 70)
    for name, each in found.items():
        torch.testing.assert_close(squared_gradients(each), whole[name], rtol=1e-12, atol=1e-14)


def test_factors_sum_inputs_and_average_gradients_over_positions() -> None:
    net, x = build("conv")
    first = tap(net, x, label_cotangents(torch.zeros(6, dtype=torch.int64)))["first.weight"]
    patches = F.unfold(F.pad(x, (2, 2, 1, 1)), (3, 2), dilation=(1, 2), stride=(2, 1)).mT
    inputs = torch.cat([patches, torch.ones_like(patches[..., :1])], dim=-1)
    torch.testing.assert_close(first.inputs, inputs, rtol=0, atol=0)
    want = sum(a.T @ a for a in inputs) / 6
    torch.testing.assert_close(fan_in_moment(first), want, rtol=1e-12, atol=1e-13)
    positions = first.gradients.shape[-2]
    flat = first.gradients.reshape(-1, 3)
    torch.testing.assert_close(fan_out_moment(first), flat.T @ flat / (6 * positions), rtol=1e-12, atol=1e-14)


@cases
def test_the_functional_tap_is_the_tap_also_for_many_networks(case: str) -> None:
    nets = [build(case)[0] for _ in range(3)]
    for index, net in enumerate(nets):
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(0.1 * index)
        for module in net.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = False  # in place there is no rule under vmap
    x = torch.randn(3, *CASES[case][1], dtype=torch.float64)
    targets = torch.arange(x.shape[1]) % 4
    stacked = {name: torch.stack([dict(net.named_parameters())[name].detach() for net in nets])
               for name, _ in nets[0].named_parameters()}  # fmt: skip
    functional = FunctionalTap(nets[0], find_layers(nets[0]).layers)

    def one(parameters: dict[str, Tensor], batch: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        seen = functional(parameters, batch)
        tapped = seen.tapped(label_cotangents(targets)(seen.outputs))
        return {name: (each.inputs, each.gradients) for name, each in tapped.items()}

    batched = torch.func.vmap(one)(stacked, x)
    for index, net in enumerate(nets):
        want = tap(net, x[index], label_cotangents(targets))
        assert set(batched) == set(want)
        for name, (inputs, gradients) in batched.items():
            torch.testing.assert_close(inputs[index], want[name].inputs, rtol=1e-12, atol=1e-13)
            torch.testing.assert_close(gradients[index], want[name].gradients, rtol=1e-12, atol=1e-13)
        together = Tapped(*batched[name], len(targets))
        for moment in (fan_in_moment, fan_out_moment, squared_gradients, weight_gradient):
            torch.testing.assert_close(moment(together)[index], moment(want[name]), rtol=1e-11, atol=1e-13)


def fisher_of_outputs(likelihood: br.likelihoods.Likelihood, outputs: Tensor) -> Tensor:
    """The expected Hessian of −log p, by autograd, over a sum of all targets (or, where that is constant, at one)."""
    if isinstance(likelihood, br.Categorical):
        probs = outputs.softmax(-1)
        return torch.diag_embed(probs) - probs[:, :, None] * probs[:, None, :]
    target = torch.zeros_like(outputs)
    rows = [torch.autograd.functional.hessian(lambda f, t=t: -likelihood.log_prob(f[None], t[None]).sum(), f)
            for f, t in zip(outputs, target, strict=True)]  # fmt: skip
    return torch.stack(rows)  # for these families the Hessian does not depend on the target


LIKELIHOODS = [
    br.Categorical(),
    br.Bernoulli(),
    br.Poisson(),
    br.Gaussian(torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)),
]
likelihoods = pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=lambda each: type(each).__name__)


@likelihoods
def test_exact_cotangents_are_a_root_of_the_outputs_fisher(likelihood) -> None:
    outputs = torch.randn(4, 3, dtype=torch.float64)
    columns = exact_cotangents(likelihood, outputs)
    got = torch.einsum("jbi,jbk->bik", columns, columns)
    torch.testing.assert_close(got, fisher_of_outputs(likelihood, outputs), rtol=1e-10, atol=1e-12)


@likelihoods
def test_sampled_cotangents_have_the_outputs_fisher_on_average(likelihood) -> None:
    """Entries of the sampled second moment within 5.3 standard errors: 36 entries at a failure rate of 1e-6 in all."""
    outputs = torch.randn(4, 3, dtype=torch.float64)
    many = outputs.repeat(20_000, 1)
    noise = br.random.FromGenerator(torch.Generator().manual_seed(2))
    columns = sampled_cotangents(likelihood, many, noise)[0].reshape(20_000, 4, 3)
    products = columns[..., :, None] * columns[..., None, :]
    error = products.std(0) / 20_000**0.5
    want = fisher_of_outputs(likelihood, outputs)
    assert ((products.mean(0) - want).abs() <= 5.6 * error + 1e-12).all()


def test_several_samples_are_averaged() -> None:
    noise = br.random.FromGenerator(torch.Generator().manual_seed(2))
    outputs = torch.randn(5, 2, dtype=torch.float64)
    columns = sampled_cotangents(br.Gaussian(1.0), outputs, noise, samples=3)
    again = br.random.FromGenerator(torch.Generator().manual_seed(2))
    apart = [sampled_cotangents(br.Gaussian(1.0), outputs, again)[0] for _ in range(3)]
    torch.testing.assert_close(columns.square().sum(0), torch.stack(apart).square().mean(0))


def test_other_likelihoods_have_no_exact_fisher() -> None:
    with pytest.raises(Unsupported, match="sampled"):
        exact_cotangents(br.HeteroscedasticGaussian(), torch.randn(2, 2))


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(2, 3, (3, 5), padding="same", dilation=(2, 1)),
        nn.Conv2d(2, 3, 3, stride=2, padding=1, dilation=2, padding_mode="reflect"),
        nn.Conv2d(2, 3, 3, padding="valid", bias=False),
    ],
)
def test_unfolding_is_what_the_convolution_multiplies(conv: nn.Conv2d) -> None:
    x = torch.randn(2, 2, 7, 6)
    op = br.contractions.Conv.of(conv)
    bias = 0 if conv.bias is None else conv.bias
    rows = unfold(op, x) @ op.view.matrix(conv.weight) + bias
    torch.testing.assert_close(rows, conv(x).movedim(1, -1).reshape(-1, 3), rtol=1e-5, atol=1e-5)


def test_an_output_that_no_layer_reaches_has_zero_gradients() -> None:
    class Side(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.aside = nn.Linear(2, 4), nn.Linear(2, 4)

        def forward(self, x: Tensor) -> Tensor:
            self.aside(x)
            return self.used(x)

    found = tap(
        Side().double(), torch.randn(3, 2, dtype=torch.float64), label_cotangents(torch.zeros(3, dtype=torch.int64))
    )
    assert found["used.weight"].gradients.abs().sum() > 0
    assert found["aside.weight"].gradients.abs().sum() == 0

"""BayesBiNN and STE: transcriptions, the slope of the relaxation, and packed bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm
from torch import nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.optim import STE, BayesBiNN, BayesBiNNRule, NoisyAdam, PackedNetwork, pack_binary
from bayesrule.optim.bayes_binn import half_logistic
from bayesrule.posteriors import BernoulliPosterior, PointPosterior
from optim_problems import Recorded, network, regression, silent, step

X, Y = regression()
N = 50
both = pytest.mark.parametrize("kind", [BayesBiNN, STE])


def bias_free(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 5, bias=False), nn.Tanh(), nn.Linear(5, 2, bias=False)).double()


def gradients(weights: list[np.ndarray]) -> list[np.ndarray]:
    """Of ½|f − y|², averaged, in the layers' own (out, in) layout, by hand."""
    x, y = X.numpy(), Y.numpy()
    hidden = np.tanh(x @ weights[0].T)
    error = (hidden @ weights[1].T - y) / len(x)
    return [((error @ weights[1]) * (1 - hidden**2)).T @ x, error.T @ hidden]


def loss(net: nn.Module) -> torch.Tensor:
    return 0.5 * (net(X) - Y).square().sum(-1).mean()


@pytest.mark.parametrize("temperature", [1.0, 0.4])
def test_bayesbinn_is_its_transcription(temperature: float) -> None:
    """Eqs. 49–52 in terms of all N examples, with a momentum whose bias is corrected."""
    rho, beta = 0.02, 0.7
    net = bias_free()
    optimizer = BayesBiNN(
        net, n_data=N, lr=rho, temperature=temperature, momentum=beta, init_natural=0.8, eps=0.0, kl_weight=1.0
    )
    natural = [0.8 * np.where(p.detach().numpy() >= 0, 1, -1) for p in net.parameters()]
    momentum = [np.zeros_like(each) for each in natural]
    for k in range(1, 7):
        recorded = Recorded()
        step(optimizer, lambda: loss(net), noise=recorded)
        uniform = [norm.cdf(each.numpy().T) for each in recorded.noises]
        delta = [0.5 * np.log(u / (1 - u)) for u in uniform]
        theta = [np.tanh((n + d) / temperature) for n, d in zip(natural, delta, strict=True)]
        for i, g in enumerate(gradients(theta)):
            s = (1 - theta[i] ** 2) / (temperature * (1 - np.tanh(natural[i]) ** 2))
            momentum[i] = beta * momentum[i] + (1 - beta) * s * g
            natural[i] = (1 - rho) * natural[i] - rho * N * momentum[i] / (1 - beta**k)
    for posterior, want, parameter in zip(optimizer.posteriors().values(), natural, net.parameters(), strict=True):
        assert isinstance(posterior, BernoulliPosterior)
        np.testing.assert_allclose(posterior.natural.numpy().T, want, rtol=1e-7, atol=1e-9)
        np.testing.assert_array_equal(parameter.detach().numpy(), np.where(want >= 0, 1, -1))
    assert max(np.abs(np.abs(each) - 0.8).max() for each in natural) > 0.1


def test_the_entropys_weight_sets_how_far_the_data_count() -> None:
    """One full step: λ = −(N/λ_KL) ∇_μ."""
    found = {}
    for kl_weight in (1.0, 0.25):
        net = bias_free()
        options = {"temperature": 1.0, "momentum": 0.0, "init_natural": 0.5, "kl_weight": kl_weight, "seed": 1}
        optimizer = BayesBiNN(net, n_data=N, lr=1.0, **options)
        step(optimizer, lambda net=net: loss(net))
        found[kl_weight] = next(iter(optimizer.posteriors().values())).natural
    torch.testing.assert_close(found[0.25], 4 * found[1.0])


@pytest.mark.parametrize("temperature", [1.0, 0.1])
def test_the_slope_is_the_derivative_of_the_relaxed_draw(temperature: float) -> None:
    """dθ/dμ with μ = tanh λ, by autograd; with ε = 0."""
    torch.manual_seed(0)
    rule = BayesBiNNRule(temperature, 0.9, 1.0, 0.0)
    mean, noise = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    state = rule.init(mean, [(4, 3)], torch.tensor(1.0))
    mu = state.natural.tanh().requires_grad_()
    theta = torch.tanh((torch.atanh(mu) + half_logistic(noise)) / temperature)
    (want,) = torch.autograd.grad(theta.sum(), mu)
    torch.testing.assert_close(rule.slope(state, noise), want, rtol=1e-9, atol=1e-12)


def test_noise_is_logistic_to_the_far_tails() -> None:
    normal = torch.linspace(-30, 30, 121, dtype=torch.float64)
    want = 0.5 * (norm.logcdf(normal.numpy()) - norm.logsf(normal.numpy()))
    np.testing.assert_allclose(half_logistic(normal), want, rtol=1e-10, atol=1e-12)


def test_at_a_small_temperature_draws_are_signs_and_slopes_stay_finite() -> None:
    rule = BayesBiNNRule()
    mean = torch.randn(40, 30, generator=torch.Generator().manual_seed(0))
    noise = torch.randn(40, 30, generator=torch.Generator().manual_seed(1))
    state = rule.init(mean, [(40, 30)], torch.tensor(1.0))
    drawn = mean.sign() + rule.deviation(state, noise, torch.tensor(1.0))
    assert set(drawn.unique().tolist()) <= {-1.0, 1.0}
    slope = rule.slope(state, noise)
    certain = torch.full_like(slope, 1 - np.tanh(10.0) ** 2 + 1e-10)
    torch.testing.assert_close(slope, 1 / certain, rtol=1e-2, atol=0)


@pytest.mark.parametrize("form", ["gradient", "adam"])
def test_ste_is_latent_weights_in_torch(form: str) -> None:
    """Eq. 48: gradients at sign λ move λ, by plain steps or by torch's own Adam."""
    net, lr = bias_free(), 0.05
    latent = [p.detach().clone().requires_grad_() for p in net.parameters()]
    optimizer = STE(net, n_data=N, lr=lr, step=form, clip=None)
    theirs = (torch.optim.SGD if form == "gradient" else torch.optim.Adam)(latent, lr=lr)
    for _ in range(8):
        step(optimizer, lambda: loss(net))
        binary = [torch.where(each >= 0, 1.0, -1.0).double().requires_grad_() for each in latent]
        value = 0.5 * (torch.tanh(X @ binary[0].T) @ binary[1].T - Y).square().sum(-1).mean()
        for each, gradient in zip(latent, torch.autograd.grad(value, binary), strict=True):
            each.grad = gradient
        theirs.step()
    for state, want, posterior in zip(optimizer.states.values(), latent, optimizer.posteriors().values(), strict=True):
        torch.testing.assert_close(state.natural.T, want.detach(), rtol=1e-10, atol=1e-12)
        assert isinstance(posterior, PointPosterior)
    assert any(not torch.equal(a, b.sign()) for a, b in zip(net.parameters(), bias_free().parameters(), strict=True))


def test_latent_weights_stay_within_the_clip() -> None:
    optimizer = STE(bias_free(), n_data=N, lr=10.0, clip=0.5)
    step(optimizer, lambda: loss(optimizer.model))
    assert max(state.natural.abs().max().item() for state in optimizer.states.values()) == 0.5


@both
def test_several_draws_average_gradients_in_the_expectations(kind) -> None:
    net = bias_free()
    options = {"temperature": 1.0, "init_natural": 0.5} if kind is BayesBiNN else {}
    optimizer = kind(net, n_data=N, **options)
    want = [torch.zeros_like(p) for p in net.parameters()]
    for _ in range(3):
        recorded = Recorded()
        with optimizer.sampled_params(noise=recorded):
            optimizer.zero_grad()
            loss(net).backward()
            raw = [p.grad.clone() for p in net.parameters()]
        for total, gradient, noise, state in zip(want, raw, recorded.noises, optimizer.states.values(), strict=True):
            total += gradient * optimizer.rule.slope(state, noise).T / 3
    for parameter, expected in zip(net.parameters(), want, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-10, atol=1e-12)


@both
def test_weights_are_binary_and_biases_are_adams(kind) -> None:
    net = network(3, 4, 2)
    optimizer = kind(net, n_data=N)
    assert {row.name: row.rule for row in optimizer.plan} == {
        "0.weight": kind.__name__, "0.bias": "Adam", "2.weight": kind.__name__, "2.bias": "Adam",
    }  # fmt: skip
    for _ in range(3):
        assert all(set(m.weight.unique().tolist()) <= {-1.0, 1.0} for m in net if isinstance(m, nn.Linear))
        step(optimizer, lambda: loss(net))
    with pytest.raises(InvalidArgument, match="Leave out prior"):
        kind(network(3, 4, 2), n_data=N, prior=br.Normal(1.0))
    if kind is STE:
        with pytest.raises(Unsupported, match="KL"):
            optimizer.kl()


def classification() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(400, 20, generator=generator)
    return x, (x[:, :5].sum(-1) > 0).long() + (x[:, 5:10].sum(-1) > 0).long()


def trained(kind, epochs: int = 30):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(20, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3, bias=False), nn.BatchNorm1d(3)
    )
    options = {"lr": 3e-3, "momentum": 0.9} if kind is BayesBiNN else {"lr": 1e-2}
    optimizer = kind(net, n_data=400, likelihood=br.Categorical(), plain_lr=1e-2, seed=0, **options)
    x, y = classification()
    for _ in range(epochs):
        for batch in torch.randperm(400).split(100):
            step(optimizer, lambda batch=batch: F.cross_entropy(net(x[batch]), y[batch]))
    net.eval()
    return optimizer


@both
def test_packed_bits_predict_the_same_classes(kind, tmp_path) -> None:
    optimizer = trained(kind)
    x, y = classification()
    net = optimizer.model
    want = net(x)
    assert (want.argmax(-1) == y).float().mean() > 0.85
    packed = pack_binary(optimizer)
    packed.save(tmp_path / "net.npz")
    loaded = PackedNetwork.load(tmp_path / "net.npz")
    blank = nn.Sequential(
        nn.Linear(20, 64, bias=False), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3, bias=False), nn.BatchNorm1d(3)
    )
    before = blank[0].weight.detach().clone()
    unpacked = loaded.unpack(blank).eval()
    assert torch.equal(unpacked(x), want)
    assert torch.equal(unpacked(x).argmax(-1), want.argmax(-1))
    assert torch.equal(blank[0].weight, before)
    assert loaded.bits["0.weight"].nbytes == 64 * 20 // 8
    others = sum(value.nbytes for name, value in net.state_dict().items() if name not in loaded.bits)
    assert loaded.nbytes == 64 * 20 // 8 + 64 * 3 // 8 + others
    assert set(np.unique(loaded.weights("0.weight"))) == {-1, 1}
    with pytest.raises(InvalidArgument, match="another network"):
        loaded.unpack(network(3, 4, 2))


def test_draws_of_bayesbinn_are_signs_and_agree_with_its_mode() -> None:
    optimizer = trained(BayesBiNN)
    x, y = classification()
    prediction = br.predict(optimizer, x, samples=8)
    assert (prediction.probs.argmax(-1) == y).float().mean() > 0.85
    for posterior in optimizer.posteriors().values():
        assert set(posterior.rsample().unique().tolist()) == {-1.0, 1.0}


def test_only_binary_networks_are_packed() -> None:
    with pytest.raises(InvalidArgument, match="binary weights"):
        pack_binary(NoisyAdam(network(3, 4, 2), n_data=N, fisher="empirical"))


def test_a_tied_binary_weight_is_packed_under_all_its_names() -> None:
    net = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Tanh(), nn.Linear(3, 3, bias=False)).double()
    net[2].weight = net[0].weight
    optimizer = STE(net, n_data=N)
    step(optimizer, lambda: net(X).square().mean(), noise=silent)
    packed = pack_binary(optimizer)
    assert set(packed.bits) == {"0.weight", "2.weight"}
    assert torch.equal(packed.unpack(net)(X), net(X))

"""OGN, VOGN and IVON against NumPy transcriptions of the published algorithms, and their fixed points."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.errors import InvalidArgument
from bayesrule.optim import IVON, OGN, VOGN, IVONRule, KTiedVON, Message, PriorTerm
from bayesrule.optim.ivon import riemannian
from optim_problems import LinearGaussian, make, network, regression, silent, step
from test_optim_transcriptions import GAMMA, LR, N, X, Y, check, run

B1, B2 = 0.8, 0.9


def gauss_newton(noisy: bool, extra: float = 0.0):
    """Eqs. 44–46 with momentum as in Osawa et al. (2019), Algorithm 1, in units of one example."""

    def oracle(mu, noises):
        m, s = [np.zeros_like(each) for each in mu], [np.zeros_like(each) for each in mu]
        for k, noise in enumerate(noises, 1):
            drawn = [w + noisy * e / np.sqrt(N * (f + GAMMA)) for w, e, f in zip(mu, noise, s, strict=True)]
            seen = run(drawn, X, Y)
            for i, (a, g, gradient) in enumerate(zip(seen.inputs, seen.gradients, seen.weight_gradients, strict=True)):
                m[i] = B1 * m[i] + (1 - B1) * (gradient + GAMMA * mu[i])
                s[i] = B2 * s[i] + (1 - B2) * np.mean(np.einsum("bi,bj->bij", a, g) ** 2, axis=0)
                mu[i] = mu[i] - LR * m[i] / (1 - B1**k) / (s[i] + GAMMA + extra)
        return mu

    return oracle


def test_ogn_is_its_transcription() -> None:
    check(OGN, gauss_newton(noisy=False), betas=(B1, B2))


@pytest.mark.parametrize("extra", [0.0, 0.1])
def test_vogn_is_its_transcription(extra: float) -> None:
    check(VOGN, gauss_newton(noisy=True, extra=extra), betas=(B1, B2), extra_damping=extra)


def test_vogn_with_one_step_size_is_the_learning_rule() -> None:
    """Eq. 46: θ ← θ − ρ g/s, s ← (1−ρ)s + ρ[Σ(∇ℓ)² + 1/η], with s the precision of all data."""

    def oracle(mu, noises):
        s = [np.full_like(each, N * GAMMA) for each in mu]
        for noise in noises:
            drawn = [w + e / np.sqrt(p) for w, e, p in zip(mu, noise, s, strict=True)]
            seen = run(drawn, X, Y)
            for i, (a, g, gradient) in enumerate(zip(seen.inputs, seen.gradients, seen.weight_gradients, strict=True)):
                squares = N * np.mean(np.einsum("bi,bj->bij", a, g) ** 2, axis=0)
                s[i] = (1 - LR) * s[i] + LR * (squares + N * GAMMA)
                mu[i] = mu[i] - LR * N * (gradient + GAMMA * mu[i]) / s[i]
        return mu

    check(VOGN, oracle, betas=(0.0, 1 - LR))


def test_ivon_is_its_transcription() -> None:
    """Shen et al. (2024), Algorithm 1: λ is the number of examples, δ the weight decay."""
    h0 = 0.3

    def oracle(mu, noises):
        g, h = [np.zeros_like(each) for each in mu], [np.full_like(each, h0) for each in mu]
        for t, noise in enumerate(noises, 1):
            sigma = [1 / np.sqrt(N * (each + GAMMA)) for each in h]
            theta = [m + s * e for m, s, e in zip(mu, sigma, noise, strict=True)]
            for i, gradient in enumerate(run(theta, X, Y).weight_gradients):
                estimate = gradient * (theta[i] - mu[i]) / sigma[i] ** 2
                g[i] = B1 * g[i] + (1 - B1) * gradient
                correction = 0.5 * (1 - B2) ** 2 * (h[i] - estimate) ** 2 / (h[i] + GAMMA)
                h[i] = B2 * h[i] + (1 - B2) * estimate + correction
                mu[i] = mu[i] - LR * (g[i] / (1 - B1**t) + GAMMA * mu[i]) / (h[i] + GAMMA)
        return mu

    check(IVON, oracle, betas=(B1, B2), init_curvature=h0)


@pytest.mark.parametrize("kind", [OGN, VOGN])
@pytest.mark.parametrize("kl_weight", [1.0, 0.3])
def test_they_reach_the_mean_field_optimum(kind, kl_weight: float) -> None:
    """With the exact Fisher, which on a linear-Gaussian model is the Hessian."""
    problem = LinearGaussian.make(kl_weight)
    optimizer = problem.optimizer(kind, lr=2.95, betas=(0.52, 0.9), T_stats=100)
    for _ in range(200):
        step(optimizer, problem.loss(optimizer), noise=silent)
    (posterior,) = br.posteriors(optimizer).values()
    np.testing.assert_allclose(posterior.mean, problem.mean, rtol=1e-8, atol=1e-10)
    variance = np.repeat(1 / np.diag(problem.precision), 2).reshape(4, 2)
    np.testing.assert_allclose(posterior.variance, variance, rtol=1e-10)


def test_prices_estimate_over_all_signs_is_the_diagonal_of_the_hessian() -> None:
    """Noises of ±1, all 2⁸ patterns: E[ĝ(θ − μ)/σ²] is exact on a quadratic, correlations included."""
    problem = LinearGaussian.make()
    net = nn.Linear(3, 2, dtype=torch.float64)
    likelihood = br.Gaussian(torch.tensor(problem.noise_std, dtype=torch.float64))
    optimizer = IVON(
        net, n_data=40, lr=0.0, betas=(0.9, 0.0), likelihood=likelihood, prior=br.Normal(problem.prior_std)
    )  # fmt: skip
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 8)
    for pattern in signs:
        with optimizer.sampled_params(noise=lambda shape, law, like, pattern=pattern: pattern.reshape(shape)):
            optimizer.zero_grad()
            optimizer.nll(net(problem.x), problem.y).backward()
    relative = optimizer._pending.curvature("weight")["relative"]
    found = (relative * (optimizer.states["weight"].curvature + optimizer.priors.term("weight").damping)).numpy()
    want = np.repeat((np.diag(problem.precision) - 1 / problem.prior_std**2) / 40, 2).reshape(4, 2)
    np.testing.assert_allclose(found, want, rtol=1e-9)


@pytest.mark.parametrize("estimate", [-1e6, -1.0, 0.0, 1e6])
def test_ivons_precision_stays_positive(estimate: float) -> None:
    rule = IVONRule(betas=(0.9, 0.5))
    mean, prior = torch.zeros(2, 2, dtype=torch.float64), PriorTerm(torch.tensor(0.01, dtype=torch.float64))
    state = rule.init(mean, [(2, 2)], prior.damping)
    for _ in range(5):
        precision = state.curvature + prior.damping
        message = Message(mean, {"relative": torch.full_like(mean, estimate) / precision})
        _, state = rule.update(mean, state, message, prior, lr=0.1, refresh=True)
        assert (state.curvature + prior.damping > 0).all()
    assert riemannian(torch.linspace(-10, 10, 1001)).min() >= 0.5


@pytest.mark.parametrize("kind", [IVON, KTiedVON])
def test_several_draws_average_prices_estimate(kind) -> None:
    """Two blocks before a step: the mean of the two products, each of its own gradient and deviation."""
    x, y = regression()
    both, first, second = (make(kind, seed=k) for k in (0, 1, 2))
    torch.manual_seed(3)
    noises = [[torch.randn(shape, dtype=torch.float64) for shape in ((4, 4), (5, 2))] for _ in range(2)]
    for optimizer, chosen in ((both, noises), (first, noises[:1]), (second, noises[1:])):
        for each in chosen:
            left = list(each)
            with optimizer.sampled_params(noise=lambda *_, left=left: left.pop(0)):
                optimizer.zero_grad()
                optimizer.nll(optimizer.model(x), y).backward()
    for name in both.groups:
        got = both._pending.curvature(name)
        parts = [each._pending.curvature(name) for each in (first, second)]
        for key, value in got.items():
            torch.testing.assert_close(value, (parts[0][key] + parts[1][key]) / 2, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("kind", [IVON, KTiedVON])
def test_a_scaled_loss_must_come_with_its_scale(kind) -> None:
    x, y = regression()
    net, twin = network(3, 4, 2), network(3, 4, 2)
    scaled, plain = make(kind, net), make(kind, twin)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    with scaled.sampled_params():
        scaler.scale(scaled.nll(net(x), y)).backward()
    with pytest.raises(InvalidArgument, match="loss_scale"):
        scaler.step(scaled)
    scaled, plain = make(kind, net), make(kind, twin)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    for _ in range(2):
        with scaled.sampled_params(loss_scale=scaler.get_scale()):
            scaled.zero_grad()
            scaler.scale(scaled.nll(net(x), y)).backward()
        scaler.step(scaled)
        scaler.update()
        step(plain, lambda: plain.nll(twin(x), y))
    for name, posterior in scaled.posteriors().items():
        torch.testing.assert_close(posterior.variance, plain.posteriors()[name].variance, rtol=1e-10, atol=0)


@pytest.mark.parametrize(("kind", "option"), [(IVON, "fisher"), (IVON, "noise"), (OGN, "noise"), (KTiedVON, "warm_up")])
def test_options_that_make_no_sense_are_refused(kind, option: str) -> None:
    with pytest.raises(InvalidArgument, match=f"Leave out {option}"):
        kind(network(3, 4, 2), n_data=50, **{option: "example"})


def test_convolutions_and_normalisation_train() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 2)).double()
    images, classes = torch.randn(8, 2, 3, 3, dtype=torch.float64), torch.arange(8) % 2
    start = copy.deepcopy(net.state_dict())
    for kind in (IVON, KTiedVON, VOGN, OGN):
        net.load_state_dict(start)
        optimizer = make(kind, net, likelihood=br.Categorical(), kl_weight=0.1, plain_lr=0.01)
        assert optimizer.plan["1.weight"].rule == "Adam"
        losses = [step(optimizer, lambda o=optimizer: o.nll(net(images), classes)) for _ in range(40)]
        assert np.mean(losses[-5:]) < np.mean(losses[:5])
        assert br.predict(optimizer, images, samples=2).probs.shape == (8, 2)

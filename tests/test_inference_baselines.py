"""HMC and MC dropout: exact posteriors, masks by hand, and the same prediction call as everything else."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.inference.empirical import EmpiricalPosterior
from bayesrule.inference.hmc import hmc
from bayesrule.inference.mc_dropout import MCDropout
from bayesrule.inference.sampled_network import SampledNetwork
from bayesrule.likelihoods import GaussianGammaNoise
from bayesrule.posteriors import Part

needs_numpyro = pytest.mark.skipif(
    importlib.util.find_spec("numpyro") is None, reason="numpyro is not installed (pip install 'bayesrule[hmc]')"
)
NOISE = 0.3


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_the_empirical_posterior_is_its_draws() -> None:
    draws = randn(5, 4)
    posterior = EmpiricalPosterior(draws, (Part("a", (3,)), Part("b", ())))
    np.testing.assert_allclose(posterior.mean, draws.numpy().mean(0), rtol=1e-12)
    np.testing.assert_allclose(posterior.variance, draws.numpy().var(0), rtol=1e-12)
    picked = posterior.from_noise(torch.tensor([[0.0], [0.39], [0.41], [1 - 1e-12]], dtype=torch.float64))
    assert torch.equal(picked, draws[[0, 1, 2, 4]])
    assert {name: tuple(part.shape) for name, part in posterior.split(picked).items()} == {"a": (4, 3), "b": (4,)}
    assert torch.equal(posterior.from_noise(torch.ones(1)), draws[4])
    for refused in (lambda: posterior.log_prob(draws[0]), posterior.entropy):
        with pytest.raises(br.errors.Unsupported):
            refused()


def sampled(draws: int = 6) -> tuple[SampledNetwork, dict[str, Tensor], nn.Module]:
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    values = {name: randn(draws, *each.shape, seed=i) for i, (name, each) in enumerate(net.named_parameters())}
    values["log_noise_std"] = randn(draws, 2, seed=9)
    return SampledNetwork(net, values), values, net


def test_a_sampled_network_predicts_with_the_noise_of_each_draw() -> None:
    model, draws, _ = sampled()
    x = randn(5, 2, seed=20)
    hidden = np.tanh(np.einsum("ni,soi->sno", x, draws["0.weight"]) + draws["0.bias"].numpy()[:, None])
    f = np.einsum("sni,soi->sno", hidden, draws["2.weight"]) + draws["2.bias"].numpy()[:, None]
    predictive = br.Predictive(model.outputs(x), model.default_likelihood())
    np.testing.assert_allclose(predictive.mean, f.mean(0), rtol=1e-10)
    np.testing.assert_allclose(predictive.epistemic_std, f.std(0), rtol=1e-10)
    noise = np.exp(2 * draws["log_noise_std"].numpy()).mean(0)
    np.testing.assert_allclose(predictive.aleatoric_std.square(), np.broadcast_to(noise, (5, 2)), rtol=1e-10)


def test_prediction_picks_stored_draws() -> None:
    model, _, _ = sampled()
    x = randn(5, 2, seed=20)
    every = model.outputs(x)
    looped = br.predict(model, x, samples=30, strategy="loop").outputs
    torch.testing.assert_close(br.predict(model, x, samples=30).outputs, looped, rtol=1e-12, atol=1e-12)
    nearest = (looped[:, None] - every[None]).abs().amax((2, 3)).min(1)
    assert float(nearest.values.max()) < 1e-12
    assert nearest.indices.unique().numel() > 3


def exact(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    covariance = torch.linalg.inv(x.mT @ x / NOISE**2 + torch.eye(x.shape[1], dtype=x.dtype) / 0.5**2)
    return covariance @ x.mT @ y / NOISE**2, covariance


@needs_numpyro
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_hmc_finds_the_posterior_of_a_linear_model() -> None:
    """Four thousand draws, of which above a thousand count: 0.16 standard deviations are five standard errors."""
    x = randn(30, 3)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]], dtype=torch.float64) + NOISE * randn(30, 1, seed=1)
    found = hmc(
        nn.Linear(3, 1, bias=False).double(), x, y, prior=br.Normal(0.5), likelihood=br.Gaussian(NOISE), warmup=300
    )
    mean, covariance = exact(x, y)
    draws = found.network.stored[:, :3]
    std = covariance.diagonal().sqrt()
    assert found.diagnostics.effective_draws > 1000
    assert found.diagnostics.converged
    assert found.diagnostics.divergences == 0
    assert set(found.diagnostics.r_hat) == {"weight"}
    assert ((draws.mean(0) - mean[:, 0]).abs() < 0.16 * std).all()
    whitened = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), (draws - mean.mT).mT, upper=False)
    assert float((whitened.mT.T.cov() - torch.eye(3, dtype=x.dtype)).abs().max()) < 0.23  # 5 √(2/1000)
    predictive = br.predict(found.network, x, samples=400)
    assert predictive.mean.shape == y.shape


@needs_numpyro
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_hmc_finds_the_noise_of_a_network() -> None:
    """With next to no weights the precision has a conjugate posterior, Gamma(a₀ + n/2, b₀ + Σy²/2)."""
    x, y = randn(40, 2), 0.5 * randn(40, 1, seed=1)
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
    found = hmc(net, x, y, prior=br.Normal(1e-3), likelihood=GaussianGammaNoise(6.0, 6.0), warmup=300, seed=2)
    shape, rate = 6 + 20, 6 + float(y.square().sum()) / 2
    precision = (-2 * found.network.stored[:, -1].double()).exp()
    effective = found.diagnostics.effective_draws  # the smallest, over the outputs too
    assert effective > 200
    assert abs(float(precision.mean()) - shape / rate) < 4.9 * effective**-0.5 * shape**0.5 / rate
    assert set(found.diagnostics.r_hat) == {"0.weight", "0.bias", "2.weight", "2.bias", "precision"}
    assert found.network.stored.dtype == torch.float32


@needs_numpyro
def test_hmc_on_other_data_of_the_same_shape_is_compiled_once() -> None:
    """Nothing of the first data is left in the program: after all programs are forgotten, the draws are the same."""
    import jax

    compiled = sys.modules["bayesrule.inference.hmc"]._made

    def draws(seed: int) -> dict[str, Tensor]:
        x, y = randn(8, 2, seed=seed), randn(8, 1, seed=seed + 1)
        found = hmc(nn.Linear(2, 1), x, y, chains=2, warmup=20, draws=20, seed=seed)
        return dict(found.network.named_buffers())

    compiled.cache_clear()
    first, second = draws(0), draws(5)
    assert compiled.cache_info().misses == compiled.cache_info().hits == 1
    assert jax.config.jax_compilation_cache_dir is None
    for forget in (jax.clear_caches, compiled.cache_clear):  # first what jax traced, then all of it
        forget()
        again = draws(5)
        assert again
        assert again.keys() == first.keys()
        assert all(torch.equal(second[name], again[name]) for name in again)
        assert any(not torch.equal(first[name], again[name]) for name in again)


@needs_numpyro
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux counts pieces of memory")
def test_hmc_forgets_its_programs_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some dozens of runs that kept all they loaded would end in a lack of memory."""
    module, most, maps = sys.modules["bayesrule.inference.hmc"], tmp_path / "most", Path("/proc/self/maps")
    monkeypatch.setattr(module, "MOST_MAPS", most)
    module._made.cache_clear()
    kept = []
    for allowed in (10**9, 10**9, 100):
        most.write_text(f"{allowed}\n")
        hmc(nn.Linear(1, 1), randn(4, 1), randn(4, 1), chains=2, warmup=5, draws=4)
        kept.append((module._made.cache_info().misses, module._made.cache_info().hits))
    assert kept == [(1, 0), (1, 1), (1, 0)]
    many = len(maps.read_text().splitlines())
    module.forget_programs()
    assert len(maps.read_text().splitlines()) < many


def test_hmc_refuses_what_it_cannot_do(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y, net = randn(8, 2), randn(8, 1), nn.Linear(2, 1)
    with pytest.raises(br.errors.Unsupported, match="linear layers and plain activations"):
        hmc(nn.Sequential(nn.Linear(2, 1), nn.Dropout()), x, y)
    with pytest.raises(br.errors.Unsupported, match="regressions"):
        hmc(net, x, y, likelihood=br.Categorical())
    with pytest.raises(br.errors.Unsupported, match="Normal prior"):
        hmc(net, x, y, prior=br.HeNormal())
    with pytest.raises(br.errors.ShapeMismatch):
        hmc(net, x, y[:, 0])
    with pytest.raises(br.errors.InvalidArgument, match="two chains"):
        hmc(net, x, y, chains=1)
    monkeypatch.setitem(sys.modules, "numpyro", None)
    with pytest.raises(br.errors.Unsupported, match=r"bayesrule\[hmc\]"):
        hmc(net, x, y)


def dropout_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.25), nn.Linear(8, 2)).double()


def test_mc_dropout_draws_masks_of_the_hidden_units() -> None:
    net = dropout_net()
    model = MCDropout(net, br.Gaussian())
    x = randn(4, 3)
    found = br.predict(model, x, samples=400).outputs
    hidden = net[1](net[0](x)).detach()
    masks = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 8)  # every mask there is
    every = (hidden * masks[:, None] / 0.75) @ net[3].weight.detach().mT + net[3].bias.detach()
    distance, which = (found[:, None] - every[None]).abs().amax((2, 3)).min(1)
    assert float(distance.max()) < 1e-10  # one mask for all examples, scaled by 1 / (1 − p)
    kept = int(masks[which].sum())
    standard_error = (3200 * 0.25 * 0.75) ** 0.5
    assert abs(kept - 0.75 * 3200) < 4.9 * standard_error  # a false alarm in 1e6


def test_mc_dropout_is_a_function_of_its_seed_and_leaves_the_network_alone() -> None:
    net = dropout_net().train()
    model, x = MCDropout(net), randn(9, 3)
    first = br.predict(model, x, samples=5, seed=1, batch_size=2).outputs
    torch.testing.assert_close(br.predict(model, x, samples=5, seed=1).outputs, first, rtol=1e-12, atol=0)
    assert not torch.equal(br.predict(model, x, samples=5, seed=2).outputs, first)
    assert net.training
    with torch.no_grad():
        torch.testing.assert_close(model.net(x), net.eval()(x), rtol=0, atol=0)  # no hook stays


def test_mc_dropout_drops_whole_channels() -> None:
    net = nn.Sequential(nn.Dropout2d(0.5)).double()
    found = br.predict(MCDropout(net), torch.ones(2, 6, 3, 3, dtype=torch.float64), samples=8).outputs
    assert set(found.unique().tolist()) == {0.0, 2.0}
    assert torch.equal(found, found[:, :1, :, :1, :1].expand_as(found))


@pytest.mark.parametrize("layer", [nn.LSTM(2, 2, num_layers=2, dropout=0.5), nn.AlphaDropout(0.5)])
def test_mc_dropout_refuses_dropout_it_cannot_reach(layer: nn.Module) -> None:
    with pytest.raises(br.errors.Unsupported, match="between the others"):
        MCDropout(nn.Sequential(layer))


def test_mc_dropout_needs_dropout() -> None:
    with pytest.raises(br.errors.InvalidArgument, match=r"Add nn\.Dropout"):
        MCDropout(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)))

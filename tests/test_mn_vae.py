"""Auto-encoders: latent laws against dense normals, the likelihood against closed forms and quadrature, training."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence
from torch.nn import functional as F

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.experiments.mn.vae import VAE, latent, log_marginal
from bayesrule.experiments.mn.vae_images import GAP, image_rows, strip
from bayesrule.experiments.mn.vae_training import BestOfEach, VAERecipe, _train, elbo, images, log_likelihood
from bayesrule.nn import Latent
from bayesrule.posteriors import DiagonalCovariance, GaussianPosterior, MatrixNormalCovariance
from bayesrule.priors import Normal
from bayesrule.priors import kl_divergence as ours

LATENTS = [Latent("diag", 3, 2), Latent("mn", 3, 2), Latent("mn", 4, 1), latent("mv", 9), latent("mn", 40)]
CPU = torch.device("cpu")


def dense(law: Latent, outputs: Tensor) -> MultivariateNormal:
    """The law of the code, flattened row by row, written out for one image."""
    numbers = outputs.numpy()
    size = law.size
    mean, rest = numbers[:size], numbers[size:]

    def factor(raw: np.ndarray, n: int) -> np.ndarray:
        matrix = raw.reshape(n, n)
        return np.diag(np.exp(np.diag(matrix))) @ (np.tril(matrix, -1) + np.eye(n))

    if law.kind == "diag":
        covariance = np.diag(np.exp(rest) ** 2)
    else:
        a, b = factor(rest[: law.rows**2], law.rows), factor(rest[law.rows**2 :], law.columns)
        covariance = np.kron(a @ a.T, b @ b.T)
    return MultivariateNormal(torch.from_numpy(mean.copy()), torch.from_numpy(covariance))


@pytest.mark.parametrize("law", LATENTS, ids=str)
def test_latent_laws_equal_dense_normals(law: Latent) -> None:
    outputs = 0.4 * torch.randn(2, 3, sum(law.sizes), dtype=torch.float64)
    posterior = law.posterior(outputs)
    kls = ours(posterior, Normal(1.0))
    z = torch.randn(2, 3, law.rows, law.columns, dtype=torch.float64)
    densities = posterior.log_prob(z)
    assert kls.shape == (2, 3)
    for i, j in np.ndindex(2, 3):
        exact = dense(law, outputs[i, j])
        zero = torch.zeros(law.size, dtype=torch.float64)
        standard = MultivariateNormal(zero, torch.eye(law.size, dtype=torch.float64))
        assert kls[i, j].item() == pytest.approx(kl_divergence(exact, standard).item(), rel=1e-10)
        assert densities[i, j].item() == pytest.approx(exact.log_prob(z[i, j].flatten()).item(), rel=1e-10)


def test_the_paper_s_matrices() -> None:
    assert [(law.rows, law.columns) for law in (latent("mn", 40), latent("mn", 9))] == [(20, 2), (3, 3)]
    assert [latent("mv", size) for size in (40, 9)] == [Latent("mn", 40, 1), Latent("mn", 9, 1)]
    assert latent("mv", 9).sizes == (9, 81, 1)
    assert latent("diag", 40).sizes == (40, 40)


def test_the_likelihood_of_a_linear_gaussian_decoder() -> None:
    """``x = Cz + noise`` has a normal marginal; the estimate must lie within five of its own standard errors."""
    rng = np.random.default_rng(0)
    loading, noise = rng.normal(size=(5, 2)), 0.6
    x = rng.normal(size=(3, 5)) * 1.5
    exact = stats.multivariate_normal(np.zeros(5), loading @ loading.T + noise**2 * np.eye(5)).logpdf(x)
    precision = np.eye(2) + loading.T @ loading / noise**2
    mean = np.linalg.solve(precision, loading.T @ x.T / noise**2).T
    # An encoder that is off: the true posterior's factor, wider, and its mean, shifted.
    factor = np.linalg.cholesky(np.linalg.inv(precision)) * 1.3
    covariance = MatrixNormalCovariance(
        torch.from_numpy(factor).expand(3, 2, 2), torch.ones(3, 1, 1, dtype=torch.float64)
    )
    posterior = GaussianPosterior(torch.from_numpy(mean + 0.05)[..., None], covariance)

    def given(z: Tensor) -> Tensor:
        residual = torch.from_numpy(x) - z.squeeze(-1) @ torch.from_numpy(loading.T)
        return -0.5 * residual.square().sum(-1) / noise**2 - 5 * math.log(noise * math.sqrt(2 * math.pi))

    runs = torch.stack(
        [log_marginal(posterior, given, 4000, generator=torch.Generator().manual_seed(seed)) for seed in range(20)]
    )
    error = (runs.mean(0) - torch.from_numpy(exact)).abs()
    assert bool((error < 5 * runs.std(0) / math.sqrt(20) + 1e-6).all())
    assert bool((runs.std(0) < 0.02).all())


def test_the_exact_posterior_gives_the_exact_likelihood_from_one_draw() -> None:
    """The weights of all draws are then equal: ``p(x | z) p(z) / p(z | x) = p(x)``."""
    loading, noise, x = 0.8, 0.5, 1.3
    variance = 1 / (1 + loading**2 / noise**2)
    mean = torch.full((1, 1, 1), variance * loading * x / noise**2, dtype=torch.float64)
    posterior = GaussianPosterior(mean, DiagonalCovariance(torch.full_like(mean, math.sqrt(variance))))

    def given(z: Tensor) -> Tensor:
        return torch.from_numpy(stats.norm(loading * z.numpy(), noise).logpdf(x)).sum((-2, -1))

    exact = stats.norm(0, math.sqrt(loading**2 + noise**2)).logpdf(x)
    assert log_marginal(posterior, given, 1).item() == pytest.approx(exact, rel=1e-12)
    assert log_marginal(posterior, given, 7, together=3).item() == pytest.approx(exact, rel=1e-12)


def test_the_likelihood_of_a_network_with_one_latent_number_equals_quadrature() -> None:
    vae = VAE(Latent("mn", 1, 1), (3,), pixels=4, hidden=(5,)).double()
    x = torch.tensor([[1.0, 0.0, 1.0, 1.0]], dtype=torch.float64)
    with torch.no_grad():  # a proposal wider than the prior, whose weights are bounded
        vae.get_parameter("encoder.2.bias")[..., 1:] += 0.3

    def density(z: float) -> float:
        code = torch.full((1, 1, 1, 1), z, dtype=torch.float64)
        return math.exp(vae.log_likelihood(x[None], code).item()) * stats.norm.pdf(z)

    exact = math.log(integrate.quad(density, -9, 9, epsabs=1e-12)[0])
    given = partial(vae.log_likelihood, x[None])
    runs = [
        log_marginal(vae.encode(x[None]), given, 5000, generator=torch.Generator().manual_seed(seed)).item()
        for seed in range(10)
    ]
    assert abs(np.mean(runs) - exact) < 5 * np.std(runs, ddof=1) / math.sqrt(10)
    assert np.std(runs) < 0.02


def plain_terms(vae: VAE, model: int, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """One of the stacked models as an ordinary network of functional calls."""

    def through(network: torch.nn.Module, hidden: Tensor) -> Tensor:
        parameters = dict(network.named_parameters())
        names = sorted({int(name.split(".")[0]) for name in parameters})
        for position in names:
            weight, bias = parameters[f"{position}.weight"][model], parameters[f"{position}.bias"][model, 0]
            hidden = F.linear(hidden, weight.mT, bias)
            hidden = F.elu(hidden) if position != names[-1] else hidden
        return hidden

    outputs = through(vae.encoder, x)
    log_likelihoods, kls = [], []
    for image, numbers, eps in zip(x, outputs, noise, strict=True):
        posterior = vae.latent.posterior(numbers)
        z = posterior.from_noise(eps).flatten()
        logits = through(vae.decoder, z[None])[0]
        log_likelihoods.append((image * F.logsigmoid(logits) + (1 - image) * F.logsigmoid(-logits)).sum())
        standard = MultivariateNormal(torch.zeros_like(z), torch.eye(len(z), dtype=z.dtype))
        kls.append(kl_divergence(dense(vae.latent, numbers.detach()), standard))
    return torch.stack(log_likelihoods), torch.stack(kls)


@pytest.mark.parametrize("law", [Latent("diag", 2, 2), Latent("mn", 2, 2)], ids=str)
def test_stacked_models_are_the_single_ones(law: Latent) -> None:
    vae = VAE(law, (0, 5), pixels=6, hidden=(7, 4)).double()
    x = (torch.rand(2, 3, 6) < 0.5).double()
    torch.manual_seed(3)
    log_likelihoods, kls = vae.terms(x)
    torch.manual_seed(3)
    noise = torch.randn(2, 3, 2, 2, dtype=torch.float64)
    for model in range(2):
        wanted = plain_terms(vae, model, x[model], noise[model])
        torch.testing.assert_close(log_likelihoods[model], wanted[0], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(kls[model], wanted[1], rtol=1e-10, atol=1e-12)
    alone = VAE(law, (5,), pixels=6, hidden=(7, 4)).double()
    for name, tensor in alone.state_dict().items():
        assert torch.equal(tensor[0], vae.state_dict()[name][1])
    assert vae.logits(torch.zeros(9, 2, 3, 2, 2, dtype=torch.float64)).shape == (9, 2, 3, 6)


def test_training_improves_the_bound_and_the_likelihood_exceeds_it() -> None:
    found = images(None, CPU, 200)
    recipe = VAERecipe("mn", 9, epochs=4, anneal_epochs=1, seeds=(0, 1), synthetic=200, batch_size=20)
    vae = recipe.build()
    before = elbo(vae, found.valid)
    record = _train(vae, recipe, found)
    assert record["epochs"] == [4, 4]
    after = elbo(vae, found.valid, 20)
    likelihood = log_likelihood(vae, found.valid, 50, seed=0)
    for start, bound, marginal in zip(before, after, likelihood, strict=True):
        assert bound > start + 50
        assert marginal > bound
    assert after[0] != after[1]


def test_early_stopping_keeps_each_model_s_best() -> None:
    vae = VAE(Latent("diag", 2, 1), (0, 1), pixels=3, hidden=(2,))
    best = BestOfEach(vae, VAERecipe("diag", 2, epochs=9, anneal_epochs=1, patience=2, seeds=(0, 1)))
    scores = [[-5.0, -5.0], [-3.0, -6.0], [-4.0, -7.0], [-4.0, -1.0]]
    for number, pair in enumerate(scores):
        assert not best.settled
        with torch.no_grad():
            for tensor in vae.parameters():
                tensor.fill_(float(number))
        best.after_epoch(pair)
    assert best.settled
    assert best.best_epoch == [2, 1]  # the first model stopped after epoch 4, the second after 3
    assert best.stopped == [4, 3]
    best.restore()
    for tensor in vae.parameters():
        assert (tensor[0] == 1.0).all()
        assert (tensor[1] == 0.0).all()


def test_image_rows() -> None:
    models = {"mn": VAE(latent("mn", 9), (0, 1))}
    rows = image_rows(models, torch.ones(12, 784, dtype=torch.uint8), 0)
    assert list(rows) == ["test images", "MN: reconstructions", "MN: samples"]
    assert all(pixels.shape == (10, 784) for pixels in rows.values())
    posterior = models["mn"].encode(torch.ones(2, 10, 784))
    expected = torch.sigmoid(models["mn"].logits(posterior.mean)[0])
    torch.testing.assert_close(rows["MN: reconstructions"], expected)


def test_images_of_a_strip_stand_apart() -> None:
    images = torch.rand(3, 784)
    drawn = strip(images)
    assert drawn.shape == (28, 3 * 28 + 2 * GAP)
    for number, image in enumerate(images):
        start = number * (28 + GAP)
        assert torch.equal(drawn[:, start : start + 28], image.view(28, 28))
        assert not drawn[:, start + 28 : start + 28 + GAP].any()


def test_wrong_codes_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="at least one row"):
        Latent("mn", 0, 1)
    with pytest.raises(ShapeMismatch, match=r"Give it 19: sum\(latent.sizes\)"):
        Latent("mn", 3, 2).posterior(torch.zeros(4, 18))

"""Rows of Table 1 beside scikit-learn, statsmodels and their published equations: Bayesian inference."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bayesrule import algorithms
from bayesrule.experiments.blr import transcriptions
from bayesrule.experiments.blr.problems import Size, clusters, largest, logistic
from bayesrule.expfam import (
    Dirichlet,
    FiniteMixture,
    GaussianFull,
    Natural,
    NormalWishart,
    robbins_monro,
)
from bayesrule.inference import Topics, bayesian_mixture, complete_mixture


def laplace(size: Size) -> float:
    """Mean and covariance against ``statsmodels``' logistic regression."""
    import statsmodels.api

    problem, family = logistic(size, prior_precision=0.0), GaussianFull()
    mean, precision = family.to_mean_precision(algorithms.laplace(problem.loss(), torch.zeros(3, dtype=torch.float64)))
    fitted = statsmodels.api.Logit(problem.y.numpy(), problem.x.numpy()).fit(tol=1e-14, disp=0, warn_convergence=0)
    return largest([mean.numpy() - fitted.params, np.linalg.inv(precision.numpy()) - fitted.cov_params()])


def expectation_maximization(size: Size) -> float:
    """Iterates against scikit-learn's ``GaussianMixture``; the online form against its equations."""
    return max(_em_iterates(size), _online_em_iterates(size))


def _em_iterates(size: Size) -> float:
    import sklearn.exceptions
    import sklearn.mixture

    x = clusters(size)
    data, start = complete_mixture(x, 3), _mixture_start(x)
    latent, theta = Natural(logits=x.new_zeros(len(x), 2)), _mixture_natural(data.model, *start)
    differences: list[Any] = []
    for steps in range(1, 11):
        latent, theta = algorithms.em_step(data, latent, theta)
        fitted = sklearn.mixture.GaussianMixture(
            3, tol=0.0, reg_covar=0.0, max_iter=steps, init_params="random", random_state=0,
            weights_init=start[0].numpy(), means_init=start[1].numpy(), precisions_init=start[2].inverse().numpy(),
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sklearn.exceptions.ConvergenceWarning)
            fitted.fit(x.numpy())
        differences += _mixture_differences(data.model, theta, fitted.weights_, fitted.means_, fitted.covariances_)
    return largest(differences)


def _online_em_iterates(size: Size) -> float:
    x = clusters(size)
    batches, rates = list(x.split(20)), [0.5 / (1 + t) for t in range(100)]
    start = _mixture_start(x)
    model = FiniteMixture(GaussianFull(), 3)
    theta = _mixture_natural(model, *start)
    theirs = transcriptions.online_em(
        [batch.numpy() for batch in batches],
        start[0].numpy(),
        start[1].numpy(),
        start[2].numpy(),
        rates[: len(batches)],
    )
    differences: list[Any] = []
    for batch, rate, wanted in zip(batches, rates, theirs, strict=False):
        data = complete_mixture(batch, 3)
        _, theta = algorithms.em_step(data, Natural(logits=x.new_zeros(len(batch), 2)), theta, rate)
        differences += _mixture_differences(model, theta, *wanted)
    return largest(differences)


def _mixture_start(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    means = torch.tensor([[-1.0, 0.3], [1.0, 1.0], [0.5, -1.0]], dtype=x.dtype)
    return torch.tensor([0.3, 0.3, 0.4], dtype=x.dtype), means, torch.eye(2).to(x).expand(3, 2, 2)


def _mixture_natural(model: Any, weights: Tensor, means: Tensor, covariances: Tensor) -> Natural:
    return model.from_weights(weights, GaussianFull().from_mean_precision(means, covariances.inverse()))


def _mixture_differences(model: Any, theta: Natural, weights: Any, means: Any, covariances: Any) -> list[Any]:
    got, components = model.to_weights(theta)
    mean, precision = GaussianFull().to_mean_precision(components)
    return [got.numpy() - weights, mean.numpy() - means, precision.inverse().numpy() - covariances]


def stochastic_vi(size: Size) -> float:
    """Topics after each minibatch against scikit-learn's online ``LatentDirichletAllocation``."""
    import sklearn.decomposition

    rng = size.rng("documents")
    words = rng.dirichlet(np.full(12, 0.3), size=3)
    shares = rng.dirichlet(np.full(3, 0.5), size=20)
    counts = np.stack([rng.multinomial(30, share @ words) for share in shares]).astype(float)
    theirs = sklearn.decomposition.LatentDirichletAllocation(
        3, doc_topic_prior=0.4, topic_word_prior=0.2, learning_offset=5.0, learning_decay=0.7, batch_size=10,
        total_samples=20, max_doc_update_iter=15, mean_change_tol=0.0, random_state=size.seed,
    )  # fmt: skip
    stream = np.random.RandomState(size.seed)
    concentration = torch.as_tensor(stream.gamma(100.0, 0.01, (3, 12)))
    topics, schedule = Topics(topic_prior=0.2, proportion_prior=0.4, documents=20), robbins_monro(5.0, 0.7)
    differences: list[Any] = []
    for t in range(6):
        batch = counts[10 * (t % 2) : 10 * (t % 2) + 10]
        start = torch.as_tensor(stream.gamma(100.0, 0.01, (10, 3)))
        concentration = topics.step(concentration, torch.as_tensor(batch), start, step_size=schedule(t + 1), sweeps=15)
        wanted = theirs.partial_fit(batch).components_
        # Of the probabilities: the library's own digamma function has an error of 3e-9, which counts magnify.
        ours = concentration / concentration.sum(-1, keepdim=True)
        differences.append(ours.numpy() - wanted / wanted.sum(-1, keepdims=True))
    return largest(differences)


def message_passing(size: Size) -> float:
    """Iterates against scikit-learn's ``BayesianGaussianMixture``."""
    import sklearn.exceptions
    import sklearn.mixture

    x = clusters(size)
    dirichlet, wishart = Dirichlet(), NormalWishart()
    mean, scale = x.mean(0), torch.cov(x.mT)
    prior = wishart.from_usual(mean, torch.tensor(0.7, dtype=x.dtype), torch.tensor(4.0).to(x), scale)
    model = bayesian_mixture(
        x, weights_prior=dirichlet.from_concentration(x.new_full((3,), 0.8)), component_prior=prior
    )
    share = np.random.RandomState(size.seed).uniform(size=(len(x), 3))
    labels = torch.as_tensor(share / share.sum(1, keepdims=True))
    naturals = {
        "labels": Natural(logits=labels[:, :-1].log() - labels[:, -1:].log()),
        "weights": dirichlet.from_concentration(torch.ones(3).to(x)),
        "components": prior.map(lambda value: value.expand(3, *value.shape)),
    }
    naturals = algorithms.vmp_sweep(model.families, model.expected_loss, naturals, ["weights", "components"])
    differences: list[Any] = []
    for steps in range(1, 11):
        order = ["labels", "weights", "components"]
        naturals = algorithms.vmp_sweep(model.families, model.expected_loss, naturals, order)
        theirs = sklearn.mixture.BayesianGaussianMixture(
            n_components=3, weight_concentration_prior_type="dirichlet_distribution", weight_concentration_prior=0.8,
            mean_precision_prior=0.7, mean_prior=mean.numpy(), degrees_of_freedom_prior=4.0,
            covariance_prior=scale.numpy(), reg_covar=0.0, tol=0.0, max_iter=steps, init_params="random",
            random_state=size.seed,
        )  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sklearn.exceptions.ConvergenceWarning)
            theirs.fit(x.numpy())
        mean_, strength, degrees, inverse = wishart.to_usual(naturals["components"])
        differences += [
            dirichlet.to_concentration(naturals["weights"]).numpy() - theirs.weight_concentration_,
            mean_.numpy() - theirs.means_,
            strength.numpy() - theirs.mean_precision_,
            degrees.numpy() - theirs.degrees_of_freedom_,
            (inverse / degrees[:, None, None]).numpy() - theirs.covariances_,
        ]
    return largest(differences)


def exponential_weights(size: Size) -> float:
    """Against the multiplicative update in NumPy."""
    losses = size.rng("experts").uniform(size=(size.steps, 4))
    start = torch.full((4,), 0.25, dtype=torch.float64)
    ours = algorithms.exponential_weights(torch.as_tensor(losses), start, 0.5)
    theirs = transcriptions.hedge(list(losses), start.numpy(), 0.5)
    return largest([got.numpy() - wanted for got, wanted in zip(ours, theirs, strict=True)])

"""The conjugate row: ridge regression, Kalman filter and smoother, PCA and Gaussian processes, each in one step."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bayesrule.experiments.blr.problems import Size, largest
from bayesrule.expfam import ChainGaussian, GaussianFull
from bayesrule.inference import StateSpace, factor_posterior, gp_predict, gp_regression, ridge, squared_exponential


def conjugate(size: Size) -> float:
    """The largest deviation of the five."""
    return max(_ridge(size), _kalman(size), _factors(size), _process(size))


def _ridge(size: Size) -> float:
    """Against scikit-learn's ``Ridge``."""
    import sklearn.linear_model

    rng = size.rng("ridge")
    x = rng.normal(size=(size.examples, 3)) @ rng.normal(size=(3, 3))
    y = x @ np.array([1.0, -2.0, 0.5]) + 0.3 * rng.normal(size=size.examples)
    mean = GaussianFull().mean(ridge(torch.as_tensor(x), torch.as_tensor(y), prior_precision=2.0))
    theirs = sklearn.linear_model.Ridge(alpha=2.0, fit_intercept=False).fit(x, y)
    return largest([mean.numpy() - theirs.coef_])


def _kalman(size: Size) -> float:
    """Filter and smoother against those of ``statsmodels``."""
    from statsmodels.tsa.statespace.kalman_smoother import KalmanSmoother

    rng = size.rng("kalman")
    model = {
        "transition": np.array([[0.9, 0.2], [-0.1, 0.8]]),
        "transition_covariance": np.array([[0.5, 0.1], [0.1, 0.3]]),
        "observation": np.array([[1.0, 0.3]]),
        "observation_covariance": np.array([[0.4]]),
        "first_mean": np.array([0.5, -0.2]),
        "first_covariance": np.array([[1.0, 0.2], [0.2, 0.7]]),
    }
    y = rng.normal(size=(size.steps, 1)).cumsum(0)
    theirs = KalmanSmoother(k_endog=1, k_states=2, k_posdef=2)
    theirs.bind(y)
    theirs["design"], theirs["obs_cov"] = model["observation"], model["observation_covariance"]
    theirs["transition"], theirs["selection"] = model["transition"], np.eye(2)
    theirs["state_cov"] = model["transition_covariance"]
    theirs.initialize_known(model["first_mean"], model["first_covariance"])
    wanted = theirs.smooth()
    ours = StateSpace(**{name: torch.as_tensor(value) for name, value in model.items()})
    chain = ChainGaussian()
    mean, covariance, _ = chain.moments(chain.to_expectation(ours.smooth(torch.as_tensor(y))))
    differences: list[Any] = [
        mean.numpy() - wanted.smoothed_state.T,
        covariance.numpy() - wanted.smoothed_state_cov.transpose(2, 0, 1),
    ]
    for t, natural in enumerate(ours.filter(torch.as_tensor(y))):
        state, precision = GaussianFull().to_mean_precision(natural)
        differences.append(state.numpy() - wanted.filtered_state[:, t])
        differences.append(np.linalg.inv(precision.numpy()) - wanted.filtered_state_cov[:, :, t])
    return largest(differences)


def _factors(size: Size) -> float:
    """Probabilistic PCA: loadings and noise of scikit-learn's ``PCA``, whose precision the factors must give."""
    import sklearn.decomposition

    x = size.rng("factors").normal(size=(size.examples, 5)) @ np.diag([3.0, 2.0, 1.0, 0.5, 0.5])
    pca = sklearn.decomposition.PCA(2, svd_solver="full").fit(x)
    excess = np.sqrt(pca.explained_variance_ - pca.noise_variance_)
    loadings = pca.components_.T * excess
    analysis = sklearn.decomposition.FactorAnalysis(2)
    analysis.components_, analysis.mean_ = loadings.T, pca.mean_
    analysis.noise_variance_ = np.full(5, pca.noise_variance_)
    analysis.n_features_in_ = 5
    natural = factor_posterior(
        torch.as_tensor(x), torch.as_tensor(loadings), torch.as_tensor(analysis.noise_variance_),
        torch.as_tensor(pca.mean_),
    )  # fmt: skip
    mean, _ = GaussianFull().to_mean_precision(natural)
    # x − W E[z|x] over the noise variance is the precision times x: the two libraries' formulas share nothing.
    residual = (x - pca.mean_ - mean.numpy() @ loadings.T) / pca.noise_variance_
    return largest([mean.numpy() - analysis.transform(x), residual - (x - pca.mean_) @ pca.get_precision()])


def _process(size: Size) -> float:
    """Predictions against scikit-learn's ``GaussianProcessRegressor``."""
    from sklearn.gaussian_process import GaussianProcessRegressor
    from sklearn.gaussian_process.kernels import RBF

    rng = size.rng("process")
    x, new = rng.uniform(-3, 3, size=(12, 1)), np.linspace(-4, 4, 15)[:, None]
    y = np.sin(2 * x[:, 0]) + 0.1 * rng.normal(size=12)
    kernel = squared_exponential(length=0.6)
    inputs, targets = torch.as_tensor(x), torch.as_tensor(new)
    natural = gp_regression(inputs, torch.as_tensor(y), kernel, noise_std=0.2, jitter=0.0)
    mean, std = gp_predict(natural, inputs, targets, kernel, jitter=0.0)
    theirs = GaussianProcessRegressor(RBF(0.6, "fixed"), alpha=0.04, optimizer=None).fit(x, y)
    wanted_mean, wanted_std = theirs.predict(new, return_std=True)
    return largest([mean.numpy() - wanted_mean, std.numpy() - wanted_std])

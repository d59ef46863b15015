"""One KL for every pair of a Gaussian posterior and a prior."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesrule.linalg import broadcast_sum, event_dims, sum_of_squares
from bayesrule.posteriors import GaussianPosterior, PointPosterior, Posterior
from bayesrule.priors.prior import DiagonalNormal, Prior, need_gaussian


def kl_divergence(posterior: Posterior, prior: Prior, hyperparameters: Mapping[str, Tensor] | None = None) -> Tensor:
    """``KL(q ‖ p) = ½[Σ log s² − log det Σ + Σ (var + (mean − m₀)²)/s² − d]``, a *sum* over the event's entries.

    A point estimate contributes zero. Where the posterior's `logdet` is a lower bound, this is an upper bound.
    """
    if isinstance(posterior, PointPosterior):
        return posterior.mean.new_zeros(posterior.mean.shape[: posterior.mean.ndim - posterior.event_dim])
    gaussian = need_gaussian(posterior, prior)
    return _gaussian_kl(gaussian, prior.given(gaussian, hyperparameters or {}))


def total_kl(
    posteriors: Mapping[str, Posterior],
    prior: Prior,
    hyperparameters: Mapping[str, Mapping[str, Tensor]] | None = None,
) -> Tensor:
    """The KL of several posteriors under one prior, whose shared scales are settled over all of them."""
    shared = prior.share(posteriors.values())
    given = hyperparameters or {}
    return torch.stack([kl_divergence(q, shared, given.get(name)) for name, q in posteriors.items()]).sum(0)


def _gaussian_kl(posterior: GaussianPosterior, prior: DiagonalNormal) -> Tensor:
    event = posterior.event_shape
    log_scales = -broadcast_sum(prior.precision.log(), event)
    trace = posterior.covariance.trace(prior.precision)
    distance = _weighted_squares(posterior.mean - prior.mean, prior.precision, posterior.event_dim)
    return 0.5 * (log_scales - posterior.covariance.logdet() + trace + distance - event.numel())


def _weighted_squares(centred: Tensor, precision: Tensor, event_dim: int) -> Tensor:
    """``Σ precision · centred²``; no squared copy of the mean where the precision is one number."""
    batch = max(0, precision.ndim - event_dim)
    if precision.shape[batch:].numel() == 1:
        return precision.reshape(precision.shape[:batch]) * sum_of_squares(centred, event_dim)
    return (precision * centred.square()).sum(event_dims(event_dim))

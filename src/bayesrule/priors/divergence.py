"""One KL for every pair of a Gaussian posterior and a prior, and the Bregman form for the rest."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from bayesrule.errors import Unsupported
from bayesrule.linalg import broadcast_sum, event_dims, sum_of_squares
from bayesrule.posteriors import GaussianPosterior, PointPosterior, Posterior
from bayesrule.priors.prior import DiagonalNormal, Prior, need_gaussian


def kl_divergence(
    posterior: Posterior, prior: Prior | Posterior, hyperparameters: Mapping[str, Tensor] | None = None
) -> Tensor:
    """``KL(q ‖ p) = ½[Σ log s² − log det Σ + Σ (var + (mean − m₀)²)/s² − d]``, a *sum* over the event's entries.

    A point estimate contributes zero. Where the posterior's `logdet` is a lower bound, this is an upper bound. Two
    members of one exponential family that is not Gaussian are compared by its Bregman divergence.
    """
    if isinstance(posterior, PointPosterior):
        return posterior.mean.new_zeros(posterior.mean.shape[: posterior.mean.ndim - posterior.event_dim])
    if isinstance(prior, Posterior):
        return _bregman_kl(posterior, prior)
    gaussian, numbers = need_gaussian(posterior, prior), prior.numbers()
    fused = None if numbers is None else gaussian.fused_divergence(*numbers)
    if fused is not None:
        return fused
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


def _bregman_kl(posterior: Posterior, prior: Posterior) -> Tensor:
    (family, natural), (other, prior_natural) = posterior.exponential(), prior.exponential()
    if family != other:
        raise Unsupported(
            "Two posteriors can be compared when they are of one exponential family",
            got=f"{posterior.structure} and {prior.structure}",
        )
    return family.kl(natural, prior_natural)


def _gaussian_kl(posterior: GaussianPosterior, prior: DiagonalNormal) -> Tensor:
    event = posterior.event_shape
    log_scales = -broadcast_sum(prior.precision.log(), event)
    trace = posterior.covariance.trace(prior.precision)
    distance = _weighted_squares(posterior, prior)
    return 0.5 * (log_scales - posterior.covariance.logdet() + trace + distance - event.numel())


def _weighted_squares(posterior: GaussianPosterior, prior: DiagonalNormal) -> Tensor:
    """``Σ precision · (mean − m₀)²``; no copy of the mean is kept where the precision is one number."""
    precision, event_dim = prior.precision, posterior.event_dim
    batch = max(0, precision.ndim - event_dim)
    if precision.shape[batch:].numel() == 1:
        return precision.reshape(precision.shape[:batch]) * sum_of_squares(posterior.mean, event_dim, prior.mean)
    return (precision * (posterior.mean - prior.mean).square()).sum(event_dims(event_dim))

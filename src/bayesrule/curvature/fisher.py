"""Which gradients a Fisher matrix is made of: of sampled targets, of all targets in closed form, or of the labels."""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.likelihoods import Bernoulli, Categorical, Gaussian, GaussianGammaNoise, Likelihood, Poisson
from bayesrule.likelihoods.support import readable_values
from bayesrule.random import NoiseSource

Fisher = Literal["sampled", "exact", "empirical"]


def sampled_cotangents(
    likelihood: Likelihood, outputs: Float[Tensor, "*leading outputs"], noise: NoiseSource, samples: int = 1
) -> Float[Tensor, "samples *leading outputs"]:
    """``∇_f −log p(y | f)`` at targets y drawn from ``p(y | f)``, over √samples: the true Fisher, by Monte Carlo.

    It must be called outside the gradient of the pass: the outputs are constants here. Works under `torch.func.vmap`
    with noise that is given.
    """
    constant = outputs.detach()

    def one() -> Tensor:
        targets = likelihood.sample(constant, noise)
        if type(likelihood) is Categorical:  # in closed form, p − e_y: the general way costs as much as a small network
            index = targets.unsqueeze(-1)
            return constant.softmax(-1).scatter_add(-1, index, constant.new_full((), -1.0).expand(index.shape))
        return torch.func.grad(lambda f: -likelihood.log_prob(f, targets).sum())(constant)

    try:
        return one().unsqueeze(0) if samples == 1 else torch.stack([one() for _ in range(samples)]) * samples**-0.5
    except (InvalidArgument, RuntimeError):  # where nothing is refused, nothing more is looked at
        _check_outputs(constant)
        raise


def exact_cotangents(
    likelihood: Likelihood, outputs: Float[Tensor, "*leading outputs"]
) -> Float[Tensor, "cotangents *leading outputs"]:
    """The columns of a root of the outputs' own Fisher matrix: ``Σ_j c_j c_jᵀ = E_y[∇log p ∇log pᵀ]``.

    One pull-back for each output: for classes ``√p_c (p − e_c)``, for independent entries ``e_j √F_j``, where the
    Fisher information ``F_j`` is 1/σ² of a Gaussian and the variance of a Bernoulli or a Poisson target.
    """
    mean, variance = likelihood.moments(outputs.detach())
    units = torch.eye(outputs.shape[-1], dtype=mean.dtype, device=mean.device)
    units = units.reshape(-1, *(1,) * (outputs.ndim - 1), outputs.shape[-1])
    if isinstance(likelihood, Categorical):
        columns = mean.movedim(-1, 0).unsqueeze(-1).sqrt() * (mean - units)
    elif isinstance(likelihood, Gaussian | GaussianGammaNoise):
        columns = units * variance.rsqrt()
    elif isinstance(likelihood, Bernoulli | Poisson):
        columns = units * variance.sqrt()
    else:
        raise Unsupported(
            "The exact Fisher matrix of the outputs is known for Gaussian, Categorical, Bernoulli and Poisson",
            got=type(likelihood).__name__, remedy='Use fisher="sampled".',
        )  # fmt: skip
    return columns.to(outputs.dtype)


def _check_outputs(outputs: Tensor) -> None:
    """Refuse outputs that are not finite, in place of the targets that were sampled at them."""
    values = readable_values(outputs)
    if values is not None and not (finite := values.isfinite()).all():
        raise InvalidArgument(
            "The network's outputs are not finite", got=f"{int((~finite).sum())} of {finite.numel()} numbers",
            remedy="Look for NaN in the batch's inputs; if they are finite, training has diverged: lower lr.",
        ) from None  # fmt: skip

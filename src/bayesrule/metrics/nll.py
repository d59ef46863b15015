"""Negative log-likelihood of the targets under an averaged prediction."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesrule.metrics.checks import Reduction, reduced, require_draws, require_examples, require_values
from bayesrule.metrics.class_predictions import class_predictions


def categorical_nll(probs: Tensor, targets: Tensor, *, reduction: Reduction = "mean") -> Float64[Tensor, "*examples"]:
    """``−log p[y]``, from probabilities averaged over posterior draws.

    A probability of zero is read as the smallest normal number of its dtype, so that one example costs at most 87.3 in
    float32 (and below), 708.4 in float64, and the mean stays finite. Where the log-probabilities of the single draws
    are at hand, `mixture_nll` gives the same number without that guard.

    Args:
        probs: (examples, classes), or one column for two classes.
        targets: (examples,) class indices.
        reduction: "mean" over the examples, or "none".

    Example:
        >>> import torch
        >>> probs = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.5, 0.5]])
        >>> categorical_nll(probs, torch.tensor([0, 2]), reduction="none").exp()
        tensor([2., 2.], dtype=torch.float64)
    """
    of_target = class_predictions(probs, targets).of_target
    guarded = of_target.clamp_min(torch.finfo(of_target.dtype).tiny)
    return reduced(-guarded.double().log(), reduction)


def mixture_nll(log_probs: Tensor, *, reduction: Reduction = "mean") -> Float64[Tensor, "*examples"]:
    """``−log (1/S) Σ_s p(y | w_s)`` from the log-density of each target under each of S posterior draws.

    Probabilities are averaged, not their logarithms, so this is at most the mean of the draws' own NLLs (Jensen). It
    is infinite where every draw gives density zero.

    Args:
        log_probs: (draws, examples), ``log p(y | w_s)``.
        reduction: "mean" over the examples, or "none".

    Example:
        >>> import torch
        >>> draws = torch.tensor([[0.2], [0.6]], dtype=torch.float64).log()
        >>> round(mixture_nll(draws).neg().exp().item(), 12)
        0.4
    """
    require_draws("log-probabilities", log_probs)
    require_examples("log-probabilities", log_probs)
    possible = ~(log_probs.isnan() | log_probs.isposinf())
    require_values("log-probabilities must be numbers below +inf", log_probs, possible, "Look for a diverged run.")
    return reduced(math.log(len(log_probs)) - log_probs.double().logsumexp(0), reduction)

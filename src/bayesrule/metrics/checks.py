"""Refusals that every metric shares, and the mean over examples."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Bool, Float64
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch

Reduction = Literal["mean", "none"]


def require_values(what: str, values: Tensor, good: Bool[Tensor, "*values"], remedy: str) -> None:
    """Refuse ``values`` of which some are not ``good``, showing how many and the first."""
    if good.all():
        return
    bad = values[~good]
    raise InvalidArgument(what, got=f"{len(bad)} of {values.numel()} not so, the first {bad[0].item()}", remedy=remedy)


def require_examples(name: str, values: Tensor) -> None:
    """Refuse an empty tensor: a mean over no examples means nothing."""
    if values.numel() == 0:
        raise InvalidArgument(
            f"{name} hold no examples", got=f"shape {tuple(values.shape)}", remedy="Give at least one."
        )


def require_same_shape(name: str, values: Tensor, targets: Tensor) -> None:
    """Refuse a shape other than that of the targets, also where it would broadcast."""
    if values.shape != targets.shape:
        raise ShapeMismatch(
            f"{name} do not fit the targets",
            got=f"shape {tuple(values.shape)} beside targets of shape {tuple(targets.shape)}",
            remedy="Nothing is broadcast: reshape one, often by .squeeze(-1), or .expand_as(targets) for a constant.",
        )


def require_draws(name: str, values: Tensor) -> None:
    """Refuse a tensor without a leading dimension of posterior draws."""
    if values.ndim == 0:
        raise ShapeMismatch(
            f"{name} need a leading dimension of posterior draws",
            got=f"shape {tuple(values.shape)}",
            remedy="Use .unsqueeze(0) for a single draw.",
        )


def finite_values(name: str, values: Tensor) -> Float64[Tensor, "*values"]:
    """At least one value, all finite, in float64."""
    require_examples(name, values)
    values = values.double()
    require_values(f"{name} must be finite", values, values.isfinite(), "Look for a diverged run or missing data.")
    return values


def reduced(values: Tensor, reduction: Reduction) -> Float64[Tensor, "*examples"]:
    """The mean over all values, or the values themselves."""
    if reduction == "mean":
        return values.double().mean()
    if reduction == "none":
        return values.double()
    raise InvalidArgument("no such reduction", got=repr(reduction), remedy='Use "mean" or "none".')

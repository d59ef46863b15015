"""Which weights are dropped: those whose noise drowns their mean."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.linalg import MatrixView
from bayesrule.posteriors import PointPosterior, Posterior

THRESHOLD = 3.0
"""Of ``log(s/M²)``: a standard deviation of about 4.5 times the mean."""


@dataclass(frozen=True)
class PrunableWeight:
    """One weight and how much of it is noise.

    Attributes:
        name: Of the parameter.
        view: How it is read as a fan-in × fan-out matrix.
        noise: ``log(s/M²)`` of every entry, in the parameter's own layout.
    """

    name: str
    view: MatrixView
    noise: Float[Tensor, ...]


@dataclass(frozen=True)
class Choice:
    """The weights that stay.

    Attributes:
        masks: By parameter name, in its own layout: True where a weight stays.
        threshold: A weight above it is dropped. Where a share was asked for, the noise of the last weight to stay.
    """

    masks: dict[str, Bool[Tensor, ...]]
    threshold: float


@torch.no_grad()
def prunable_weights(posteriors: Mapping[str, Posterior]) -> list[PrunableWeight]:
    """Every weight that has a posterior; biases and point estimates are not pruned."""
    found = []
    for group, posterior in posteriors.items():
        if isinstance(posterior, PointPosterior):
            continue
        noise = posterior.split(log_noise(posterior.variance, posterior.mean, group))
        views = {part.name: part.layout for part in posterior.parts if isinstance(part.layout, MatrixView)}
        found += [PrunableWeight(name, view, noise[name].cpu()) for name, view in views.items()]
    return found


def log_noise(variance: Tensor, mean: Tensor, name: str) -> Tensor:
    """``log(s/M²)`` in double precision; infinite for a mean of zero, whatever its variance."""
    if not bool((torch.isfinite(mean) & torch.isfinite(variance) & (variance >= 0)).all()):
        raise InvalidArgument(
            f"The posterior of {name!r} has entries that are no numbers", got="NaN or infinite means or variances",
            remedy="Go back to a model that trained well.",
        )  # fmt: skip
    noise = variance.double().log() - 2 * mean.double().abs().log()
    return torch.where(mean == 0, math.inf, noise)


def choose(weights: list[PrunableWeight], threshold: float | None, target_sparsity: float | None) -> Choice:
    """The weights above the threshold, or as many of the noisiest ones as the target says, are dropped."""
    if threshold is not None and target_sparsity is not None:
        raise InvalidArgument(
            "Give either a threshold or a target sparsity",
            got=f"threshold={threshold}, target_sparsity={target_sparsity}",
        )
    if target_sparsity is None:
        level = THRESHOLD if threshold is None else threshold
        if math.isnan(level):
            raise InvalidArgument("The threshold of log(s/M²) must be a number", got=level)
        chosen = Choice({weight.name: weight.noise <= level for weight in weights}, level)
    else:
        chosen = _noisiest(weights, target_sparsity)
    if not any(bool(mask.any()) for mask in chosen.masks.values()):
        raise InvalidArgument(
            "Every weight would be dropped", got=f"log(s/M²) above {chosen.threshold:.4g} everywhere",
            remedy="Raise the threshold, lower the target sparsity, or train longer.",
        )  # fmt: skip
    return chosen


def _noisiest(weights: list[PrunableWeight], target: float) -> Choice:
    """``round(target · N)`` of all N weights; among equals, those that come first."""
    if not 0 <= target < 1:
        meant = f" Did you mean {target / 100:g}?" if 2 <= target < 100 else ""
        raise InvalidArgument(
            "The target sparsity lies between 0 and 1, 1 excluded", got=target,
            remedy=f"It is the share of weights to be dropped: 0.95 for 95 %.{meant}",
        )  # fmt: skip
    noise = torch.cat([weight.noise.reshape(-1) for weight in weights])
    order = noise.argsort(descending=True, stable=True)
    dropped = round(target * len(noise))
    kept = torch.ones(len(noise), dtype=torch.bool)
    kept[order[:dropped]] = False
    pieces = kept.split([weight.noise.numel() for weight in weights])
    masks = {weight.name: piece.reshape(weight.noise.shape) for weight, piece in zip(weights, pieces, strict=True)}
    last = float(noise[order[dropped]]) if dropped < len(noise) else -math.inf
    return Choice(masks, last)

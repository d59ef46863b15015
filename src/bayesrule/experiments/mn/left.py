"""What is left of a network after zeroed weights are deleted   [Tables 1 and 2]."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from bayesrule.linalg import MatrixView
from bayesrule.nn import BayesianModule, mean_module
from bayesrule.posteriors import GaussianPosterior, Posterior
from bayesrule.prune.masks import THRESHOLD, log_noise

Whole = Literal["weight", "row", "column"]


def kept(posterior: Posterior, whole: Whole = "weight", threshold: float = THRESHOLD) -> Bool[Tensor, "fan_in fan_out"]:
    """Weights whose mean is not drowned in noise, ``log(s/M²) ≤ threshold``; or all of each row or column with one."""
    mask = log_noise(posterior.variance, posterior.mean, posterior.parts[0].name) <= threshold
    if whole == "weight":
        return mask
    return mask.any(-1 if whole == "row" else -2, keepdim=True).expand_as(mask)


@dataclass(frozen=True)
class LayerLeft:
    """Counts of one layer, in its fan-in × fan-out view.

    Attributes:
        name: Of its weight.
        convolution: Whether it is one; the paper's tables list only those.
        weights: All of them.
        weights_left: Those kept.
        rows: All of them.
        rows_left: Those with a weight that is kept.
        columns: All of them.
        columns_left: Likewise.
    """

    name: str
    convolution: bool
    weights: int
    weights_left: int
    rows: int
    rows_left: int
    columns: int
    columns_left: int


@torch.no_grad()
def layers_left(bnn: BayesianModule, threshold: float = THRESHOLD) -> list[LayerLeft]:
    """Layer by layer."""
    found = []
    for name, posterior, layout in _kernels(bnn):
        mask = kept(posterior, threshold=threshold)
        found.append(
            LayerLeft(
                name, len(layout.shape) > 2, mask.numel(), int(mask.sum()),
                mask.shape[0], int(mask.any(1).sum()), mask.shape[1], int(mask.any(0).sum()),
            )
        )  # fmt: skip
    return found


def totals(layers: Iterable[LayerLeft]) -> dict[str, float]:
    """Weights of all layers; rows and columns of the convolutions alone, as in Table 2."""
    layers = list(layers)
    listed = [layer for layer in layers if layer.convolution] or layers
    return {
        "weights_total": sum(layer.weights for layer in layers),
        "weights_left": sum(layer.weights_left for layer in layers),
        "rows_total": sum(layer.rows for layer in listed),
        "rows_left": sum(layer.rows_left for layer in listed),
        "columns_total": sum(layer.columns for layer in listed),
        "columns_left": sum(layer.columns_left for layer in listed),
    }


@torch.no_grad()
def pruned_mean(bnn: BayesianModule, whole: Whole = "weight", threshold: float = THRESHOLD) -> nn.Module:
    """The plain network at the posterior mean, the weights that are not kept set to zero."""
    plain = mean_module(bnn).eval()
    for name, posterior, layout in _kernels(bnn):
        plain.get_parameter(name).mul_(layout.weight(kept(posterior, whole, threshold).to(posterior.mean.dtype)))
    return plain


def _kernels(bnn: BayesianModule) -> list[tuple[str, Posterior, MatrixView]]:
    return [
        (name, posterior, layout)
        for name, posterior in bnn.posteriors().items()
        for layout in [posterior.parts[0].layout]
        if isinstance(posterior, GaussianPosterior) and isinstance(layout, MatrixView)
    ]

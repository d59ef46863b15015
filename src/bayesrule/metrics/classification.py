"""Accuracy and the Brier score, in both its conventions."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesrule.metrics.checks import Reduction, reduced
from bayesrule.metrics.class_predictions import class_predictions


def accuracy(probs: Tensor, targets: Tensor, *, reduction: Reduction = "mean") -> Float64[Tensor, "*examples"]:
    """``1[argmax_c p[c] = y]``; of tied classes the one of lowest index is predicted (one column: class 0 at ½).

    Args:
        probs: (examples, classes), or one column for two classes.
        targets: (examples,) class indices.
        reduction: "mean" over the examples, or "none" for ones and zeros.

    Example:
        >>> import torch
        >>> accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4]]), torch.tensor([0, 1])).item()
        0.5
    """
    return reduced(class_predictions(probs, targets).correct, reduction)


def brier_score(probs: Tensor, targets: Tensor, *, reduction: Reduction = "mean") -> Float64[Tensor, "*examples"]:
    """``Σ_c (p[c] − 1[c = y])²``, the usual convention: from 0, perfect, to 2.

    For one column this is ``2(p − y)²``, both classes being summed; scikit-learn's binary ``brier_score_loss`` is half
    of it.

    Args:
        probs: (examples, classes), or one column for two classes.
        targets: (examples,) class indices.
        reduction: "mean" over the examples, or "none".

    Example:
        >>> import torch
        >>> brier_score(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([0])).item()
        0.5
    """
    predictions = class_predictions(probs, targets)
    # Subtracted before squaring: `Σp² − 2p[y] + 1` would lose every digit of a good prediction's score.
    surplus = (predictions.of_target - 1).unsqueeze(-1)
    distance = predictions.probs.scatter(-1, predictions.targets.unsqueeze(-1), surplus)
    return reduced(distance.square().sum(-1, dtype=torch.float64), reduction)


def brier_score_tfp(probs: Tensor, targets: Tensor, *, reduction: Reduction = "mean") -> Float64[Tensor, "*examples"]:
    """``Σ_c p[c]² − 2p[y]``, TensorFlow Probability's convention: `brier_score` minus 1, so from −1, perfect, to 1.

    Args:
        probs: (examples, classes), or one column for two classes.
        targets: (examples,) class indices.
        reduction: "mean" over the examples, or "none".

    Example:
        >>> import torch
        >>> brier_score_tfp(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([0])).item()
        -0.5
    """
    return brier_score(probs, targets, reduction=reduction) - 1

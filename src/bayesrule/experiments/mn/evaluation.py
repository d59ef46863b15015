"""What is reported of a trained model: its bound, accuracy with and without weights that are noise, what is left."""

from __future__ import annotations

import torch
from torch import Tensor

from bayesrule.data import LabelledSet
from bayesrule.experiments.mn.left import layers_left, pruned_mean, totals
from bayesrule.experiments.mn.training import accuracy
from bayesrule.nn import BayesianModule, kl, mean_module
from bayesrule.nn.objective import need_likelihood
from bayesrule.predict import predict

METRICS = (
    "negative_elbo", "nll", "accuracy", "accuracy_mean", "accuracy_pruned", "accuracy_pruned_rows",
    "accuracy_pruned_columns", "weights_total", "weights_left", "rows_total", "rows_left", "columns_total",
    "columns_left", "seconds",
)  # fmt: skip
LAYER_METRICS = ("weights_left", "rows_left", "columns_left")


def layer_metrics(layers: int) -> tuple[str, ...]:
    """The names of the counts of each convolution, in the network's order."""
    return tuple(f"conv{number:02}_{kind}" for number in range(1, layers + 1) for kind in LAYER_METRICS)


@torch.no_grad()
def evaluate(bnn: BayesianModule, data: LabelledSet, draws: int, seed: int) -> dict[str, float]:
    """−ELBO per training example at full KL weight (on a tenth of the draws); test NLL and percentages; counts.

    ``accuracy`` is of the ensemble of draws, ``accuracy_mean`` of the network at the posterior mean,
    ``accuracy_pruned`` of that network without the weights that are noise.
    """
    predictive = predict(bnn, data.test_x, draws, seed=seed)
    layers = layers_left(bnn)
    convolutions = [layer for layer in layers if layer.convolution]
    y = data.test_y
    return {
        "negative_elbo": _negative_elbo(bnn, data, data.train_x, data.train_y, max(1, draws // 10), seed),
        "nll": -predictive.log_prob(y).double().mean().item(),
        "accuracy": 100 * (predictive.probs.argmax(-1) == y).double().mean().item(),
        "accuracy_mean": accuracy(mean_module(bnn).eval(), data.test_x, y),
        "accuracy_pruned": accuracy(pruned_mean(bnn), data.test_x, y),
        "accuracy_pruned_rows": accuracy(pruned_mean(bnn, "row"), data.test_x, y),
        "accuracy_pruned_columns": accuracy(pruned_mean(bnn, "column"), data.test_x, y),
        **totals(layers),
        **{
            f"conv{number:02}_{kind}": float(vars(layer)[kind])
            for number, layer in enumerate(convolutions, 1)
            for kind in LAYER_METRICS
        },
    }


@torch.no_grad()
def validation_score(bnn: BayesianModule, data: LabelledSet, draws: int, seed: int) -> float:
    """−ELBO per example with its likelihood term on validation data: what settings are chosen by."""
    return _negative_elbo(bnn, data, data.valid_x, data.valid_y, draws, seed)


def _negative_elbo(bnn: BayesianModule, data: LabelledSet, x: Tensor, y: Tensor, draws: int, seed: int) -> float:
    """``E_q[−log p(y | x, w)] + KL/N``, draw by draw: all at once would hold a copy of every class."""
    likelihood = need_likelihood(bnn, None)
    outputs = predict(bnn, x, draws, seed=seed).outputs
    log_likelihood = torch.stack([likelihood.log_prob(drawn, y).mean() for drawn in outputs]).double().mean()
    return kl(bnn).item() / len(data.train_y) - log_likelihood.item()

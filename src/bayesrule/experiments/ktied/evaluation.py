"""What the paper's tables report of a trained model   [main text, Tables 1-3 and Fig. 6]."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule import metrics
from bayesrule.data import LabelledSet
from bayesrule.experiments.ktied.recipe import Recipe
from bayesrule.experiments.ktied.training import targets
from bayesrule.likelihoods import Likelihood
from bayesrule.nn import BayesianModule, kl
from bayesrule.nn.objective import need_likelihood
from bayesrule.predict import Predictive, predict

DRAWS = 100


@dataclass(frozen=True)
class Score:
    """A mean over test examples with its standard error, and how far weight samples spread."""

    value: float
    sem: float
    spread: float | None = None


@torch.no_grad()
def evaluate(
    bnn: BayesianModule, recipe: Recipe, data: LabelledSet, *, valid: bool = False, draws: int = DRAWS
) -> dict[str, Score]:
    """−ELBO per example at full KL weight; NLL, accuracy (in percent), Brier scores and ECE of the ensemble of draws.

    Standard errors are over test examples; the spread of the −ELBO's likelihood term is over weight samples.
    """
    x, y = (data.valid_x, data.valid_y) if valid else (data.test_x, data.test_y)
    predictive = predict(bnn, x, draws, seed=recipe.seed)
    wanted = targets(recipe, y)
    per_draw = _log_prob(need_likelihood(bnn, None), predictive, wanted)
    complexity = kl(bnn).item() / len(data.train_y)
    expected = _score(-per_draw.mean(0))
    probs = predictive.probs.double().cpu()
    probs = probs if probs.shape[-1] > 1 else torch.cat([1 - probs, probs], -1)
    y = y.cpu()
    correct = (probs.argmax(-1) == y).double() * 100
    return {
        "negative_elbo": Score(
            expected.value + complexity, expected.sem, per_draw.mean(1).std().item() if draws > 1 else None
        ),
        "nll": _score(-predictive.log_prob(wanted)),
        "accuracy": _score(correct),
        "brier": _score(metrics.brier_score(probs, y, reduction="none")),
        "brier_tfp": _score(metrics.brier_score_tfp(probs, y, reduction="none")),
        "ece": Score(float(metrics.expected_calibration_error(probs, y)), float("nan")),
    }


def _log_prob(likelihood: Likelihood, predictive: Predictive, y: Tensor) -> Tensor:
    """``log p(y | f_s)``, draws first, draw by draw: all at once would hold a copy of every class."""
    return torch.stack([likelihood.log_prob(outputs, y) for outputs in predictive.outputs]).double().cpu()


def _score(values: Tensor) -> Score:
    mean, sem = metrics.mean_and_sem(values.double().flatten())
    return Score(mean.item(), sem.item())

"""Binary weights by BayesBiNN and by the straight-through estimator, beside full precision; packed into bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from bayesrule import metrics
from bayesrule.experiments.blr import image_settings
from bayesrule.experiments.blr.image_drawing import draw_methods
from bayesrule.experiments.blr.image_evaluation import network_probs, predictor, scores, validation_nll
from bayesrule.experiments.blr.image_networks import NETWORKS
from bayesrule.experiments.blr.image_recipe import Recipe
from bayesrule.experiments.blr.image_search import over_seeds
from bayesrule.experiments.blr.image_training import Held, examples, train_recipe
from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Claim, Experiment, Verdict
from bayesrule.experiments.rows import Row
from bayesrule.optim import pack_binary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

METHODS = ("bayesbinn", "ste", "full-precision")
DATASETS = ("mnist", "cifar-10")
METRICS = ("accuracy", "nll", "ece", "accuracy_mode", "packed_bytes", "packed_agreement")
BEHIND = 0.3
"""Points of accuracy that BayesBiNN may lie behind the straight-through estimator."""


def run(context: Context) -> list[Row]:
    """Every method with every seed is a cell."""
    rows = []
    for dataset in context.datasets:
        for method in context.methods:
            recipes = over_seeds(context, dataset, method, validation_nll)
            cells = [measured(context, method, recipe) for recipe in recipes]
            variant = f"{recipes[0].told()}, {recipes[0].epochs} epochs"
            rows += [
                Row.over(
                    [cell[metric] for cell in cells], dataset=dataset, method=method, variant=variant, metric=metric
                )
                for metric in METRICS
            ]
    return rows


def measured(context: Context, method: str, recipe: Recipe) -> dict[str, float]:
    """The scores of one run on test images."""
    return context.cell(
        recipe.dataset, method, f"seed {recipe.seed}", compute=partial(_scores, context, method, recipe)
    )


def _scores(context: Context, method: str, recipe: Recipe) -> dict[str, float]:
    """Of the averaged draws (BayesBiNN) or the network, of the most probable network itself, and of its packed bits."""
    data = examples(recipe, context.data, context.device).labelled
    held = train_recipe(context, recipe).bnn
    own = network_probs(held.net.eval())(data.test_x)
    size, packed = _packed(held, recipe, data.test_x)
    return {
        **scores(predictor(context, method, recipe)(data.test_x), data.test_y),
        "accuracy_mode": 100 * float(metrics.accuracy(own, data.test_y)),
        "packed_bytes": float(size),
        "packed_agreement": (packed.argmax(-1) == own.argmax(-1)).double().mean().item(),
    }


def _packed(held: Held, recipe: Recipe, x: torch.Tensor) -> tuple[int, torch.Tensor]:
    """Bytes of the exported network, and what it predicts once it is unpacked; full precision is exported as it is."""
    optimizer = held.holder()
    if optimizer is None:
        return sum(tensor.nbytes for tensor in held.net.state_dict().values()), network_probs(held.net.eval())(x)
    packed = pack_binary(optimizer)
    return packed.nbytes, network_probs(packed.unpack(NETWORKS[recipe.network]().to(x.device)).eval())(x)


def figures(context: Context, rows: Sequence[Row]) -> Mapping[str, Figure]:
    """A figure for each data set."""
    shown = ("accuracy_mode", "accuracy", "nll", "packed_bytes")
    return {
        dataset: draw_methods([row for row in rows if row.dataset == dataset], shown) for dataset in context.datasets
    }


def _beside_ste(rows: Sequence[Row]) -> Verdict:
    """Of the single binary networks, which are what is exported."""
    found = {row.method: row.value for row in rows if row.dataset == "mnist" and row.metric == "accuracy_mode"}
    if not {"bayesbinn", "ste"} <= set(found):
        return Verdict("not measured", "needs bayesbinn and ste on mnist")
    detail = f"{found['bayesbinn']:.2f} % against {found['ste']:.2f} %"
    return Verdict.of(found["bayesbinn"] >= found["ste"] - BEHIND, detail)


def _agrees(rows: Sequence[Row]) -> Verdict:
    found = [row.value for row in rows if row.metric == "packed_agreement" and row.method != "full-precision"]
    if not found:
        return Verdict("not measured", "no binary network was trained")
    return Verdict.of(min(found) == 1.0, f"share of test images {min(found):.4f}")


BINARY = Experiment(
    id="blr/binary",
    title="Binary networks by BayesBiNN and the straight-through estimator, beside full precision",
    presets=image_settings.BINARY,
    methods=METHODS,
    datasets=lambda folder: DATASETS,
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(
        Claim(f"BayesBiNN's binary network on MNIST is at most {BEHIND:g} points behind that of the STE", _beside_ste),
        Claim("The packed export predicts the same classes", _agrees),
    ),
    published=Path(__file__).with_name("binary.json"),
    devices=("cuda", "cpu"),
    figures=figures,
)

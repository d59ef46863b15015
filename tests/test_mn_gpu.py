"""The experiments on matrix normal posteriors train on a CUDA device, their steps recorded as graphs where possible."""

from __future__ import annotations

import pytest
import torch

from bayesrule.experiments.mn.evaluation import evaluate
from bayesrule.experiments.mn.recipe import METHODS, Recipe
from bayesrule.experiments.mn.training import _train, examples
from bayesrule.experiments.mn.vae_training import VAERecipe, elbo, images, log_likelihood
from bayesrule.experiments.mn.vae_training import _train as train_vae

CUDA = torch.device("cuda")
pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("prior", ["ard", "group", "one-variance"])
@pytest.mark.parametrize("method", METHODS)
def test_networks_train(method: str, prior: str) -> None:
    recipe = Recipe(
        "cnn", "fashion-mnist", method, prior, 12, 3e-3, "exponential", anneal_share=10.0, batch_size=64, synthetic=512
    )
    data = examples(recipe, None, CUDA)
    bnn = recipe.build().to(CUDA)
    record = _train(bnn, recipe, data)
    assert record["history"][-1]["nll"] < 0.7 * record["history"][0]["nll"]
    found = evaluate(bnn, data, 2, 0)
    assert found["accuracy_mean"] > 30


@pytest.mark.parametrize("family", ["diag", "mn", "mv"])
def test_auto_encoders_train(family: str) -> None:
    recipe = VAERecipe(family, 9, epochs=6, anneal_epochs=1, seeds=(0, 1), synthetic=512, batch_size=32)
    data = images(None, CUDA, 512)
    vae = recipe.build().to(CUDA)
    before = elbo(vae, data.test)
    record = train_vae(vae, recipe, data)
    bound, likelihood = elbo(vae, data.test, 20), log_likelihood(vae, data.test, 100, 0)
    assert record["epochs"] == [6, 6]
    for start, end, marginal in zip(before, bound, likelihood, strict=True):
        assert end > start + 50
        assert marginal > end

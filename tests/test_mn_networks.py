"""The paper's networks, counted exactly, and what is left of them after pruning, against masks made by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.experiments.mn.left import kept, layers_left, pruned_mean, totals
from bayesrule.experiments.mn.networks import NETWORKS
from bayesrule.experiments.mn.recipe import METHODS, PRIORS, Recipe

COUNTS = {
    "fc": (784 * 300 + 2 * 300 * 300 + 3000, 784 + 300 + 300 + 300, 910),
    "fc512": (784 * 512 + 512 * 512 + 5120, 784 + 512 + 512, 512 + 512 + 10),
    "cnn": (9 * (10 + 10 * 20 + 20 * 40 + 40 * 80) + 800, 9 * (1 + 10 + 20 + 40), 150),
    "vgg": (62_270, 27 + 9 * 250, 270),
    "vgg4x": (246_940, 4_527, 540),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_networks_have_the_paper_s_counts(name: str) -> None:
    net = NETWORKS[name]()
    assert sum(weight.numel() for weight in net.parameters() if weight.ndim > 1) == COUNTS[name][0]
    bnn = Recipe(name, "cifar-10", "diag", "ard", 1).build()
    found = totals(layers_left(bnn))
    assert (found["weights_total"], found["rows_total"], found["columns_total"]) == COUNTS[name]


@pytest.mark.parametrize(
    ("name", "side", "channels"), [("fc", 28, 1), ("cnn", 28, 1), ("vgg", 32, 3), ("vgg4x", 32, 3)]
)
def test_the_networks_take_their_images(name: str, side: int, channels: int) -> None:
    assert NETWORKS[name]()(torch.zeros(2, channels, side, side)).shape == (2, 10)


def small(method: str = "diag") -> br.BayesianModule:
    """A convolution and a dense layer in double precision, means and standard deviations of one size."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(2, 3, 2), nn.ELU(), nn.Flatten(), nn.Linear(12, 4)).double()
    family = br.Diagonal(init_std=0.15, init_spread=1.5) if method == "diag" else br.MatrixNormal(init_std=0.15)
    bnn = br.bayesianize(net, family, br.ARD(), br.LocalReparam(), br.Categorical(), bias="point")
    if method == "mn":
        for name, parameter in bnn.named_parameters():
            if "cholesky" in name:
                parameter.data += 0.7 * torch.randn_like(parameter)
    return bnn


def dense_masks(bnn: br.BayesianModule, threshold: float = 3.0) -> dict[str, np.ndarray]:
    """``log(s/M²) ≤ threshold`` in the fan-in × fan-out view, from the diagonal of the dense covariance."""
    found = {}
    for name, posterior in br.posteriors(bnn).items():
        if name.endswith("weight"):
            variance = posterior.covariance.dense().detach().numpy().diagonal().reshape(posterior.mean.shape)
            found[name] = np.log(variance / posterior.mean.detach().numpy() ** 2) <= threshold
    return found


@pytest.mark.parametrize("method", ["diag", "mn"])
def test_what_is_kept_is_where_the_mean_is_not_noise(method: str) -> None:
    bnn = small(method)
    masks = dense_masks(bnn)
    for name, posterior in br.posteriors(bnn).items():
        if name not in masks:
            continue
        mask = masks[name]
        assert 0 < mask.sum() < mask.size
        np.testing.assert_array_equal(kept(posterior).numpy(), mask)
        np.testing.assert_array_equal(kept(posterior, "row").numpy(), mask | mask.any(1, keepdims=True))
        np.testing.assert_array_equal(kept(posterior, "column").numpy(), mask | mask.any(0, keepdims=True))
    for layer in layers_left(bnn):
        mask = masks[layer.name]
        assert dataclasses.astuple(layer)[2:] == (
            mask.size, mask.sum(), len(mask), mask.any(1).sum(), mask.shape[1], mask.any(0).sum()
        )  # fmt: skip


def test_rows_and_columns_without_a_weight_are_not_counted() -> None:
    bnn = small()
    with torch.no_grad():
        weight = bnn.homes()["3.weight"].mean
        weight[:, 2] = 0  # (out, in): an input, and so a row
        weight[1] = 0
    (dense,) = (layer for layer in layers_left(bnn) if layer.name == "3.weight")
    assert dense.rows_left < dense.rows
    assert dense.columns_left <= 3
    conv = layers_left(bnn)[0]
    assert totals(layers_left(bnn))["rows_total"] == conv.rows == 8  # of convolutions alone


@pytest.mark.parametrize("whole", ["weight", "row", "column"])
def test_the_pruned_network_is_the_mean_with_masked_weights(whole: str) -> None:
    bnn = small()
    x = torch.randn(5, 2, 3, 3, dtype=torch.float64)
    state = dict(br.mean_module(bnn).named_parameters())

    def masked(name: str) -> Tensor:
        mask = dense_masks(bnn)[name]
        if whole != "weight":
            mask = np.broadcast_to(mask.any(1 if whole == "row" else 0, keepdims=True), mask.shape)
        return state[name] * torch.from_numpy(np.ascontiguousarray(mask.T)).reshape(state[name].shape)

    hidden = F.elu(F.conv2d(x, masked("0.weight"), state["0.bias"])).flatten(1)
    expected = F.linear(hidden, masked("3.weight"), state["3.bias"])
    pruned = pruned_mean(bnn, whole)  # type: ignore[arg-type]
    torch.testing.assert_close(pruned(x), expected, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(br.mean_module(bnn)(x), expected) or whole != "weight"


@pytest.mark.parametrize("prior", PRIORS)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_and_prior_builds_and_has_gradients(method: str, prior: str) -> None:
    bnn = Recipe("cnn", "fashion-mnist", method, prior, 1).build()
    loss = bnn(torch.rand(2, 1, 28, 28)).square().mean() + br.kl(bnn) / 1000
    loss.backward()
    gradients = [parameter.grad for parameter in bnn.parameters() if parameter.grad is not None]
    assert len(gradients) > 10
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)


def test_recipes_of_one_seed_start_from_the_same_means() -> None:
    first, second = (Recipe("cnn", "fashion-mnist", method, "ard", 1, seed=3).build() for method in ("diag", "mn"))
    other = Recipe("cnn", "fashion-mnist", "mn", "ard", 1, seed=4).build()
    means = [br.mean_module(bnn).state_dict() for bnn in (first, second, other)]
    assert all(torch.equal(means[0][name], means[1][name]) for name in means[0])
    assert not torch.equal(means[0]["0.weight"], means[2]["0.weight"])

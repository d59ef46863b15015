"""Channels are cut through depthwise convolutions, whether these are Bayesian or not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bayesrule as br
from bayesrule.errors import InvalidArgument
from bayesrule.nn import BayesianModule
from bayesrule.prune import load_pruned, save_pruned
from prune_networks import ACTIVATIONS, masked_by_hand, model, random_masks, tried, with_statistics


def separable(activation: type[nn.Module] = nn.ReLU, *, padding: int = 1, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 6, 3, padding=1, bias=bias), nn.BatchNorm2d(6), activation(),
        nn.Conv2d(6, 6, 3, padding=padding, groups=6, bias=bias), activation(), nn.Conv2d(6, 4, 1, bias=bias),
        nn.Flatten(), nn.Linear(4 * (5 + 2 * padding - 2) ** 2, 3),
    )  # fmt: skip
    return with_statistics(net)


X = torch.randn(4, 1, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def largest_difference(small: nn.Module, bnn: BayesianModule, masks: dict[str, Tensor]) -> float:
    with torch.no_grad():
        return float((small(X) - masked_by_hand(bnn, masks).eval()(X)).abs().max())


def ones(net: nn.Module) -> dict[str, Tensor]:
    return {name: torch.ones(p.shape, dtype=torch.bool) for name, p in net.named_parameters() if p.ndim > 1}


def test_channels_go_through_one_that_is_a_point_estimate(tmp_path: Path) -> None:
    net = separable()
    masks = ones(net)
    masks["5.weight"][:, [1, 4]] = False  # nobody reads what the depthwise convolution makes of these
    del masks["3.weight"]
    bnn = model(net, masks, layers=["0", "5", "7"])
    small = br.prune(bnn, example=X)
    assert (small[0].out_channels, small[1].num_features, small[5].in_channels) == (4, 4, 4)
    depthwise = small[3]
    assert (depthwise.groups, depthwise.in_channels, depthwise.out_channels) == (4, 4, 4)
    assert depthwise.weight.shape == (4, 1, 3, 3)
    assert largest_difference(small, bnn, masks) < 1e-13
    loaded = load_pruned(save_pruned(small, tmp_path / "small.safetensors"), into=net)
    assert torch.equal(loaded(X), small(X))


@pytest.mark.parametrize("transposed", [False, True])
def test_channels_whose_own_kernel_was_dropped_go(transposed: bool) -> None:
    net = separable()
    if transposed:
        net[3] = nn.ConvTranspose2d(6, 6, 3, padding=1, groups=6).double()
    masks = ones(net)
    masks["3.weight"][[0, 2, 3]] = False
    bnn = model(net, masks)
    small = br.prune(bnn)
    assert (small[0].out_channels, small[3].groups, small[5].in_channels) == (3, 3, 3)
    assert largest_difference(small, bnn, masks) < 1e-13
    row = small.pruning["3.weight"]
    assert (row.shape, row.shape_after, row.left, row.nonzero_after) == ((9, 6), (9, 3), 27, 27)


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_exported_equals_masked(data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    net = separable(
        data.draw(st.sampled_from(ACTIVATIONS)), padding=data.draw(st.integers(0, 1)), bias=data.draw(st.booleans())
    )
    masks = random_masks(net, generator)
    bnn = model(net, masks)
    small = tried(bnn, example=data.draw(st.sampled_from([None, X])))
    if isinstance(small, InvalidArgument):
        masked = masked_by_hand(bnn, masks).eval()
        assert "no longer depend" in str(small)
        assert torch.equal(masked(X), masked(X.flip(0)))
        return
    assert largest_difference(small, bnn, masks) < 1e-10
    assert small.pruning.after.weights == sum(p.numel() for p in small.parameters() if p.ndim > 1)


def test_several_outputs_to_a_channel_are_refused() -> None:
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.Conv2d(3, 6, 1, groups=3), nn.Conv2d(6, 2, 1)).double()
    with pytest.raises(br.errors.Unsupported, match=r"Layer '1' \(Conv2d\) .* 3 groups"):
        br.prune(model(net, ones(net)))

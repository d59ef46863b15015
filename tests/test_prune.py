"""A pruned network equals the masked one, and is really smaller."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import bayesrule as br
from bayesrule.errors import InvalidArgument
from bayesrule.prune import Select
from prune_networks import ACTIVATIONS, STD, ConvNet, masked_by_hand, mlp, model, random_masks, tried, with_statistics


def difference(small: nn.Module, masked: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        return float((small.eval()(x) - masked.eval()(x)).abs().max())


def check_pruned(net: nn.Module, generator: torch.Generator, x: Tensor, **options: object) -> None:
    """The pruned network against the masked one; refused where that has become constant."""
    masks = random_masks(net, generator)
    bnn = model(net, masks)
    masked = masked_by_hand(bnn, masks)
    with torch.no_grad():
        constant = bool((masked.eval()(x) == masked(torch.zeros_like(x))).all())
    small = tried(bnn, **options)
    if isinstance(small, InvalidArgument):
        assert "no longer depend" in str(small)
        assert constant
        return
    assert difference(small, masked, x) < 1e-10
    assert {name: mask.tolist() for name, mask in small.pruning.masks.items()} == {
        name: mask.tolist() for name, mask in masks.items()
    }
    left = sum(p.numel() for name, p in small.named_parameters() if p.ndim > 1)
    assert left == small.pruning.after.weights <= small.pruning.before.weights
    assert small.pruning.left == sum(int(mask.sum()) for mask in masks.values())


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_pruned_perceptron_equals_the_masked_one(data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    torch.manual_seed(0)
    widths = data.draw(st.lists(st.integers(1, 7), min_size=2, max_size=4))
    activation = data.draw(st.sampled_from(ACTIVATIONS))
    net = with_statistics(mlp(widths, activation, norm=data.draw(st.booleans()), bias=data.draw(st.booleans())))
    x = torch.randn(6, widths[0], generator=generator, dtype=torch.float64)
    example = x if data.draw(st.booleans()) else None
    check_pruned(net, generator, x, example=example, select_inputs=data.draw(st.booleans()))


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_a_pruned_convolutional_network_equals_the_masked_one(data: st.DataObject) -> None:
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 10**6)))
    torch.manual_seed(0)
    net = with_statistics(
        ConvNet(
            data.draw(st.sampled_from([4, 6])),
            data.draw(st.sampled_from(ACTIVATIONS)),
            padding=data.draw(st.sampled_from([0, 1])),
            norm=data.draw(st.sampled_from(["none", "batch", "group"])),
            bias=data.draw(st.booleans()),
            residual=data.draw(st.booleans()),
            mean=data.draw(st.booleans()),
        )
    )
    x = torch.randn(3, 2, 6, 6, generator=generator, dtype=torch.float64)
    example = x if data.draw(st.booleans()) else None
    check_pruned(net, generator, x, example=example)


def halves(net: nn.Module, **cut: tuple[int, list[int]]) -> dict[str, Tensor]:
    """Masks that drop whole outputs (axis 0) or inputs (axis 1) of the layers named."""
    masks = {name: torch.ones(p.shape, dtype=torch.bool) for name, p in net.named_parameters() if p.ndim > 1}
    for name, (axis, indices) in cut.items():
        masks[f"{name}.weight"].transpose(0, axis)[indices] = False
    return masks


def convolutions(activation: nn.Module) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(1, 6, 3, padding=1), activation, nn.Conv2d(6, 4, 3, padding=1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4 * 16, 2)).double().eval()


def test_channels_that_nobody_reads_are_cut_through_norm_pool_and_flattening() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ELU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32, 2)
    )
    masks = halves(net)
    masks["5.weight"].view(2, 8, 4)[:, [1, 4, 7]] = False
    bnn, x = model(with_statistics(net), masks), torch.randn(5, 3, 6, 6, dtype=torch.float64)
    small = br.prune(bnn)
    assert (small[0].out_channels, small[1].num_features, small[5].in_features) == (5, 5, 20)
    assert small[1].running_mean.shape == (5,)
    assert difference(small, masked_by_hand(bnn, masks), x) < 1e-14
    row = small.pruning["5.weight"]
    assert (row.shape, row.shape_after) == ((32, 2), (20, 2))
    assert (row.weights, row.left, row.rows_left, row.columns_left) == (64, 40, 20, 2)
    assert small.pruning["0.weight"].shape_after == (27, 5)
    assert (small.pruning.before.weights, small.pruning.after.weights) == (216 + 64, 135 + 40)
    assert net[0].out_channels == bnn.module[0].out_channels == 8


def test_dropped_channels_without_a_constant_are_cut_whatever_the_padding() -> None:
    net = convolutions(nn.ReLU())
    net[0].bias.data.fill_(-1.0)  # relu(−1) = 0
    masks = halves(net, **{"0": (0, [0, 2, 5])})
    bnn = model(net, masks)
    small = br.prune(bnn)
    assert (small[0].out_channels, small[2].in_channels) == (3, 3)
    assert difference(small, masked_by_hand(bnn, masks), torch.randn(4, 1, 4, 4, dtype=torch.float64)) < 1e-14


def test_of_constants_that_meet_zero_padding_one_channel_stays_for_all() -> None:
    net = convolutions(nn.Softplus())
    masks = halves(net, **{"0": (0, [0, 2, 5])})
    bnn = model(net, masks)
    small = br.prune(bnn)
    assert (small[0].out_channels, small[2].in_channels) == (4, 4)
    assert difference(small, masked_by_hand(bnn, masks), torch.randn(4, 1, 4, 4, dtype=torch.float64)) < 1e-13


def test_the_constant_of_a_dropped_unit_goes_into_a_bias_even_where_there_was_none() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(4, 6), nn.Softplus(), nn.Linear(6, 2, bias=False)).double()
    masks = halves(net, **{"0": (0, [1, 3])})
    bnn = model(net, masks)
    small = br.prune(bnn)
    assert (small[0].out_features, small[2].in_features) == (4, 4)
    mean = br.mean_module(bnn)
    want = mean[2].weight[:, [1, 3]] @ nn.functional.softplus(mean[0].bias[[1, 3]])
    torch.testing.assert_close(small[2].bias, want, rtol=1e-13, atol=0)
    assert difference(small, masked_by_hand(bnn, masks), torch.randn(9, 4, dtype=torch.float64)) < 1e-14


def test_cutting_goes_on_through_layers() -> None:
    """A unit that only fed units that went, goes too."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    masks = halves(net, **{"4": (1, [0, 1])})
    masks["2.weight"][2:, 3] = False
    small = br.prune(model(net, masks))
    assert [layer.out_features for layer in small if isinstance(layer, nn.Linear)] == [3, 2, 2]


def test_both_branches_of_a_residual_sum_lose_the_same_channels() -> None:
    torch.manual_seed(0)
    net = with_statistics(ConvNet(6, nn.ReLU, padding=1, norm="batch", bias=True, residual=True, mean=True))
    masks = halves(net, inner=(1, [2, 3]), hidden=(1, [1, 2, 3]))
    bnn, x = model(net, masks), torch.randn(2, 2, 6, 6, dtype=torch.float64)
    small = br.prune(bnn)
    sizes = small.stem.out_channels, small.norm.num_features, small.outer.out_channels, small.hidden.in_features
    assert sizes == (4, 4, 4, 4)  # channel 1 is still read inside the block
    assert difference(small, masked_by_hand(bnn, masks), x) < 1e-13


def test_a_group_normalisation_loses_whole_groups() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 6, 3), nn.GroupNorm(3, 6), nn.Flatten(), nn.Linear(6 * 4, 2)).double()
    masks = halves(net)
    masks["3.weight"].view(2, 6, 4)[:, [0, 2, 3]] = False  # channel 1 still needs its group
    bnn = model(with_statistics(net), masks)
    small = br.prune(bnn)
    assert (small[0].out_channels, small[1].num_groups, small[1].num_channels) == (4, 2, 4)
    assert difference(small, masked_by_hand(bnn, masks), torch.randn(3, 1, 4, 4, dtype=torch.float64)) < 1e-13


def test_inputs_that_are_not_read_are_left_out_or_kept_as_zeros() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    masks = halves(net, **{"1": (1, [0, 4, 5])})
    bnn, x = model(net, masks), torch.randn(5, 3, 3, dtype=torch.float64)
    small, whole = br.prune(bnn), br.prune(bnn, select_inputs=False)
    assert isinstance(small[1].select, Select)
    assert small[1].select.indices.tolist() == [1, 2, 3, 6, 7, 8]
    assert small[1].layer.in_features == 6
    assert whole[1].in_features == 9
    assert "6 of 9" in repr(small)
    for each in (small, whole):
        assert difference(each, masked_by_hand(bnn, masks), x) < 1e-14


def test_input_channels_of_a_convolution_are_picked_too() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(4, 3, 2), nn.ReLU(), nn.ConvTranspose1d(3, 2, 2)).double()
    masks = halves(net, **{"0": (1, [1]), "2": (0, [2])})
    bnn, x = model(net, masks), torch.randn(5, 4, 6, dtype=torch.float64)
    small = br.prune(bnn)
    assert small[0].select.indices.tolist() == [0, 2, 3]
    assert (small[0].layer.out_channels, small[2].in_channels) == (2, 2)
    assert difference(small, masked_by_hand(bnn, masks), x) < 1e-14
    assert difference(small, masked_by_hand(bnn, masks), x[0]) < 1e-14  # without a batch


def test_embeddings_lose_the_features_that_nobody_reads() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(9, 5), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    masks = halves(net, **{"1": (1, [0, 3]), "0": (1, [4])})
    bnn, tokens = model(net, masks), torch.tensor([[1, 2], [8, 0]])
    small = br.prune(bnn)
    assert (small[0].embedding_dim, small[1].in_features) == (2, 2)
    assert difference(small, masked_by_hand(bnn, masks), tokens) < 1e-14


def test_a_dead_branch_keeps_one_unit_and_the_network_its_meaning() -> None:
    torch.manual_seed(0)
    net = with_statistics(ConvNet(4, nn.ELU, padding=1, norm="batch", bias=True, residual=True, mean=False))
    masks = halves(net, inner=(0, [0, 1, 2, 3]))
    masks["outer.weight"][:] = False
    bnn, x = model(net, masks), torch.randn(2, 2, 6, 6, dtype=torch.float64)
    small = br.prune(bnn)
    assert (small.inner.out_channels, small.outer.in_channels) == (1, 1)
    assert difference(small, masked_by_hand(bnn, masks), x) < 1e-13


def test_nothing_dropped_is_the_mean_network() -> None:
    torch.manual_seed(0)
    net = with_statistics(ConvNet(4, nn.ELU, padding=1, norm="group", bias=True, residual=True, mean=False))
    bnn = model(net, halves(net))
    small, x = br.prune(bnn), torch.randn(2, 2, 6, 6, dtype=torch.float64)
    assert small.pruning.cuts == ()
    assert small.pruning.sparsity == 0
    assert type(small) is ConvNet
    assert difference(small, br.mean_module(bnn), x) == 0


@pytest.mark.parametrize("structure", ["units", "weights"])
@pytest.mark.parametrize("share", [0.0, 0.5, 0.731])
def test_a_target_sparsity_is_met_to_the_weight(structure: str, share: float) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(7, 11), nn.ReLU(), nn.Linear(11, 3)).double()
    bnn = br.bayesianize(net, br.Diagonal(init_std=0.05, init_spread=1.0))
    small = br.prune(bnn, target_sparsity=share, structure=structure)
    assert small.pruning.weights - small.pruning.left == round(share * 110)
    posterior = {name: value for name, value in bnn.posteriors().items() if value.event_dim == 2}
    noise = torch.cat([(value.variance / value.mean**2).log().T.flatten() for value in posterior.values()]).detach()
    assert small.pruning.threshold == pytest.approx(noise.sort().values[109 - round(share * 110)].item(), rel=1e-12)
    again = br.prune(bnn, small.pruning.threshold, structure=structure)
    assert again.pruning.left == small.pruning.left


def test_the_threshold_is_on_the_logarithm_of_variance_over_squared_mean() -> None:
    net = nn.Sequential(nn.Linear(4, 1, bias=False), nn.Linear(1, 1)).double()
    bnn = br.bayesianize(net, br.Diagonal(init_std=STD, init_spread=0.0))
    edge = STD * math.exp(-1.5)  # log(s/M²) = 3
    bnn.homes()["0.weight"].mean.data[:] = torch.tensor([[1.001 * edge, -0.999 * edge, 0.0, -1.001 * edge]])
    bnn.homes()["1.weight"].mean.data.fill_(1.0)
    assert br.prune(bnn).pruning.masks["0.weight"].tolist() == [[True, False, False, True]]
    with pytest.raises(InvalidArgument, match="no longer depend"):
        br.prune(bnn, threshold=2.9)


@pytest.mark.parametrize(
    "posterior", [br.Diagonal(), br.KTied(2), br.MatrixNormal(), br.MatrixNormalDiagonal(), br.Full()]
)
def test_every_family_gives_its_marginal_variances(posterior: object) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    bnn = br.bayesianize(net, posterior, bias="augment")
    draws = bnn.posteriors()["0.weight"]
    parts = draws.split(draws.variance), draws.split(draws.mean)
    noise = (parts[0]["0.weight"] / parts[1]["0.weight"] ** 2).log().detach()
    level = noise.median().item() + 1e-9
    mask = br.prune(bnn, level, structure="weights").pruning.masks["0.weight"]
    assert torch.equal(mask, noise <= level)

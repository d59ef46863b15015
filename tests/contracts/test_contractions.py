"""What every contraction owes: it is the layer, it is linear, and `widen`, `mix` and `square` mean what they say."""

from __future__ import annotations

import inspect

import pytest
import torch
from layers import NAMES, Layer, layer
from torch import Tensor, nn
from torch.testing import assert_close

from bayesrule import contractions
from bayesrule.contractions import Augmented, Contraction, Conv, Embedding, Generic, Linear
from bayesrule.errors import Unsupported
from bayesrule.linalg import MatrixView

EXACT = {"rtol": 1e-12, "atol": 1e-12}
RANKS = (1, 2, 5, 11)  # below, at and above the fan-outs

every_layer = pytest.mark.parametrize("name", NAMES)


def matrices(example: Layer, count: int) -> Tensor:
    return torch.randn(count, *example.matrix.shape, dtype=torch.float64)


def leaf(tensor: Tensor) -> Tensor:
    return tensor.clone().requires_grad_(tensor.is_floating_point())


def test_every_exported_contraction_has_an_example() -> None:
    exported = {getattr(contractions, name) for name in contractions.__all__}
    wanted = {kind for kind in exported if issubclass(kind, Contraction) and not inspect.isabstract(kind)}
    assert {type(layer(name).contraction) for name in NAMES} == wanted


@every_layer
def test_it_is_the_module(name: str) -> None:
    example = layer(name)
    assert_close(example.contraction(example.x, example.matrix), example.output, **EXACT)


@pytest.mark.parametrize("name", [name for name in NAMES if layer(name).batched])
def test_one_example_without_a_batch_dimension(name: str) -> None:
    example = layer(name)
    alone = example.contraction(example.x[0], example.matrix)
    assert_close(alone, example.module(example.x[0]).detach(), **EXACT)
    assert_close(alone, example.output[0], **EXACT)


@every_layer
def test_linear_in_the_weight(name: str) -> None:
    example = layer(name)
    first, second = matrices(example, 2)
    together = example.contraction(example.x, 3 * first - 0.5 * second)
    apart = 3 * example.contraction(example.x, first) - 0.5 * example.contraction(example.x, second)
    assert_close(together, apart, **EXACT)


@pytest.mark.parametrize("rank", RANKS)
@every_layer
def test_widen_then_mix_is_the_layer_with_the_product(name: str, rank: int) -> None:
    """``mix(widen(x, M), C) = op(x, M Cᵀ)`` for every factorisation, which defines both."""
    example = layer(name)
    op, (fan_in, fan_out) = example.contraction, example.matrix.shape
    left, right = leaf(torch.randn(fan_in, rank).double()), leaf(torch.randn(fan_out, rank).double())
    x = leaf(example.x)
    inputs = [left, right, *([x] if x.requires_grad else [])]
    narrow = op.widen(x, left)
    assert narrow.shape[op.channel_dim] == rank * op.groups
    mixed, direct = op.mix(narrow, right), op(x, left @ right.mT)
    assert_close(mixed, direct, **EXACT)
    if name == "embedding-padding":  # the padding row takes no gradient, but its place in the output passes one to C
        inputs = [left]
    weights = torch.randn_like(direct)
    got = torch.autograd.grad((mixed * weights).sum(), inputs)
    assert_close(got, torch.autograd.grad((direct * weights).sum(), inputs), **EXACT)


def lower_triangular(op: Contraction) -> Tensor:
    return torch.randn(op.view.fan_in, op.view.fan_in, dtype=torch.float64).tril()


def check_triangular(op: Contraction, x: Tensor, pieces: int | None = None) -> None:
    """The pieces are the channels of `widen`, with its gradients."""
    factor, x = leaf(lower_triangular(op)), leaf(x)
    inputs = [factor, *([x] if x.requires_grad else [])]
    found, whole = op.widen_triangular(x, factor), op.widen(x, factor)
    assert pieces is None or len(found) == pieces
    assert_close(torch.cat(found, op.channel_dim), whole, **EXACT)
    weights = torch.randn_like(whole)
    got = torch.autograd.grad((torch.cat(found, op.channel_dim) * weights).sum(), inputs)
    wanted = torch.autograd.grad((whole * weights).sum(), inputs)
    assert_close([got[0].tril(), *got[1:]], [wanted[0].tril(), *wanted[1:]], **EXACT)


@every_layer
def test_widening_by_a_triangular_matrix(name: str) -> None:
    check_triangular(layer(name).contraction, layer(name).x)


@pytest.mark.parametrize(
    ("op", "shape", "pieces"),
    [
        (Linear.of(nn.Linear(300, 2)), (3, 300), 2),
        (Linear.of(nn.Linear(901, 2)), (2, 3, 901), 6),
        (Conv.of(nn.Conv2d(11, 2, 3, stride=2, padding=1)), (2, 11, 5, 4), 2),
        (Conv.of(nn.Conv2d(21, 2, 3, padding="same", dilation=2)), (21, 5, 4), 4),
        (Conv.of(nn.Conv1d(60, 2, 3, padding=1, padding_mode="circular")), (2, 60, 5), 4),
        (Conv.of(nn.Conv3d(2, 2, (3, 5, 4))), (1, 2, 3, 6, 4), 2),
        (Conv.of(nn.Conv2d(40, 4, 3, groups=2)), (1, 40, 3, 4), 1),
    ],
    ids=str,
)
def test_widening_by_blocks_of_a_triangular_matrix(op: Contraction, shape: tuple[int, ...], pieces: int) -> None:
    check_triangular(op, torch.randn(shape, dtype=torch.float64), pieces)


def test_blocks_of_a_triangular_matrix_under_vmap() -> None:
    op = Conv.of(nn.Conv2d(11, 2, 3))
    x, factors = torch.randn(2, 11, 4, 5).double(), torch.stack([lower_triangular(op) for _ in range(3)])
    looped = [torch.stack(each) for each in zip(*(op.widen_triangular(x, factor) for factor in factors), strict=True)]
    assert_close(list(torch.func.vmap(lambda factor: op.widen_triangular(x, factor))(factors)), looped, **EXACT)


@every_layer
def test_square_sums_the_squared_products(name: str) -> None:
    """``op(square(x), W²)_o = Σ_i J_oi² W_i²`` where ``op(x, W) = J vec W``."""
    example = layer(name)
    (matrix,) = matrices(example, 1)
    squares = example.contraction(example.contraction.square(example.x), matrix.square())
    assert_close(squares.flatten(), example.linear_map.square() @ matrix.flatten().square(), **EXACT)


@every_layer
def test_rows_counts_the_outputs(name: str) -> None:
    example = layer(name)
    assert example.contraction.rows(example.x) == example.output.numel() // example.contraction.view.fan_out
    if example.batched:
        assert example.contraction.rows(example.x[:1]) * len(example.x) == example.contraction.rows(example.x)


@every_layer
def test_gradients_are_the_modules(name: str) -> None:
    example = layer(name)
    op, weights = example.contraction, torch.randn_like(example.output)
    matrix, x = leaf(example.matrix), leaf(example.x)
    inputs = [x] if x.requires_grad else []
    parameters = list(example.module.parameters())
    in_matrix, *in_x = torch.autograd.grad((op(x, matrix) * weights).sum(), [matrix, *inputs])
    wanted = torch.autograd.grad((example.module(x) * weights).sum(), [*parameters, *inputs])
    inner = op.inner if isinstance(op, Augmented) else op
    rows = [inner.view.matrix(wanted[0]), *(bias[None] for bias in wanted[1 : len(parameters)])]
    assert_close(in_matrix, torch.cat(rows), **EXACT)
    assert_close(in_x, list(wanted[len(parameters) :]), **EXACT)


def has_bias(module: nn.Module) -> bool:
    return "bias" in dict(module.named_parameters())


@pytest.mark.parametrize("name", [name for name in NAMES if not has_bias(layer(name).module)])
def test_the_generic_contraction_agrees(name: str) -> None:
    example = layer(name)
    op, x = example.contraction, example.x
    generic = Generic(example.module, "weight", op.view, op.channel_dim, op.groups)
    (matrix,) = matrices(example, 1)
    assert_close(generic(x, matrix), op(x, matrix), **EXACT)
    assert_close(generic.square(x), op.square(x), **EXACT)
    assert generic.sign_shape(x) == op.sign_shape(x)
    for rank in RANKS:
        narrow = torch.randn(op.view.fan_in, rank, dtype=torch.float64)
        assert_close(generic.widen(x, narrow), op.widen(x, narrow), **EXACT)


def test_the_generic_contraction_silences_the_other_parameters() -> None:
    module = nn.Linear(3, 2).double()
    x, weight = torch.randn(4, 3).double(), module.weight.detach()
    generic = Generic(module, "weight", MatrixView((2, 3)))
    assert_close(generic(x, weight.mT), x @ weight.mT, **EXACT)


@every_layer
def test_signs_broadcast_over_the_positions_of_an_example(name: str) -> None:
    """One sign per example and channel; the mask must not change the input's shape."""
    example = layer(name)
    shape = example.contraction.sign_shape(example.x)
    if shape is None:
        assert not example.x.is_floating_point() or isinstance(example.contraction, Augmented)
        return
    channel = example.contraction.channel_dim % example.x.ndim
    counted = {channel, 0} if example.batched else {channel}
    assert shape == tuple(size if dim in counted else 1 for dim, size in enumerate(example.x.shape))


@every_layer
def test_inputs_that_pick_rows_name_them(name: str) -> None:
    """``op(x, W) = W[rows][picks]``, each row once; other layers name none."""
    example = layer(name)
    (matrix,), used = matrices(example, 1), example.contraction.used_rows(example.x)
    assert (used is not None) == example.contraction.picks_rows
    if used is not None:
        rows, picks = used
        assert rows.tolist() == sorted(set(example.x.flatten().tolist()))
        assert_close(matrix[rows][picks], example.contraction(example.x, matrix), **EXACT)


@every_layer
def test_settle_puts_back_what_is_never_random(name: str) -> None:
    example = layer(name)
    output, mean = torch.randn_like(example.output), example.matrix
    wanted = torch.where(example.fixed.reshape(output.shape), example.output, output)
    assert_close(example.contraction.settle(example.x, output, mean), wanted, **EXACT)


@every_layer
def test_many_weights_at_once(name: str) -> None:
    """`torch.func.vmap` over weights, and over the factors of `widen` and `mix`, is the loop."""
    example = layer(name)
    op, x, weights = example.contraction, example.x, matrices(example, 3)
    looped = torch.stack([op(x, weight) for weight in weights])
    assert_close(torch.func.vmap(lambda weight: op(x, weight))(weights), looped, **EXACT)
    left, right = weights[..., :1] * torch.ones(2).double(), weights.mT[..., :2]
    looped = torch.stack([op.mix(op.widen(x, a), b) for a, b in zip(left, right, strict=True)])
    assert_close(torch.func.vmap(lambda a, b: op.mix(op.widen(x, a), b))(left, right), looped, **EXACT)


@pytest.mark.parametrize("name", ["linear", "linear-one-example", "augmented-linear", "augmented-linear-one-example"])
def test_dense_layers_take_weights_with_leading_dimensions(name: str) -> None:
    example = layer(name)
    op, x, weights = example.contraction, example.x, matrices(example, 3)
    assert_close(op(x, weights), torch.stack([op(x, weight) for weight in weights]), **EXACT)
    left = weights[..., :1]
    assert_close(op.widen(x, left), torch.stack([op.widen(x, columns) for columns in left]), **EXACT)


def test_an_embedding_that_renormalises_its_rows_is_no_contraction() -> None:
    with pytest.raises(Unsupported, match=r"max_norm.*not linear.*Got: max_norm=1\.0.*without max_norm"):
        Embedding.of(nn.Embedding(5, 3, max_norm=1.0))

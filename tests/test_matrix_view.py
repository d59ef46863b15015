"""The fan-in × fan-out view of every layout against loops over its indices, and against the layers themselves."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from bayesrule.errors import ShapeMismatch
from bayesrule.linalg import MatrixView

LAYERS = {
    "Linear": (nn.Linear(4, 3), 0, 1, 1),
    "Conv1d": (nn.Conv1d(4, 3, 2), 0, 1, 2),
    "Conv2d": (nn.Conv2d(4, 6, (3, 2)), 0, 1, 6),
    "Conv2d groups": (nn.Conv2d(4, 6, (3, 2), groups=2), 0, 1, 6),
    "Conv3d": (nn.Conv3d(2, 3, (1, 2, 3)), 0, 1, 6),
    "ConvTranspose1d": (nn.ConvTranspose1d(4, 3, 2), 1, 1, 2),
    "ConvTranspose2d groups": (nn.ConvTranspose2d(4, 6, (3, 2), groups=2), 1, 2, 6),
    "ConvTranspose3d groups": (nn.ConvTranspose3d(3, 6, (1, 2, 2), groups=3), 1, 3, 4),
    "Embedding": (nn.Embedding(5, 3), 1, 1, 1),
}
"""Layer, fan-out axis, groups of the view, rows per input channel."""
NO_COPY = ["Linear", "Conv1d", "Conv2d", "Conv2d groups", "Conv3d"]

layers = pytest.mark.parametrize("name", LAYERS)


def view_of(name: str) -> tuple[MatrixView, Tensor]:
    layer, axis, groups, _ = LAYERS[name]
    return MatrixView(tuple(layer.weight.shape), axis, groups), layer.weight.detach().double()


def by_loops(view: MatrixView, weight: Tensor) -> Tensor:
    """Each entry put where the definition says: rows are the other axes in order, columns the groups' outputs."""
    shape, axis, groups = view.shape, view.fan_out_axis, view.groups
    fan_out = shape[axis] * groups
    matrix = torch.full((math.prod(shape) // fan_out, fan_out), float("nan"), dtype=weight.dtype)
    inputs_per_group = shape[0] // groups
    for index in itertools.product(*map(range, shape)):
        group = index[0] // inputs_per_group if groups > 1 else 0
        others = [place for place in range(len(shape)) if place != axis]
        row = 0
        for place in others:
            size = inputs_per_group if groups > 1 and place == 0 else shape[place]
            row = row * size + (index[place] - group * inputs_per_group if place == 0 and groups > 1 else index[place])
        matrix[row, group * shape[axis] + index[axis]] = weight[index]
    return matrix


@layers
def test_the_matrix_is_the_definition(name: str) -> None:
    view, weight = view_of(name)
    matrix = view.matrix(weight)
    assert matrix.shape == (view.fan_in, view.fan_out)
    assert torch.equal(matrix, by_loops(view, weight))


@layers
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_round_trips(name: str, batch: tuple[int, ...]) -> None:
    view, _ = view_of(name)
    weight = torch.randn(*batch, *view.shape, dtype=torch.float64)
    matrix = torch.randn(*batch, view.fan_in, view.fan_out, dtype=torch.float64)
    assert torch.equal(view.weight(view.matrix(weight)), weight)
    assert torch.equal(view.matrix(view.weight(matrix)), matrix)
    for index in itertools.product(*map(range, batch)):
        assert torch.equal(view.matrix(weight)[index], view.matrix(weight[index]))


@pytest.mark.parametrize("name", NO_COPY)
def test_linear_and_convolution_weights_are_not_copied(name: str) -> None:
    view, weight = view_of(name)
    matrix = view.matrix(weight)
    assert matrix.data_ptr() == weight.data_ptr()
    back = view.weight(matrix)
    assert back.data_ptr() == weight.data_ptr()
    assert back.stride() == weight.stride()


@layers
def test_rows_per_channel(name: str) -> None:
    view, _ = view_of(name)
    assert view.rows_per_channel == LAYERS[name][3]


@pytest.mark.parametrize("name", ["Conv2d groups", "ConvTranspose2d groups", "ConvTranspose1d", "Linear"])
def test_columns_are_the_weights_of_single_outputs(name: str) -> None:
    """Without a column of the matrix the layer is silent in that output channel, and in no other."""
    layer = LAYERS[name][0]
    view, _ = view_of(name)
    x = torch.randn(2, 4, *(5,) * (len(view.shape) - 2))
    for column in range(view.fan_out):
        matrix = view.matrix(layer.weight.detach()).clone()
        matrix[:, column] = 0
        silenced = torch.func.functional_call(
            layer, {"weight": view.weight(matrix), "bias": torch.zeros(view.fan_out)}, (x,)
        )
        norms = silenced.movedim(1, 0).flatten(1).norm(dim=1)
        assert [index for index, norm in enumerate(norms.tolist()) if norm == 0] == [column]


def test_a_vector_has_no_matrix_view() -> None:
    with pytest.raises(ShapeMismatch, match=r"two or more dimensions.*\(3,\).*diagonal or the point"):
        MatrixView((3,))


def test_a_tensor_of_another_shape_is_refused() -> None:
    view = MatrixView((3, 4))
    with pytest.raises(ShapeMismatch, match=r"\(3, 4\).*Got: \(4, 3\)"):
        view.matrix(torch.zeros(4, 3))
    with pytest.raises(ShapeMismatch, match=r"\(4, 3\).*Got: \(3,\)"):
        view.weight(torch.zeros(3))


@pytest.mark.parametrize(("shape", "axis"), [((4, 6), 0), ((5, 6, 2), 1)])
def test_groups_that_do_not_fit_are_refused(shape: tuple[int, ...], axis: int) -> None:
    with pytest.raises(ShapeMismatch, match="2 groups"):
        MatrixView(shape, axis, groups=2)

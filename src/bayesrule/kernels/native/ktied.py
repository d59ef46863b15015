"""The library's functions of k-tied matrices, on tensors it `serves`."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from bayesrule.kernels.native.library import function, library, serves
from bayesrule.kernels.native.normals import Noise

MOST_COLUMNS = 16
"""Which the code keeps in registers."""
MOST_RANK = 5
"""So that there are no more pairs of columns than that."""
NODES_FROM = 1 << 19
"""Entries, from which the sum of logarithms of a matrix of rank 2 is found faster without looking at them."""

Vector = Tensor | None


class Sizes(NamedTuple):
    """Of ``V Uᵀ``, as a layer keeps its weight."""

    fan_in: int
    fan_out: int
    rank: int

    @property
    def entries(self) -> int:
        """How many there are."""
        return self.fan_in * self.fan_out


def sizes_of(fan_in_logs: Tensor, fan_out_logs: Tensor) -> Sizes:
    """From log U and log V."""
    return Sizes(fan_in_logs.shape[0], fan_out_logs.shape[0], fan_in_logs.shape[1])


def divergence(
    fan_in_logs: Tensor, fan_out_logs: Tensor, mean: Vector, precision: float
) -> tuple[float, Tensor, Tensor] | None:
    """``Σ ½τ(S² + mean²) − log S`` with the gradients in log U and log V; None where plain operations have to serve."""
    sizes = sizes_of(fan_in_logs, fan_out_logs)
    fits = fan_out_logs.shape[1] == sizes.rank <= MOST_COLUMNS and (mean is None or mean.numel() == sizes.entries)
    if not fits or (sizes.rank == 2 and sizes.entries > NODES_FROM):
        return None
    if not serves(sizes.entries, fan_in_logs, fan_out_logs, *(() if mean is None else (mean,))):
        return None
    of_fan_in, of_fan_out, value = torch.empty_like(fan_in_logs), torch.empty_like(fan_out_logs), ctypes.c_double()
    found = function("ktied_divergence")(
        *sizes, _at(fan_in_logs), _at(fan_out_logs), _at(mean), precision, _at(of_fan_in), _at(of_fan_out),
        ctypes.addressof(value),
    )  # fmt: skip
    return (value.value, of_fan_in, of_fan_out) if found else None


def draws(mean: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, noise: Noise = 0) -> bool:
    """Whether `draw` takes these."""
    sizes = sizes_of(fan_in_logs, fan_out_logs)
    given = [mean, noise] if isinstance(noise, Tensor) else [mean]
    if not sizes.rank <= MOST_COLUMNS or any(each.shape != (sizes.fan_out, sizes.fan_in) for each in given):
        return False
    return fan_out_logs.shape[1] == sizes.rank and serves(sizes.entries, fan_in_logs, fan_out_logs, *given)


def factors_size(sizes: Sizes) -> int:
    """How many numbers `draw` keeps for the gradient, where the library is there."""
    return int(function("ktied_factors")(*sizes)) if library() is not None else 0


def draw(mean: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """``M + V Uᵀ ∘ ε``, and the factors for the gradient."""
    sizes = sizes_of(fan_in_logs, fan_out_logs)
    factors, weight = mean.new_zeros(factors_size(sizes)), torch.empty_like(mean)
    function("ktied_draw")(
        *sizes, _at(fan_in_logs), _at(fan_out_logs), _at(mean), *_made_of(noise), _at(factors), _at(weight)
    )
    return weight, factors


def draw_backward(sizes: Sizes, factors: Tensor, gradient: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
    """The gradients in log U and log V."""
    found = gradient.new_empty(sizes.fan_in, sizes.rank), gradient.new_empty(sizes.fan_out, sizes.rank)
    whole = gradient.contiguous()
    _checked(
        function("ktied_draw_backward")(
            *sizes, _at(factors), _at(whole), *_made_of(noise), *(_at(each) for each in found)
        )
    )
    return found


def adds_noise(x: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, noise: Noise, *bias: Vector) -> bool:
    """Whether `add_noise` takes these."""
    sizes, rows = sizes_of(fan_in_logs, fan_out_logs), x.shape[0]
    vectors = [each for each in bias if each is not None]
    normals = [noise] if isinstance(noise, Tensor) else []
    if sizes.rank > MOST_RANK or fan_out_logs.shape[1] != sizes.rank or x.shape != (rows, sizes.fan_in):
        return False
    if any(each.shape != (rows, sizes.fan_out) for each in normals):
        return False
    if any(vector.shape != (sizes.fan_out,) for vector in vectors):
        return False
    return serves(rows * max(sizes.fan_in, sizes.fan_out), x, fan_in_logs, fan_out_logs, *normals, *vectors)


def add_noise(
    output: Tensor, x: Tensor, fan_in_logs: Tensor, fan_out_logs: Tensor, noise: Noise, bias: Vector,
    bias_logs: Vector, bias_noise: Vector,
) -> Tensor:  # fmt: skip
    """Add ``√(x² S²) ∘ ε + b`` to an output, in place, and give what the gradient needs."""
    sizes, rows = sizes_of(fan_in_logs, fan_out_logs), x.shape[0]
    kept = x.new_empty(function("ktied_noise_kept")(*sizes, rows))
    of_bias = bias, bias_logs, bias_noise, kept, output
    _checked(
        function("ktied_noise")(
            *sizes,
            rows,
            _at(x),
            _at(fan_in_logs),
            _at(fan_out_logs),
            *_made_of(noise),
            *(_at(each) for each in of_bias),
        )
    )
    return kept


def noise_backward(
    sizes: Sizes, x: Tensor, noise: Noise, gradient: Tensor, kept: Tensor, of_x: Vector, of_bias: bool,
    of_bias_logs: bool,
) -> tuple[Tensor, Tensor, Vector, Vector]:  # fmt: skip
    """The gradients in log U, log V and the bias; what noise adds to that in x is added to ``of_x``, if it is given."""
    of_fan_in, of_fan_out = x.new_empty(sizes.fan_in, sizes.rank), x.new_empty(sizes.fan_out, sizes.rank)
    vectors = [x.new_empty(sizes.fan_out) if wanted else None for wanted in (of_bias, of_bias_logs)]
    tensors = gradient, kept, of_x, of_fan_in, of_fan_out, *vectors
    _checked(
        function("ktied_noise_backward")(*sizes, x.shape[0], _at(x), *_made_of(noise), *(_at(each) for each in tensors))
    )
    return of_fan_in, of_fan_out, vectors[0], vectors[1]


def _made_of(noise: Noise) -> tuple[int | None, int]:
    """Where normals lie, and the seed where they do not."""
    return (noise.data_ptr(), 0) if isinstance(noise, Tensor) else (None, noise)


def _at(tensor: Vector) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _checked(found: int) -> None:
    if not found:
        raise MemoryError("There is no memory for the gradients of a k-tied matrix")

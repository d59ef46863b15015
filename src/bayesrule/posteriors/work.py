"""What a draw costs in a training step, counted: normals, multiply-adds and elementwise passes, both ways."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesrule.typing import Contraction

PRODUCTS = 3
"""Of a matrix product ``Z = X Y`` in a training step: itself, and the gradients of both factors."""


@dataclass(frozen=True)
class Work:
    """What comes on top of ``op(x, mean)`` and its gradients.

    Attributes:
        normals: Standard normals that are drawn.
        products: Multiply-adds of matrix products.
        passes: Elementwise operations: how many, on tensors of how many entries. Each also costs a call.
        together: Whether it is a part of one call for a whole model, where there is code for that.
    """

    normals: float = 0
    products: float = 0
    passes: tuple[tuple[int, int], ...] = ()
    together: bool = False

    def __add__(self, other: Work) -> Work:
        return Work(self.normals + other.normals, self.products + other.products, self.passes + other.passes)


def drawn_entries(entries: int, passes: int = 10, products: float = 0, copies: int = 1) -> Work:
    """Of a weight ``mean + R ε``: one or more normals for every entry, and some passes over all of them."""
    return Work(copies * entries, products, ((passes, entries),))


def mean_field_projection(fan_in: int, fan_out: int, contraction: Contraction, x: Tensor) -> Work:
    """Of ``√op(x², σ²) ∘ ε``: the layer once more, squares of weight and input, and a few passes over outputs."""
    rows = contraction.rows(x)
    outputs = rows * fan_out
    products = 0 if contraction.picks_rows else PRODUCTS * outputs * fan_in
    # a dense layer is one node; a convolution gives the gradient of σ² in another order
    squares, others = (5, 4) if contraction.is_product else (11, 5)
    return Work(outputs, products, ((squares, fan_in * fan_out), (others, x.numel()), (others, outputs)))

"""A member of an exponential family in its two coordinate systems, which are different types.

The natural parameter λ and the expectation parameter μ live in dual spaces: sums and differences are taken within one
of them, ⟨λ, μ⟩ pairs them, and the gradient of a number with respect to an ``Expectation`` is a ``Natural``
(Khan & Rue, Eq. 4).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from bayesrule.errors import InvalidArgument, ShapeMismatch

if TYPE_CHECKING:
    from typing import Self
else:
    Self = object  # the run-time shape checker sees methods one by one, where Self has no meaning


@dataclass(frozen=True, init=False, eq=False, repr=False)
class Coordinates:
    """Named blocks of tensors with the arithmetic of a vector space; use :class:`Natural` or :class:`Expectation`."""

    items: tuple[tuple[str, Tensor], ...]

    def __init__(self, **blocks: Tensor) -> None:
        object.__setattr__(self, "items", tuple(sorted(blocks.items())))

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the blocks, sorted."""
        return tuple(name for name, _ in self.items)

    @property
    def blocks(self) -> dict[str, Tensor]:
        """The blocks by name, in a new dictionary."""
        return dict(self.items)

    def __getitem__(self, name: str) -> Tensor:
        return self.blocks[name]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value}' for name, value in self.items)})"

    def map(self, function: Callable[[Tensor], Tensor]) -> Self:
        """Apply ``function`` to every block."""
        return type(self)(**{name: function(value) for name, value in self.items})

    def detach(self) -> Self:
        """The same point, cut off from the autograd graph."""
        return self.map(torch.Tensor.detach)

    def __add__(self, other: Self) -> Self:
        return self._combine(other, operator.add)

    def __sub__(self, other: Self) -> Self:
        return self._combine(other, operator.sub)

    def __neg__(self) -> Self:
        return self.map(operator.neg)

    def __mul__(self, scalar: int | float | Tensor) -> Self:
        if not isinstance(scalar, (int, float)) and not (isinstance(scalar, Tensor) and scalar.ndim == 0):
            raise TypeError(
                f"{_a(type(self))} is multiplied by a number only; for ⟨λ, μ⟩ use inner(natural, expectation), "
                "for anything entry by entry use .map"
            )
        return self.map(lambda value: scalar * value)

    __rmul__ = __mul__

    def _combine(self, other: Self, operation: Callable[[Tensor, Tensor], Tensor]) -> Self:
        if type(other) is not type(self):
            raise TypeError(
                f"{_a(type(self))} and {_a(type(other))} cannot be added or subtracted: natural and expectation "
                "parameters are coordinates of different spaces. Convert one by family.to_natural or "
                "family.to_expectation; a gradient with respect to an Expectation is a Natural already"
            )
        require_same_names(self.names, other.names)
        for name, value in self.items:
            if value.shape != other[name].shape:
                raise ShapeMismatch(
                    f"block {name!r} has another shape in each term",
                    got=f"{tuple(value.shape)} and {tuple(other[name].shape)}",
                    remedy="Points are added entry by entry, without broadcasting: expand one of them with .map.",
                )
        return type(self)(**{name: operation(value, other[name]) for name, value in self.items})


class Natural(Coordinates):
    """λ of q(θ) = h(θ) exp(⟨λ, T(θ)⟩ − A(λ)); also every gradient with respect to μ.

    >>> (Natural(linear=torch.ones(2)) + 0.5 * Natural(linear=torch.ones(2))).blocks
    {'linear': tensor([1.5000, 1.5000])}
    """


class Expectation(Coordinates):
    """μ = E_q[T(θ)] = ∇A(λ), in blocks with the names of λ's."""


def inner(natural: Natural, expectation: Expectation, event_dims: Mapping[str, int] | None = None) -> Tensor:
    """⟨λ, μ⟩ = Σ_blocks Σ_entries λ·μ.

    Args:
        natural: λ, or a gradient with respect to μ.
        expectation: μ, or the statistics T(θ).
        event_dims: How many trailing dimensions of each block belong to one member of the family; the leading ones
            are batch dimensions, which broadcast and stay. Without it every dimension is summed.
    """
    if not (isinstance(natural, Natural) and isinstance(expectation, Expectation)):
        raise TypeError(
            f"⟨λ, μ⟩ pairs a Natural with an Expectation, in this order, not {_a(type(natural))} with "
            f"{_a(type(expectation))}"
        )
    require_same_names(natural.names, expectation.names)
    products = {name: value * expectation[name] for name, value in natural.items}
    dims = {name: product.ndim for name, product in products.items()} if event_dims is None else event_dims
    return sum_of(
        product.flatten(product.ndim - dims[name]).sum(-1) if dims[name] else product
        for name, product in products.items()
    )


def sum_of(tensors: Iterable[Tensor]) -> Tensor:
    """Sum of at least one tensor, with broadcasting."""
    first, *others = tensors
    return sum(others, start=first)


def require_same_names(expected: Iterable[str], got: Iterable[str], whose: str = "") -> None:
    """Raise unless both name the same things; ``whose`` says whose names the second are."""
    if set(expected) != set(got):
        raise InvalidArgument(
            f"the names{whose and f' of {whose}'} must be {sorted(expected)}", got=sorted(got),
            remedy="Both must come from the same families.",
        )  # fmt: skip


def _a(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__name__}"


def _register_as_tree(kind: type[Coordinates]) -> None:
    def unflatten(values: Iterable[Any], names: tuple[str, ...]) -> Coordinates:
        # torch.func also puts numbers and None in the place of tensors, which the constructor need not accept.
        point = object.__new__(kind)
        object.__setattr__(point, "items", tuple(zip(names, values, strict=True)))
        return point

    pytree.register_pytree_node(kind, lambda point: ([value for _, value in point.items], point.names), unflatten)


# So torch.func's grad and vmap take and return points; torch offers no public name for this registration.
_register_as_tree(Natural)
_register_as_tree(Expectation)

"""What an exponential family owes, and all that follows from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, final

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.expfam.base_measure import BaseMeasure, UnitBase
from bayesrule.expfam.blocks import Block
from bayesrule.expfam.coordinates import Expectation, Natural, inner, require_same_names
from bayesrule.random import NoiseSource


class ExponentialFamily(ABC):
    """q_λ(θ) = h(θ) exp(⟨λ, T(θ)⟩ − A(λ)), regular and minimal (Khan & Rue, Sec. 1.2).

    Owed by a family: ``blocks``, ``statistics``, ``log_partition``, ``to_natural`` and ``sample``. Everything else
    follows and is final. λ, T and μ share their block names. Leading dimensions of the blocks are batch dimensions.

    The mathematics does not look at values, so that it runs under ``vmap`` and never waits for a device: ``check``
    does, at the edges.
    """

    blocks: ClassVar[Mapping[str, Block]]
    """The blocks of λ by name: the statistic's name, its shape and where λ lives."""

    base: BaseMeasure = UnitBase()
    """h(θ); a family whose base measure is not 1 sets its own."""

    sizes: Mapping[str, int] = {}
    """Sizes that this member of the class fixes, such as ``{"dim": 3}``."""

    @abstractmethod
    def statistics(self, theta: Tensor) -> Expectation:
        """T(θ)."""

    @abstractmethod
    def log_partition(self, natural: Natural) -> Tensor:
        """A(λ), one number for each member of the batch."""

    @abstractmethod
    def to_natural(self, expectation: Expectation) -> Natural:
        """λ = ∇A*(μ), the inverse of ``to_expectation``; ``check`` the result where μ may be out of reach."""

    @abstractmethod
    def sample(self, natural: Natural, noise: NoiseSource, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """θ ~ q_λ, of shape ``sample_shape + batch + event``."""

    @final
    def to_expectation(self, natural: Natural) -> Expectation:
        """μ = E_q[T(θ)] = ∇A(λ), by automatic differentiation."""
        gradient = torch.func.grad(lambda point: self.log_partition(point).sum())(natural)
        return Expectation(**gradient.blocks)

    @final
    def log_base(self, theta: Tensor) -> Tensor:
        """Log h(θ)."""
        return self.base.log_density(theta)

    @final
    def log_prob(self, natural: Natural, theta: Tensor) -> Tensor:
        """Log q_λ(θ) = log h(θ) + ⟨λ, T(θ)⟩ − A(λ)."""
        return self.log_base(theta) + self.inner(natural, self.statistics(theta)) - self.log_partition(natural)

    @final
    def entropy(self, natural: Natural) -> Tensor:
        """H(q) = E_q[−log q] = A(λ) − ⟨λ, μ⟩ − E_q[log h]   (App. B)."""
        expectation = self.to_expectation(natural)
        expected_log_base = self.base.expected_log_density(expectation)
        return self.log_partition(natural) - self.inner(natural, expectation) - expected_log_base

    @final
    def kl(self, p: Natural, q: Natural) -> Tensor:
        """KL[p ‖ q] = D_A(λ_q ‖ λ_p) = A(λ_q) − A(λ_p) − ⟨λ_q − λ_p, μ_p⟩   (Eq. 21); p and q broadcast."""
        expectation = self.to_expectation(p)
        return (self.log_partition(q) - self.inner(q, expectation)) - (
            self.log_partition(p) - self.inner(p, expectation)
        )

    @final
    def inner(self, natural: Natural, expectation: Expectation) -> Tensor:
        """⟨λ, μ⟩ for each member of the batch."""
        return inner(natural, expectation, self.event_dims)

    @property
    @final
    def event_dims(self) -> dict[str, int]:
        """How many trailing dimensions of each block belong to one member."""
        return {name: len(block.shape) for name, block in self.blocks.items()}

    @final
    def project(self, natural: Natural) -> Natural:
        """The symmetric part of every symmetric block: a gradient by autograd may leave that space."""
        return Natural(**{name: self.blocks[name].project(value) for name, value in natural.items})

    @final
    def valid(self, natural: Natural) -> Tensor:
        """Whether each member of the batch has λ ∈ Ω, where A is finite."""
        inside = [block.domain.contains(natural[name], len(block.shape)) for name, block in sorted(self.blocks.items())]
        return torch.stack(inside).all(0)

    @final
    def check(self, natural: Natural) -> Natural:
        """Return λ unchanged if its blocks fit this family and λ ∈ Ω; otherwise raise ``InvalidArgument``."""
        self._check_shapes(natural)
        for name, block in self.blocks.items():
            inside = block.domain.contains(natural[name], len(block.shape))
            if not inside.all():
                raise InvalidArgument(
                    f"block {name!r} of a natural parameter of {type(self).__name__} must be "
                    f"{block.domain.description}",
                    got=natural[name][~inside][0].tolist(),
                    remedy="If an update left the family, take a smaller step or a positive curvature.",
                )
        return natural

    @final
    def random_natural(
        self, noise: NoiseSource, like: Tensor, batch_shape: tuple[int, ...] = (), **sizes: int
    ) -> Natural:
        """A well-conditioned random λ with the dtype and device of ``like``: for tests and random starts."""
        known = {**sizes, **self.sizes}
        require_same_names({size for block in self.blocks.values() for size in block.shape}, known)
        shapes = {name: batch_shape + tuple(known[size] for size in block.shape) for name, block in self.blocks.items()}
        return Natural(
            **{
                name: block.domain.from_normal(noise(shapes[name], "normal", like))
                for name, block in self.blocks.items()
            }
        )

    def _check_shapes(self, natural: Natural) -> None:
        require_same_names(self.blocks, natural.names)
        sizes, batches = dict(self.sizes), set()
        for name, block in self.blocks.items():
            shape = tuple(natural[name].shape)
            first = max(len(shape) - len(block.shape), 0)
            event = shape[first:]
            batches.add(shape[:first])
            fits = len(event) == len(block.shape) and all(
                sizes.setdefault(size, length) == length for size, length in zip(block.shape, event, strict=True)
            )
            if not fits or len(batches) > 1:
                raise ShapeMismatch(
                    f"the blocks of a natural parameter of {type(self).__name__} must have the shapes "
                    f"{ {name: ('*batch', *block.shape) for name, block in self.blocks.items()} }"
                    + (f" with {dict(self.sizes)}" if self.sizes else ""),
                    got={name: tuple(value.shape) for name, value in natural.items},
                )

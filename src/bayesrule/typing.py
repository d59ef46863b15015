"""The protocols that let a lower layer call a higher one by shape alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, runtime_checkable

from torch import Tensor


@runtime_checkable
class Contraction(Protocol):
    """A layer seen as ``y = op(x, W)``, linear in its weight; `bayesrule.contractions` has the instances.

    ``W`` is always the fan-in × fan-out matrix view of the layer's weight.
    """

    groups: int
    is_product: ClassVar[bool]
    picks_rows: ClassVar[bool]

    @property
    def channel_dim(self) -> int:
        """Where the fan-out channels lie in the output, counted from the end."""

    def __call__(self, x: Tensor, matrix: Tensor) -> Tensor:
        """``op(x, W)``."""

    def square(self, x: Tensor) -> Tensor:
        """The input whose contraction with ``W²`` sums squared products: ``x²``, or an index itself."""

    def widen(self, x: Tensor, matrix: Tensor) -> Tensor:
        """Apply a fan-in × r matrix in place of the weight: r channels for each group."""

    def widen_triangular(self, x: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
        """`widen` by a lower-triangular fan-in × fan-in matrix; its channels may come in several pieces."""

    def rows(self, x: Tensor) -> int:
        """How many output rows (examples × positions) this input gives."""

    def mix(self, channels: Tensor, matrix: Tensor) -> Tensor:
        """Map the channels `widen` gives to the fan-out ones by a fan-out × r matrix."""


@runtime_checkable
class Drawable(Protocol):
    """A model whose weights can be drawn: a converted network, or an optimizer that holds a posterior.

    Its likelihood is asked for by a method: since Python 3.12 a run-time check does not see the children of a module.
    """

    training: bool

    @property
    def batchable(self) -> bool:
        """Whether every layer that is drawn takes a batch of weights well (`torch.func.vmap`)."""

    def default_likelihood(self) -> Any:
        """What its outputs mean, if it knows; else None."""

    def posteriors(self) -> dict[str, Any]:
        """Posterior values by group name."""

    def at(self, draws: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """Outputs at given weights, by parameter name."""

    def train(self, mode: bool = True) -> Any:
        """Switch between training and evaluation."""


@runtime_checkable
class Prunable(Protocol):
    """A model that becomes a plain network: a converted one."""

    def posteriors(self) -> dict[str, Any]:
        """Posterior values by group name."""

    def default_likelihood(self) -> Any:
        """What its outputs mean, if it knows; else None."""

    def plain(self) -> Any:
        """A new plain network at the posterior mean."""


@runtime_checkable
class Recastable(Protocol):
    """A model whose posteriors can be replaced by others around the same means: a converted network."""

    conversion: Any
    compression: Any

    def posteriors(self) -> dict[str, Any]:
        """Posterior values by group name."""

    def kls(self) -> dict[str, Tensor]:
        """The KL of every posterior, by group name."""

    def layers(self) -> dict[str, str]:
        """By group name, the layer that gave the group its family."""

    def recast(
        self, families: Mapping[str, Any], parameters: Mapping[str, Mapping[str, Tensor]], notes: Mapping[str, str]
    ) -> Any:
        """A copy with new families (by layer), whose parameters besides the mean are given by group, and notes."""

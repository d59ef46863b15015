"""What a covariance structure owes: five operations on event-shaped tensors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.errors import Unsupported
from bayesrule.kernels import BiasLaw, StoredParameters
from bayesrule.linalg import event_dims
from bayesrule.posteriors.output_noise import OutputNoise
from bayesrule.posteriors.work import Work, drawn_entries, mean_field_projection
from bayesrule.random import NoiseSource
from bayesrule.typing import Contraction


class CovarianceOperator(ABC):
    """A symmetric positive-definite Σ over an event: a vector, or a fan-in × fan-out matrix.

    Operations take and give tensors of the event's *own* shape (with leading batch dimensions), so no convention for
    stacking a matrix into a vector appears anywhere. An operation without a cheap form raises `Unsupported`.
    """

    event_dim: int = 2
    independent: ClassVar[bool] = False
    """Whether the entries are independent: Flipout needs that."""
    exact_logdet: ClassVar[bool] = True
    """False where `logdet` is a lower bound, and so a KL an upper bound."""
    noise_copies: ClassVar[int] = 1
    """Standard normals per entry that `sqrt_matmul` takes; several are stacked just before the event."""
    drawn_as_kept: ClassVar[bool] = False
    """Whether a draw is made in the memory order of the parameter that the mean shows, and best with noise in it."""
    drawn_together: ClassVar[bool] = False
    """Whether there is code that draws a model's small weights of this structure by one call."""

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """Batch shape followed by the event's shape."""

    @abstractmethod
    def matmul(self, x: Tensor) -> Tensor:
        """``Σ x``."""

    @abstractmethod
    def solve(self, x: Tensor) -> Tensor:
        """``Σ⁻¹ x``."""

    @abstractmethod
    def sqrt_matmul(self, noise: Tensor) -> Tensor:
        """``R ε`` for one fixed root, ``R Rᵀ = Σ``."""

    @abstractmethod
    def logdet(self) -> Tensor:
        """``log det Σ``."""

    @abstractmethod
    def diagonal(self) -> Tensor:
        """The variances, in the event's shape."""

    def trace(self, precision: Tensor) -> Tensor:
        """``Σ precision · variance`` over the event; structures with a cheaper way replace this one."""
        return (precision * self.diagonal()).sum(event_dims(self.event_dim))

    def select_rows(self, index: Tensor) -> CovarianceOperator:
        """The covariance of some rows of a matrix event; only where rows are independent."""
        raise Unsupported(f"The rows of {type(self).__name__} are not independent", remedy="Use the whole event.")

    def projects(self, contraction: Contraction) -> bool:
        """Whether `project` has a cheap form for this layer."""
        return False

    def project(self, contraction: Contraction, x: Tensor) -> tuple[OutputNoise, ...]:
        """The noise that a weight drawn with this covariance adds to ``op(x, W)``, position by position."""
        raise Unsupported(
            f"{type(self).__name__} has no cheap law for the outputs of this layer (local reparameterization)",
            got=f"a layer of {contraction.groups} groups" if contraction.groups > 1 else None,
            remedy="Use the WeightSample estimator for this layer.",
        )

    def draw_work(self) -> Work:
        """What ``mean + sqrt_matmul(ε)`` costs in a training step; structures with another cost replace this one."""
        return drawn_entries(self.event_shape.numel(), copies=self.noise_copies)

    def projection_work(self, contraction: Contraction, x: Tensor) -> Work:
        """What `project` and its noise cost, likewise."""
        fan_in, fan_out = self.event_shape
        return mean_field_projection(fan_in, fan_out, contraction, x)

    def fused_draw(self, stored: StoredParameters, noise: Tensor) -> Tensor | None:
        """``mean + sqrt_matmul(ε)`` by code for just this case; None where there is none."""
        return None

    def fused_sample(self, mean: Tensor, source: NoiseSource) -> Tensor | None:
        """The same for noise that the code takes from its source by itself, likewise."""
        return None

    def fused_output(
        self, mean: Tensor, stored: StoredParameters | None, contraction: Contraction, x: Tensor, noise: NoiseSource,
        bias: BiasLaw | None = None,
    ) -> Tensor | None:  # fmt: skip
        """``op(x, mean)``, the noise of `project` and a bias, likewise."""
        return None

    def fused_divergence(self, mean: Tensor, centre: float, precision: float) -> Tensor | None:
        """The KL to a normal prior whose mean and precision are numbers, likewise."""
        return None

    @property
    def event_shape(self) -> torch.Size:
        """The event's shape."""
        return self.shape[len(self.shape) - self.event_dim :]

    @property
    def noise_shape(self) -> torch.Size:
        """Shape of the standard normals that `sqrt_matmul` takes."""
        batch = self.shape[: len(self.shape) - self.event_dim]
        copies = (self.noise_copies,) if self.noise_copies > 1 else ()
        return torch.Size((*batch, *copies, *self.event_shape))

    def dense(self) -> Tensor:
        """The whole matrix over the flattened event: for small sizes and tests."""
        reference = self.diagonal()
        size = self.event_shape.numel()
        identity = torch.eye(size, dtype=reference.dtype, device=reference.device)
        batch = reference.shape[: reference.ndim - self.event_dim]
        basis = identity.reshape(size, *(1,) * len(batch), *self.event_shape)
        columns = self.matmul(basis.expand(size, *reference.shape))
        return columns.reshape(size, *batch, size).movedim(0, -1)

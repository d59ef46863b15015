"""A posterior is a frozen value; who keeps its numbers (a module, an optimizer) is someone else's business."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from bayesrule.errors import Unsupported
from bayesrule.expfam import ExponentialFamily, Natural
from bayesrule.kernels import BiasLaw
from bayesrule.posteriors.output_noise import OutputNoise
from bayesrule.posteriors.parts import Part, split_event
from bayesrule.posteriors.work import Work, drawn_entries, mean_field_projection
from bayesrule.random import Law, NoiseSource, draw
from bayesrule.typing import Contraction


class Posterior(ABC):
    """A distribution over a group of one or more parameters, seen as one event.

    Named as in `torch.distributions`. Noise is an argument: `from_noise` maps standard noise of `noise_shape` and
    `noise_law` to a draw.
    """

    noise_law: ClassVar[Law] = "normal"
    mean: Tensor
    event_dim: int
    parts: tuple[Part, ...]

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """Marginal variance of every entry."""

    @property
    @abstractmethod
    def noise_shape(self) -> torch.Size:
        """Shape of the noise for one draw."""

    @abstractmethod
    def from_noise(self, noise: Tensor) -> Tensor:
        """The draw that this noise stands for, differentiable in the posterior's parameters."""

    @abstractmethod
    def log_prob(self, value: Tensor) -> Tensor:
        """Log-density of an event."""

    @abstractmethod
    def entropy(self) -> Tensor:
        """Differential entropy, in nats."""

    @abstractmethod
    def project(self, contraction: Contraction, x: Tensor) -> tuple[OutputNoise, ...]:
        """The noises it adds to ``op(x, W)``, for local reparameterization."""

    @abstractmethod
    def projects(self, contraction: Contraction) -> bool:
        """Whether `project` has a form for this layer."""

    def draw_work(self) -> Work:
        """What `from_noise` costs in a training step, for one event; families that know better replace this one."""
        return drawn_entries(self.event_shape.numel())

    def projection_work(self, contraction: Contraction, x: Tensor) -> Work:
        """What `project` and its noise cost likewise, where `projects`; only sizes of the input count."""
        fan_in, fan_out = self.event_shape
        return mean_field_projection(fan_in, fan_out, contraction, x)

    @property
    @abstractmethod
    def independent(self) -> bool:
        """Whether the entries are independent and symmetric about their mean."""

    def fused_output(
        self, contraction: Contraction, x: Tensor, noise: NoiseSource, bias: BiasLaw | None = None
    ) -> Tensor | None:
        """A local draw of ``op(x, W) + b`` by code for just this case, which must equal the general one; or None."""
        return None

    def fused_sample(self, source: NoiseSource) -> Tensor | None:
        """A draw whose noise code for just this case takes from the source by itself; or None."""
        return None

    def exponential(self) -> tuple[ExponentialFamily, Natural]:
        """Its exponential family, over the flattened event, and its natural parameters there."""
        raise Unsupported(f"{self.structure} has no flat natural coordinates", remedy="Compare it with a Prior.")

    def select_rows(self, index: Tensor) -> Posterior:
        """The posterior of some rows of a matrix event; only where rows are independent."""
        raise Unsupported(f"The rows of {self.structure} are not independent", remedy="Draw the whole event.")

    @property
    def structure(self) -> str:
        """What to call it in a message."""
        return type(self).__name__

    @property
    def stddev(self) -> Tensor:
        """Marginal standard deviation of every entry."""
        return self.variance.sqrt()

    @property
    def event_shape(self) -> torch.Size:
        """Shape of one draw without batch dimensions."""
        return self.mean.shape[self.mean.ndim - self.event_dim :]

    def rsample(self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None) -> Tensor:
        """Draws with fresh noise; gradients flow to the posterior's parameters."""
        return self.from_noise(draw((*sample_shape, *self.noise_shape), self.noise_law, self.mean, generator))

    def noise_from(self, source: NoiseSource) -> Tensor:
        """Noise for one draw; families that read it in another order than its rows replace this one."""
        return source(tuple(self.noise_shape), self.noise_law, self.mean)

    def split(self, event: Tensor) -> dict[str, Tensor]:
        """A draw (or any tensor of its shape) cut into the group's parameters, each in its own layout."""
        return split_event(event, self.parts, self.event_dim)

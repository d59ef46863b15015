"""Normal priors of given scale: one for all, per layer, per entry, or centred on given weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.posteriors import Posterior
from bayesrule.priors.prior import DiagonalNormal, Prior, as_like, check_broadcast, check_positive_scale, kept


@dataclass(frozen=True)
class Normal(Prior):
    """``N(mean, std²)``.

    Attributes:
        std: Standard deviation: a number, or a tensor that broadcasts to the weight's fan-in × fan-out view.
        mean: Its centre, likewise; or ``"pretrained"``: the weights that the posterior starts from.
    """

    std: float | Tensor = 1.0
    mean: float | Tensor | Literal["pretrained"] = 0.0

    def __post_init__(self) -> None:
        check_positive_scale("The standard deviation of a prior", self.std)
        if isinstance(self.mean, str) and self.mean != "pretrained":
            raise InvalidArgument('The mean of a prior is a number, a tensor or "pretrained"', got=repr(self.mean))

    def given(self, posterior: Posterior, hyperparameters: Mapping[str, Tensor]) -> DiagonalNormal:
        """Itself."""
        centre = kept(self, hyperparameters, "centre")[0] if isinstance(self.mean, str) else self.mean
        kind, event = posterior.mean, posterior.event_shape
        std, mean = (
            check_broadcast(f"A prior's {name}", as_like(value, kind), event)
            for name, value in (("std", self.std), ("mean", centre))
        )
        return DiagonalNormal(mean, std.square().reciprocal())

    def numbers(self) -> tuple[float, float] | None:
        """Both, if they were given as numbers."""
        if isinstance(self.std, Tensor) or isinstance(self.mean, (Tensor, str)):
            return None
        return float(self.mean), float(self.std) ** -2

    def hyperparameters(self, posterior: Posterior) -> dict[str, Tensor]:
        """The pretrained weights, if it is centred on them."""
        return {"centre": posterior.mean.detach().clone()} if isinstance(self.mean, str) else {}

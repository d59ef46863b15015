"""A model as factors: each gives E_q[log f] as a function of the nodes' μ, and its gradient is its message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from bayesrule.data.names import nearest
from bayesrule.errors import InvalidArgument
from bayesrule.expfam import Expectation, ExponentialFamily, Natural, gradients_in_expectation
from bayesrule.expfam.coordinates import sum_of

Expectations = Mapping[str, Expectation]
Naturals = Mapping[str, Natural]


@dataclass(frozen=True)
class Factor:
    """f(x_names) > 0, seen through E_q[log f] as a function of the nodes' μ, up to a constant.

    Several numbers stand for several factors, one for each example, say; they are summed.
    """

    names: tuple[str, ...]
    expected_log: Callable[[Expectations], Tensor]


@dataclass(frozen=True)
class Model:
    """p(x) ∝ Π_i f_i(x_i), approximated by q = Π_name q_name."""

    families: Mapping[str, ExponentialFamily]
    factors: tuple[Factor, ...]

    def __post_init__(self) -> None:
        for factor in self.factors:
            unknown = set(factor.names) - set(self.families)
            if unknown:
                raise InvalidArgument(f"a factor names nodes that have no family: {sorted(unknown)}")

    def check_nodes(self, argument: str, names: Iterable[str]) -> None:
        """Refuse names that are not of its nodes."""
        known = ", ".join(self.families)
        if isinstance(names, str):
            raise InvalidArgument(
                f"{argument} must be a list of names", got=repr(names), remedy=f"The nodes are: {known}."
            )
        for name in names:
            if name not in self.families:
                raise InvalidArgument(
                    f"{argument} names a node that the model does not have", got=repr(name),
                    remedy=f"{nearest(str(name), self.families)}The nodes are: {known}.",
                )  # fmt: skip

    def check_naturals(self, naturals: Naturals) -> None:
        """Refuse parameters that are not those of exactly its nodes."""
        self.check_nodes("naturals", naturals.keys())
        missing = [name for name in self.families if name not in naturals]
        if missing:
            raise InvalidArgument(
                "naturals must have an entry for each node", got=f"one without {', '.join(map(repr, missing))}",
                remedy="Start from any valid member of the node's family.",
            )  # fmt: skip

    def expected_loss(self, mu: Expectations) -> Tensor:
        """−E_q[log p], up to a constant."""
        return -sum_of(factor.expected_log(mu).sum() for factor in self.factors)

    def elbo(self, naturals: Naturals) -> Tensor:
        """E_q[log p] + H(q): the bound that variational message passing raises, up to the constants left out."""
        mu = {name: self.families[name].to_expectation(natural) for name, natural in naturals.items()}
        return -self.expected_loss(mu) + sum_of(
            self.families[name].entropy(natural).sum() for name, natural in naturals.items()
        )

    def messages(self, naturals: Naturals) -> list[dict[str, Natural]]:
        """λ̃_i(μ) = ∇_μ E_q[log f_i], for each factor and each of its nodes   (Eq. 58)."""
        return [self._message(factor, naturals) for factor in self.factors]

    def _message(self, factor: Factor, naturals: Naturals) -> dict[str, Natural]:
        gradients = gradients_in_expectation(
            self.families, lambda mu: -factor.expected_log(mu).sum(), naturals, factor.names
        )
        return {name: -gradient for name, gradient in gradients.items()}


def total(messages: Sequence[Mapping[str, Natural]], name: str) -> Natural:
    """The sum of the messages to one node."""
    arriving = [message[name] for message in messages if name in message]
    if not arriving:
        raise InvalidArgument(f"no factor sends a message to {name!r}")
    first, *others = arriving
    return sum(others, start=first)

"""Which rank each layer gets, as asked for or by explained variance, and which weights are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral

from bayesrule.compress.spectrum import rank_that_explains
from bayesrule.compress.weights import Weight
from bayesrule.errors import InvalidArgument

Ranks = int | Mapping[str, int]
"""One rank for every layer, or one by the layer's name."""


@dataclass(frozen=True)
class Plan:
    """What becomes of one layer: its rank, which all its weights share, and why some of them are kept, by name."""

    rank: int
    kept: dict[str, str]

    @classmethod
    def of(cls, weights: Sequence[Weight], rank: int) -> Plan:
        """Truncate every weight that can be, unless it would change none of them."""
        kept = {weight.name: why for weight in weights if (why := weight.why_keep(rank))}
        rest = [weight for weight in weights if weight.name not in kept]
        if all(min(weight.std.shape) == rank for weight in rest):
            kept |= {weight.name: f"rank {rank} is all it has" for weight in rest}
        return cls(rank, kept)

    @classmethod
    def explaining(cls, weights: Sequence[Weight], fraction: float) -> Plan:
        """The smallest rank that explains enough of each weight, unless it would save no numbers."""
        plan = cls.of(weights, max(rank_that_explains(fraction, weight.explained) for weight in weights))
        rest = [weight for weight in weights if weight.name not in plan.kept]
        if sum(weight.numbers_at(plan.rank) for weight in rest) < sum(weight.spread_numbers for weight in rest):
            return plan
        return cls(plan.rank, plan.kept | {weight.name: f"rank {plan.rank} saves no numbers" for weight in rest})


def plan_layers(layers: Mapping[str, Sequence[Weight]], rank: Ranks | None, explained: float | None) -> dict[str, Plan]:
    """A plan for every layer."""
    if not layers:
        raise InvalidArgument("The model has no weight that could be compressed", got="biases only")
    if (rank is None) == (explained is None):
        raise InvalidArgument(
            "Give either a rank or the fraction of variance to be explained",
            got=f"rank={rank}, explained={explained}", remedy="For example rank=2, or explained=0.99.",
        )  # fmt: skip
    if explained is not None:
        return {layer: Plan.explaining(weights, explained) for layer, weights in layers.items()}
    if not isinstance(rank, Mapping):
        every = _checked(rank, [weight for weights in layers.values() for weight in weights])
        return {layer: Plan.of(weights, every) for layer, weights in layers.items()}
    if unknown := [name for name in rank if name not in layers]:
        raise InvalidArgument(f"No layer {unknown[0]!r} to be compressed", got=f"layers {list(layers)}")
    kept = {layer: Plan(0, {weight.name: "no rank was given" for weight in layers[layer]}) for layer in layers}
    return kept | {layer: Plan.of(layers[layer], _checked(each, layers[layer])) for layer, each in rank.items()}


def _checked(rank: object, weights: Sequence[Weight]) -> int:
    if isinstance(rank, bool) or not isinstance(rank, Integral) or int(rank) < 1:
        raise InvalidArgument("A rank is a whole number from 1 on", got=repr(rank))
    largest = max(weight.largest_rank for weight in weights)
    if int(rank) > largest:
        raise InvalidArgument(
            f"The rank is too large: no weight here has a rank above {largest}", got=f"rank {rank}",
            remedy=f"Use a rank of at most {largest}.",
        )  # fmt: skip
    return int(rank)

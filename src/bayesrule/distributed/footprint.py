"""What a method keeps and sends for a dense layer, by formula: numbers per weight, and bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bayesrule.errors import InvalidArgument


@dataclass(frozen=True)
class Footprint:
    """Numbers for one weight of a fan-in × fan-out layer.

    Attributes:
        kept: Parameters, their gradients, and the state of the optimizer; activations are not counted.
        sent: What a process contributes to the one exchange of a step.
    """

    kept: float
    sent: float

    def kept_bytes(self, weights: float, number: int = 4, processes: int = 1) -> float:
        """In one process, where the numbers are divided among so many."""
        return self.kept * number * weights / processes

    def sent_bytes(self, weights: float, processes: int, number: int = 4) -> float:
        """What a process sends for an all-reduce in a ring: ``2 (P − 1)/P`` times its contribution."""
        return 2 * (processes - 1) / processes * self.sent * number * weights


def footprint(method: str, fan_in: int, fan_out: int, rank: int = 2) -> Footprint:
    """Of a method by name, one of `METHODS`; ``rank`` is k of those that are k-tied.

    Example:
        >>> footprint("KTied", 4096, 4096).kept
        4.00390625
    """
    if method not in METHODS:
        raise InvalidArgument("There is no such method", got=repr(method), remedy=f"Use one of {sorted(METHODS)}.")
    weights = fan_in * fan_out
    kept, sent = METHODS[method](weights, rank * (fan_in + fan_out), fan_in**2 + fan_out**2)
    return Footprint(kept / weights, sent / weights)


def _by_gradient(trained: Callable[[int, int, int], int]) -> Callable[[int, int, int], tuple[int, int]]:
    """Every trained number, its gradient and Adam's two moments are kept, and its gradient is sent."""
    return lambda weights, tied, sides: (4 * trained(weights, tied, sides), trained(weights, tied, sides))


METHODS: dict[str, Callable[[int, int, int], tuple[int, int]]] = {
    "Point": _by_gradient(lambda weights, tied, sides: weights),
    "Diagonal": _by_gradient(lambda weights, tied, sides: 2 * weights),
    "KTied": _by_gradient(lambda weights, tied, sides: weights + tied),
    "MatrixNormal": _by_gradient(lambda weights, tied, sides: weights + sides),
    # Optimizers: the weight, its copy while a draw is in its place, gradient and momentum; then the curvature.
    "IVON": lambda weights, tied, sides: (5 * weights, 2 * weights),
    "VOGN": lambda weights, tied, sides: (5 * weights, 2 * weights),
    "NoisyAdam": lambda weights, tied, sides: (5 * weights, 2 * weights),
    "KTiedVON": lambda weights, tied, sides: (4 * weights + tied, weights + tied),
    "NoisyKFAC": lambda weights, tied, sides: (4 * weights + 3 * sides, weights + sides),
}
"""From the numbers of weights, of the k-tied factors and of both sides' square matrices to numbers kept and sent."""

"""Which rank each layer needs, judged by the ELBO."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bayesrule.compress import compress
from bayesrule.nn import BayesianModule


def ranks_by_loss(
    bnn: BayesianModule,
    loss: Callable[[BayesianModule], float],
    candidates: Mapping[str, Sequence[int]],
    tolerance: float,
) -> dict[str, int]:
    """For each layer the smallest rank whose truncation, of that layer alone, costs at most its share of a tolerance.

    The shares are equal, so that all truncations together cost about the tolerance, as far as costs add up. A layer
    that no candidate serves is left out: it keeps its standard deviations.

    Args:
        bnn: The trained model.
        loss: What is to stay low, such as the −ELBO on validation data at fixed draws.
        candidates: By the name of each layer to be truncated, the ranks to try, in rising order.
        tolerance: The rise of the loss that is allowed in all.
    """
    allowed = loss(bnn) + tolerance / len(candidates)
    found = {}
    for layer, ranks in candidates.items():
        for rank in ranks:
            if loss(compress(bnn, {layer: rank})) <= allowed:
                found[layer] = rank
                break
    return found

"""Which points of a pool to have labelled next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.likelihoods import Bernoulli, Categorical, Likelihood
from bayesrule.predict import Predictive, predict
from bayesrule.random import keyed_generator
from bayesrule.train.replicas import ReplicaPredictive, Replicas
from bayesrule.typing import Drawable

How = Literal["variance", "bald", "random"]
Inputs = Tensor | tuple[Tensor, ...]


@dataclass(frozen=True)
class Acquisition:
    """The points chosen, and how every point of the pool was scored.

    Attributes:
        indices: Into the pool, the most wanted first.
        scores: Of the whole pool, in its order.
    """

    indices: Int[Tensor, " count"]
    scores: Float[Tensor, " pool"]


def acquire(
    model: Drawable | Predictive,
    pool_x: Inputs | None = None,
    how: How = "variance",
    count: int = 1,
    *,
    samples: int = 100,
    likelihood: Likelihood | None = None,
    seed: int = 0,
) -> Acquisition:
    """The ``count`` points of a pool with the highest scores; points that score alike stay in the pool's order.

    Points are scored one by one: a batch of near copies may be chosen together.

    Args:
        model: A model whose weights can be drawn, or what one predicted for the pool.
        pool_x: The pool's inputs, examples first; left out if predictions are given.
        how: ``"variance"`` is ``Var_s E[y | x, w_s]``, summed over a target's entries: what the draws of the weights
            disagree on. Where the noise is the same everywhere this orders points as the whole predictive variance
            and as the information gain do   [noisy natural gradient, Sec. 5.2]. ``"bald"``, for classes, is the mutual
            information ``H[mean p] − mean H[p]`` of class and weights. ``"random"`` is uniform.
        count: How many.
        samples: Draws of the weights.
        likelihood: By default the model's own.
        seed: Of the draws, and of the random choice.
    """
    if how not in get_args(How):
        raise InvalidArgument('how must be "variance", "bald" or "random"', got=repr(how))
    size = _pool_size(model, pool_x)
    if not 1 <= count <= size:
        raise InvalidArgument(f"Between 1 and {size} points can be chosen from this pool", got=f"count={count}")
    if how == "random":
        scores = torch.rand(size, generator=keyed_generator(torch.device("cpu"), seed, "acquire"), dtype=torch.float64)
    elif isinstance(model, Predictive):
        scores = _scores(model, how)
    elif pool_x is not None:
        scores = _scores(predict(model, pool_x, samples, likelihood, seed=seed), how)
    _check_finite(scores)
    return Acquisition(scores.argsort(descending=True, stable=True)[:count], scores)


def _scores(predictive: Predictive, how: How) -> Tensor:
    if how == "variance":
        return predictive.epistemic_std.square().flatten(1).sum(1)
    if not isinstance(predictive.likelihood, Categorical | Bernoulli):
        raise Unsupported(
            "BALD is the mutual information of a class and the weights", got=type(predictive.likelihood).__name__,
            remedy='Use how="variance", which for constant Gaussian noise orders points as their information does.',
        )  # fmt: skip
    return predictive.mutual_information.reshape(predictive.outputs.shape[1], -1).sum(1)


def _check_finite(scores: Tensor) -> None:
    """Refuse scores that are no numbers, as they would sort before all others."""
    broken = (~scores.isfinite()).nonzero().flatten().tolist()
    if not broken:
        return
    rows = "Clean those rows of the pool: leave them out, or fill their gaps."
    weights = "If the pool is finite, what the model predicts is not: look at its training."
    raise InvalidArgument(
        "The scores of a pool must be finite",
        got=f"{len(broken)} of {len(scores)} that are not, the first at {broken[:5]}",
        remedy=rows if len(broken) < len(scores) else weights,
    )


def _pool_size(model: object, pool_x: Inputs | None) -> int:
    if isinstance(model, ReplicaPredictive | Replicas):
        theirs = "predictive" if isinstance(model, ReplicaPredictive) else "replicas.predict(pool_x)"
        raise InvalidArgument(
            "Points are chosen for one replica at a time", got=type(model).__name__,
            remedy=f"Give what replica i predicts, {theirs}.of(i), without pool_x.",
        )  # fmt: skip
    if isinstance(model, Predictive):
        if pool_x is not None:
            raise InvalidArgument("Predictions for the pool need no inputs", remedy="Leave pool_x out.")
        return model.outputs.shape[1]
    if pool_x is None:
        raise InvalidArgument("A model needs the pool's inputs", got=None, remedy="Give pool_x.")
    return len(pool_x[0] if isinstance(pool_x, tuple) else pool_x)

"""Active learning: train, ask for the label of the point that is least certain, train again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch, check_tensors
from bayesrule.metrics import rmse
from bayesrule.predict import Predictive
from bayesrule.random import keyed_generator
from bayesrule.train.acquire import How, acquire

Learner = Callable[[Tensor, Tensor, int], Callable[[Tensor], Predictive]]
"""``(x, y, seed)``, standardised, to a function that predicts at further inputs: any way to train, from scratch."""


@dataclass(frozen=True)
class Rounds:
    """How active learning went.

    Attributes:
        labelled: Rows whose labels were used at the end: those of the start, then the chosen ones in their order.
        rmse: On the test rows after every training, in the target's own units; one more than points were added.
        log_likelihood: Mean log-density of the test targets, likewise.
    """

    labelled: Int[Tensor, " labelled"]
    rmse: Float[Tensor, " rounds"]
    log_likelihood: Float[Tensor, " rounds"]


def active_learning(
    learner: Learner,
    x: Tensor,
    y: Tensor,
    *,
    how: How = "variance",
    labelled: int = 20,
    test: int = 100,
    additions: int = 9,
    seed: int = 0,
) -> Rounds:
    """A regression that starts with a few labels and adds the most wanted point, one at a time   [App. C.2].

    Rows are shuffled by the seed into labelled ones, test ones and the pool. Before every training inputs and targets
    are standardised by the rows labelled so far; every training starts from scratch and gets a seed of its own.

    Args:
        learner: Trains.
        x: Inputs of all rows, (rows, features).
        y: Targets of all rows, (rows, targets); those of the pool are looked at when they are chosen.
        how: The choice, as in `acquire`; ``"random"`` is the control.
        labelled: Rows with labels at the start.
        test: Rows that are tested on.
        additions: Points added.
        seed: Of the shuffle, the trainings and a random choice. The shuffle does not depend on ``how``.
    """
    check_tensors({"x": x, "y": y})
    if y.ndim != 2 or len(y) != len(x):
        raise ShapeMismatch(f"Targets are ({len(x)}, targets)", got=tuple(y.shape))
    if labelled < 2 or test < 1 or additions < 0 or len(x) < labelled + test + max(additions, 1):
        raise InvalidArgument(
            f"{labelled} labelled rows (two at least), {test} to test on and {additions} to add must fit into the rows",
            got=f"{len(x)} rows",
        )
    order = torch.randperm(len(x), generator=keyed_generator(torch.device("cpu"), seed, "active learning"))
    known, held_out, pool = (part.tolist() for part in order.split([labelled, test, len(x) - labelled - test]))
    errors, densities = [], []
    for number in range(additions + 1):
        _check_labels(y, known + held_out)
        inputs, targets = _Scale.of(x[known]), _Scale.of(y[known])
        predictor = _checked(learner(inputs(x[known]), targets(y[known]), seed + number))
        predictive = predictor(inputs(x[held_out]))
        errors.append(rmse(targets.undo(predictive.mean), y[held_out]).double())
        log_density = predictive.log_prob(targets(y[held_out])) - targets.std.log().sum()
        densities.append(log_density.mean().double())
        if number < additions:
            found = acquire(predictor(inputs(x[pool])), how=how, seed=seed + number)
            known.append(pool.pop(int(found.indices)))
    return Rounds(torch.tensor(known), torch.stack(errors), torch.stack(densities))


def _check_labels(y: Tensor, rows: list[int]) -> None:
    """Those of the pool may be missing until they are asked for."""
    broken = [row for row in rows if not bool(y[row].isfinite().all())]
    if broken:
        raise InvalidArgument(
            "Rows that are trained or tested on need finite targets", got=f"y with other ones in rows {broken[:5]}",
            remedy="Leave these rows out of x and y, or fill in their labels.",
        )  # fmt: skip


def _checked(predictor: object) -> Callable[[Tensor], Predictive]:
    """What a learner returned, which refuses to return anything but predictions."""
    if not callable(predictor):
        raise _no_predictor(f"a learner that returned a {type(predictor).__name__}")

    def predicted(at: Tensor) -> Predictive:
        found = predictor(at)
        if not isinstance(found, Predictive):
            raise _no_predictor(f"a function that returned a {type(found).__name__}")
        return found

    return predicted


def _no_predictor(got: str) -> InvalidArgument:
    return InvalidArgument(
        "learner(x, y, seed) returns a function from inputs to a bayesrule.Predictive", got=got,
        remedy="End the learner with: return lambda at: br.predict(bnn, at).",
    )  # fmt: skip


@dataclass(frozen=True)
class _Scale:
    """``(x − mean) / std`` of every column; a column of one value is only shifted."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, values: Tensor) -> _Scale:
        std = values.std(0, correction=0)
        varies = values.amax(0) > values.amin(0)  # the std of equal values is zero only up to rounding
        return cls(values.mean(0), torch.where(varies, std, torch.ones_like(std)))

    def __call__(self, values: Tensor) -> Tensor:
        return (values - self.mean) / self.std

    def undo(self, values: Tensor) -> Tensor:
        return self.mean + self.std * values

"""Predictions of a model at many draws of its weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument, Unsupported, conversion_remedy
from bayesrule.likelihoods import Likelihood
from bayesrule.posteriors import Posterior
from bayesrule.predict.draws import draw_weights, draws_within
from bayesrule.predict.evaluate import at_one, at_several, evaluating
from bayesrule.predict.predictive import Predictive
from bayesrule.threads import turn_of
from bayesrule.typing import Drawable

MEMORY_LIMIT = 2**30
BATCH_SIZE = 4096
SMALL_MODEL, SMALL_WORK = 1 << 16, 1 << 24
"""Weights of a model, and weights × examples, up to which evaluating several draws at once was faster."""
DRAWS_TOGETHER = 32
"""Draws evaluated at once: more were no faster, and take memory for their activations."""
Inputs = Tensor | tuple[Tensor, ...]
Strategy = Literal["auto", "loop", "vmap"]


@torch.no_grad()
def predict(
    model: Drawable,
    x: Inputs,
    samples: int = 100,
    likelihood: Likelihood | None = None,
    *,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    memory_limit: int = MEMORY_LIMIT,
    strategy: Strategy = "auto",
) -> Predictive:
    """The predictive distribution at ``x``, from draws of the whole weight: the same draw serves every example.

    The model is evaluated in eval mode and without gradients. Draw number i depends on the seed and i alone: the
    same seed gives the same numbers whatever the batch size and the memory limit. Torch's own generators, and every
    module's training flag, are afterwards as they were; later training does not change the prediction. Threads that
    predict by one model take turns.

    Args:
        model: A converted model, or an optimizer that holds a posterior.
        x: Inputs, examples first; several inputs as a tuple.
        samples: How many draws.
        likelihood: By default the model's own.
        seed: Of the draws.
        batch_size: Examples evaluated at a time.
        memory_limit: Bytes that the drawn weights may take at a time.
        strategy: ``"vmap"`` evaluates several draws at once, ``"loop"`` one after another; ``"auto"`` does the first
            for small dense networks where it can, and the second otherwise.
    """
    inputs = x if isinstance(x, tuple) else (x,)
    if not isinstance(model, Drawable):
        raise InvalidArgument(
            "br.predict takes a converted model",
            got=type(model).__name__,
            remedy=conversion_remedy(model, Drawable),
        )
    _check(inputs, samples, batch_size, strategy)
    with turn_of(model):
        found = _outputs(model, inputs, samples, seed, batch_size, memory_limit, strategy)
    return Predictive(found, _as_it_is(likelihood if likelihood is not None else model.default_likelihood()), seed)


def _outputs(
    model: Drawable, inputs: tuple[Tensor, ...], samples: int, seed: int, batch_size: int, memory_limit: int,
    strategy: Strategy,
) -> Tensor:  # fmt: skip
    """At all draws."""
    posteriors = model.posteriors()
    several = min(draws_within(memory_limit, posteriors), DRAWS_TOGETHER)

    def at_draws(evaluate: Callable[..., Tensor], chunk: int) -> Tensor:
        found = []
        for start in range(0, samples, chunk):
            draws = draw_weights(posteriors, range(start, min(start + chunk, samples)), seed)
            batches = zip(*(tensor.split(batch_size) for tensor in inputs), strict=True)
            found.append(torch.cat([evaluate(model, draws, batch) for batch in batches], dim=1))
        return torch.cat(found)

    with evaluating(model, posteriors):
        if strategy == "loop" or (strategy == "auto" and not _worth_batching(model, posteriors, len(inputs[0]))):
            return at_draws(at_one, 1)
        try:
            return at_draws(at_several, several)
        except Unsupported:
            if strategy == "vmap":
                raise
            return at_draws(at_one, 1)


def _worth_batching(model: Drawable, posteriors: dict[str, Posterior], examples: int) -> bool:
    """Small dense networks gain by batching draws (4× at 750 weights); large ones and convolutions lose."""
    entries = sum(posterior.mean.numel() for posterior in posteriors.values())
    return model.batchable and entries <= SMALL_MODEL and entries * examples <= SMALL_WORK


def _as_it_is(likelihood: Likelihood | None) -> Likelihood | None:
    """A copy that later training of the noise does not reach."""
    return None if likelihood is None else copy.deepcopy(likelihood).requires_grad_(False)


def _check(inputs: tuple[Any, ...], samples: int, batch_size: int, strategy: str) -> None:
    if samples < 1 or samples % 1:
        raise InvalidArgument("At least one draw is needed, and a whole number of them", got=f"samples={samples}")
    if batch_size < 1:
        raise InvalidArgument("batch_size must be at least 1", got=batch_size)
    if strategy not in get_args(Strategy):
        raise InvalidArgument('strategy must be "auto", "loop" or "vmap"', got=repr(strategy))
    if not all(isinstance(tensor, Tensor) and tensor.ndim for tensor in inputs):
        raise InvalidArgument(
            "Inputs must be tensors, examples first", got=[type(each).__name__ for each in inputs],
            remedy="Give one tensor, or several as a tuple; torch.as_tensor converts an array.",
        )  # fmt: skip
    lengths = {len(tensor) for tensor in inputs}
    if len(lengths) != 1 or 0 in lengths:
        raise InvalidArgument(
            "Inputs must have the same, positive number of examples", got=[tuple(tensor.shape) for tensor in inputs]
        )

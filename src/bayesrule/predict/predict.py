"""Predictions of a model at many draws of its weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.likelihoods import Likelihood
from bayesrule.posteriors import Posterior
from bayesrule.predict.predictive import Predictive
from bayesrule.random import draw, keyed_generator
from bayesrule.typing import Drawable

MEMORY_LIMIT = 2**30
BATCH_SIZE = 4096
SMALL_MODEL, SMALL_WORK = 1 << 16, 1 << 24
"""Weights of a model, and weights × examples, up to which evaluating several draws at once was faster."""
Inputs = Tensor | tuple[Tensor, ...]


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
    strategy: Literal["auto", "loop", "vmap"] = "auto",
) -> Predictive:
    """The predictive distribution at ``x``, from draws of the whole weight: the same draw serves every example.

    The model is evaluated in eval mode and without gradients. Draw number i depends on the seed and i alone: the
    same seed gives the same numbers whatever the batch size and the memory limit.

    Args:
        model: A converted model, or an optimizer that holds a posterior.
        x: Inputs, examples first; several inputs as a tuple.
        samples: How many draws.
        likelihood: By default the model's own.
        seed: Of the draws.
        batch_size: Examples evaluated at a time.
        memory_limit: Bytes that the drawn weights may take at a time.
        strategy: ``"vmap"`` evaluates several draws at once, ``"loop"`` one after another; ``"auto"`` chooses.
    """
    inputs = x if isinstance(x, tuple) else (x,)
    _check(inputs, samples, batch_size)
    posteriors = model.posteriors()
    chunk = _draws_at_once(posteriors, samples, memory_limit)
    together = strategy == "vmap" or (strategy == "auto" and _worth_batching(model, posteriors, len(inputs[0])))
    chunk = chunk if together else 1
    outputs: list[Tensor] = []
    with _evaluating(model):
        for start in range(0, samples, chunk):
            indices = range(start, min(start + chunk, samples))
            draws = draw_weights(posteriors, indices, seed)
            outputs.append(_evaluate(model, draws, inputs, batch_size, together))
    found = likelihood if likelihood is not None else model.likelihood
    return Predictive(torch.cat(outputs), found, seed)


def draw_weights(posteriors: dict[str, Posterior], indices: range, seed: int) -> dict[str, Tensor]:
    """Draws number ``indices``, stacked in front, by parameter name; draw i is the same however it is asked for."""
    stacked: dict[str, Tensor] = {}
    for name, posterior in posteriors.items():
        device = posterior.mean.device
        noise = [
            draw(
                tuple(posterior.noise_shape),
                posterior.noise_law,
                posterior.mean,
                keyed_generator(device, seed, i, name),
            )
            for i in indices
        ]
        stacked |= posterior.split(posterior.from_noise(torch.stack(noise)))
    return stacked


def _evaluate(
    model: Drawable, draws: dict[str, Tensor], inputs: tuple[Tensor, ...], rows: int, together: bool
) -> Tensor:
    """Outputs, (draws, examples, …)."""
    batches = zip(*(tensor.split(rows) for tensor in inputs), strict=True)
    if together:
        mapped = torch.func.vmap(model.at, in_dims=(0, *(None,) * len(inputs)))
        return torch.cat([mapped(draws, *batch) for batch in batches], dim=1)
    one = {name: tensor[0] for name, tensor in draws.items()}
    return torch.cat([model.at(one, *batch) for batch in batches])[None]


def _draws_at_once(posteriors: dict[str, Posterior], samples: int, memory_limit: int) -> int:
    size = sum(posterior.mean.numel() * posterior.mean.element_size() for posterior in posteriors.values())
    if size > memory_limit:
        raise InvalidArgument(
            f"One draw of the weights takes {size:,} bytes", got=f"a memory limit of {memory_limit:,}",
            remedy=f"Raise memory_limit to {size:,} or more.",
        )  # fmt: skip
    return max(1, min(samples, memory_limit // max(size, 1)))


def _worth_batching(model: Drawable, posteriors: dict[str, Posterior], examples: int) -> bool:
    """Small dense networks gain by batching draws (4× at 750 weights); large ones and convolutions lose."""
    entries = sum(posterior.mean.numel() for posterior in posteriors.values())
    return model.batchable and entries <= SMALL_MODEL and entries * examples <= SMALL_WORK


@contextmanager
def _evaluating(model: Drawable) -> Iterator[None]:
    training = model.training
    model.train(False)
    try:
        yield
    finally:
        model.train(training)


def _check(inputs: tuple[Tensor, ...], samples: int, batch_size: int) -> None:
    if samples < 1:
        raise InvalidArgument("At least one draw is needed", got=f"samples={samples}")
    if batch_size < 1:
        raise InvalidArgument("batch_size must be at least 1", got=batch_size)
    lengths = {len(tensor) for tensor in inputs}
    if len(lengths) != 1 or 0 in lengths:
        raise InvalidArgument(
            "Inputs must have the same, positive number of examples", got=[tuple(tensor.shape) for tensor in inputs]
        )

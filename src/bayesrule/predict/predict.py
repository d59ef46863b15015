"""Predictions of a model at many draws of its weights."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from bayesrule.errors import BayesruleError, InvalidArgument, ShapeMismatch, Unsupported
from bayesrule.likelihoods import Likelihood
from bayesrule.posteriors import Posterior
from bayesrule.predict.predictive import Predictive
from bayesrule.random import draw, keyed_generator
from bayesrule.typing import Drawable

MEMORY_LIMIT = 2**30
BATCH_SIZE = 4096
SMALL_MODEL, SMALL_WORK = 1 << 16, 1 << 24
"""Weights of a model, and weights × examples, up to which evaluating several draws at once was faster."""
DRAWS_TOGETHER = 32
"""Draws evaluated at once: more of them were slower, and their activations are memory too."""
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
    module's training flag, are afterwards as they were; later training does not change the prediction.

    Args:
        model: A converted model, or an optimizer that holds a posterior.
        x: Inputs, examples first; several inputs as a tuple.
        samples: How many draws.
        likelihood: By default the model's own.
        seed: Of the draws.
        batch_size: Examples evaluated at a time.
        memory_limit: Bytes that the drawn weights may take at a time.
        strategy: ``"vmap"`` evaluates several draws at once, ``"loop"`` one after another; ``"auto"`` does the first
            for small networks that can be, the second otherwise.
    """
    inputs = x if isinstance(x, tuple) else (x,)
    _check(inputs, samples, batch_size, strategy)
    posteriors = model.posteriors()
    several = _draws_at_once(posteriors, samples, memory_limit)
    together = strategy == "vmap" or (strategy == "auto" and _worth_batching(model, posteriors, len(inputs[0])))
    outputs = None
    with _evaluating(model, posteriors):
        if together:
            try:
                outputs = _outputs(model, posteriors, inputs, samples, seed, batch_size, several)
            except Unsupported:
                if strategy == "vmap":
                    raise
        if outputs is None:
            outputs = _outputs(model, posteriors, inputs, samples, seed, batch_size, None)
    found = likelihood if likelihood is not None else model.likelihood
    return Predictive(outputs, None if found is None else copy.deepcopy(found).requires_grad_(False), seed)


def draw_weights(posteriors: dict[str, Posterior], indices: range, seed: int) -> dict[str, Tensor]:
    """Draws number ``indices``, stacked in front, by parameter name; draw i is the same however it is asked for."""
    stacked: dict[str, Tensor] = {}
    for name, posterior in posteriors.items():
        # One at a time, because products of matrices round differently in batches of different sizes.
        stacked |= posterior.split(torch.stack([_draw(posterior, seed, i, name) for i in indices]))
    return stacked


def _draw(posterior: Posterior, seed: int, index: int, name: str) -> Tensor:
    generator = keyed_generator(posterior.mean.device, seed, index, name)
    return posterior.from_noise(draw(tuple(posterior.noise_shape), posterior.noise_law, posterior.mean, generator))


def _outputs(
    model: Drawable,
    posteriors: dict[str, Posterior],
    inputs: tuple[Tensor, ...],
    samples: int,
    seed: int,
    rows: int,
    several: int | None,
) -> Tensor:
    """Outputs, (draws, examples, …): ``several`` draws at once by vmap, or one after another."""
    outputs = []
    for start in range(0, samples, several or 1):
        draws = draw_weights(posteriors, range(start, min(start + (several or 1), samples)), seed)
        batches = zip(*(tensor.split(rows) for tensor in inputs), strict=True)
        evaluate = _at_one if several is None else _at_several
        outputs.append(torch.cat([evaluate(model, draws, batch) for batch in batches], dim=1))
    return torch.cat(outputs)


def _at_one(model: Drawable, draws: dict[str, Tensor], batch: tuple[Tensor, ...]) -> Tensor:
    output = model.at({name: tensor[0] for name, tensor in draws.items()}, *batch)
    return _checked(output, len(batch[0]))[None]


def _at_several(model: Drawable, draws: dict[str, Tensor], batch: tuple[Tensor, ...]) -> Tensor:
    mapped = torch.func.vmap(lambda one: _checked(model.at(one, *batch), len(batch[0])))
    try:
        return mapped(draws)
    except BayesruleError:
        raise
    except (RuntimeError, ValueError) as error:  # no batching rule, control flow or noise of the network's own, …
        raise Unsupported(
            "This network cannot be evaluated at several draws at once (torch.func.vmap)", got=error,
            remedy='Use strategy="loop".',
        ) from error  # fmt: skip


def _checked(output: Any, examples: int) -> Tensor:
    """The network's output, if it is one tensor with the examples first."""
    if not isinstance(output, Tensor):
        raise InvalidArgument(
            "Prediction needs a network that returns one tensor", got=f"a {type(output).__name__}",
            remedy="Wrap the network in a module that returns the output to be predicted.",
        )  # fmt: skip
    if output.ndim == 0 or len(output) != examples:
        raise ShapeMismatch(
            f"The network's output must have the {examples} examples as its first dimension", got=tuple(output.shape),
            remedy="Put examples first in inputs and outputs (batch_first=True), and reduce over none of them.",
        )  # fmt: skip
    return output


def _draws_at_once(posteriors: dict[str, Posterior], samples: int, memory_limit: int) -> int:
    size = sum(posterior.mean.numel() * posterior.mean.element_size() for posterior in posteriors.values())
    if size > memory_limit:
        raise InvalidArgument(
            f"One draw of the weights takes {size:,} bytes", got=f"a memory limit of {memory_limit:,}",
            remedy=f"Raise memory_limit to {size:,} or more.",
        )  # fmt: skip
    return max(1, min(samples, DRAWS_TOGETHER, memory_limit // max(size, 1)))


def _worth_batching(model: Drawable, posteriors: dict[str, Posterior], examples: int) -> bool:
    """Small dense networks gain by batching draws (4× at 750 weights); large ones and convolutions lose."""
    entries = sum(posterior.mean.numel() for posterior in posteriors.values())
    return model.batchable and entries <= SMALL_MODEL and entries * examples <= SMALL_WORK


@contextmanager
def _evaluating(model: Drawable, posteriors: dict[str, Posterior]) -> Iterator[None]:
    """Eval mode, with torch's generators and the training flag of every module put back at the end."""
    training = model.training
    flags = {module: module.training for module in model.modules()} if isinstance(model, nn.Module) else {}
    cuda = {posterior.mean.device for posterior in posteriors.values() if posterior.mean.is_cuda}
    with torch.random.fork_rng(devices=cuda):
        model.train(False)
        try:
            yield
        finally:
            model.train(training)
            for module, flag in flags.items():
                module.training = flag


def _check(inputs: tuple[Any, ...], samples: int, batch_size: int, strategy: str) -> None:
    if samples < 1:
        raise InvalidArgument("At least one draw is needed", got=f"samples={samples}")
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

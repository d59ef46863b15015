"""A model's outputs at given weights: one draw, or several at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.errors import BayesruleError, InvalidArgument, ShapeMismatch, Unsupported
from bayesrule.posteriors import Posterior
from bayesrule.typing import Drawable


def at_one(model: Drawable, draws: dict[str, Tensor], batch: tuple[Tensor, ...]) -> Tensor:
    """Outputs at the first of the draws, (1, examples, …)."""
    output = model.at({name: tensor[0] for name, tensor in draws.items()}, *batch)
    return _checked(output, len(batch[0]))[None]


def at_several(model: Drawable, draws: dict[str, Tensor], batch: tuple[Tensor, ...]) -> Tensor:
    """Outputs at all the draws, (draws, examples, …), by `torch.func.vmap`; refused where that has no rule."""
    mapped = torch.func.vmap(lambda one: _checked(model.at(one, *batch), len(batch[0])))
    try:
        return mapped(draws)
    except BayesruleError:
        raise
    except (RuntimeError, ValueError) as error:  # an operator without a rule, or control flow on a drawn value
        raise Unsupported(
            "This network cannot be evaluated at several draws at once (torch.func.vmap)", got=error,
            remedy='Use strategy="loop".',
        ) from error  # fmt: skip


@contextmanager
def evaluating(model: Drawable, posteriors: dict[str, Posterior]) -> Iterator[None]:
    """Eval mode; torch's generators and the training flag of every module are put back at the end."""
    training = model.training
    flags = {module: module.training for module in model.modules()} if isinstance(model, nn.Module) else {}
    cuda = {posterior.mean.device for posterior in posteriors.values() if posterior.mean.is_cuda}
    with torch.random.fork_rng(devices=cuda):
        model.train(False)
        try:
            yield
        finally:
            model.train(training)
            for module, flag in flags.items():  # a frozen layer may be in eval mode inside a model that trains
                module.training = flag


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

"""Training by a recipe; the network is kept together with the state that its optimizer predicts with."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from bayesrule.data import LabelledSet
from bayesrule.errors import InvalidArgument
from bayesrule.experiments.blr.image_data import Images, images, mirrored
from bayesrule.experiments.blr.image_recipe import Recipe
from bayesrule.experiments.context import Context
from bayesrule.experiments.trained import Trained, trained
from bayesrule.optim import PosteriorOptimizer
from bayesrule.optim.packing import pack, unpack
from bayesrule.report.numbers import plural
from bayesrule.train import TensorBatches

NESTED = "/"
"""Between the names of a state's parts: the name of a buffer must not have a dot."""


class Held(nn.Module):
    """A network, its optimizer, and the posterior's state as buffers, so that one file keeps all that predicts.

    Args:
        net: The network, on its device.
        optimizer: That trains it.
    """

    def __init__(self, net: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        super().__init__()
        self.net, self.optimizer = net, optimizer
        for name, tensor in self._tensors().items():
            self.register_buffer(name, tensor.clone())

    def keep(self) -> None:
        """The optimizer's state into the buffers."""
        own = dict(self.named_buffers())
        for name, tensor in self._tensors().items():
            own[name].copy_(tensor)

    def holder(self) -> PosteriorOptimizer | None:
        """The optimizer with the posterior of the buffers; None where it holds none."""
        optimizer = self.optimizer
        if not isinstance(optimizer, PosteriorOptimizer):
            return None
        own = dict(self.named_buffers())
        for name, state in optimizer.states.items():
            optimizer.states[name] = unpack(state, _filled(pack(state), _word(name), own))
        return optimizer

    def _tensors(self) -> dict[str, Tensor]:
        if not isinstance(self.optimizer, PosteriorOptimizer):
            return {}
        found: dict[str, Tensor] = {}
        for name, state in self.optimizer.states.items():
            _flatten(pack(state), _word(name), found)
        return found


def state_tensors(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """Everything an optimizer keeps between two steps."""
    found: dict[str, Tensor] = {}
    if isinstance(optimizer, PosteriorOptimizer):
        for name, state in (*optimizer.states.items(), *optimizer.plain_states.items()):
            _flatten(pack(state), name, found)
        return list(found.values())
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]


def examples(recipe: Recipe, folder: Path | None, device: torch.device) -> Images:
    """The data of a recipe."""
    return images(recipe.dataset, folder, device, train=recipe.train, synthetic=recipe.synthetic)


def train_recipe(context: Context, recipe: Recipe) -> Trained[Held]:
    """The trained network of a recipe, with its posterior, and a record of the losses."""
    device = context.device
    data = examples(recipe, context.data, device).labelled

    def build() -> Held:
        net = recipe.start().to(device)
        return Held(net, recipe.optimizer(net, len(data.train_y)))

    def train(held: Held) -> dict[str, Any]:
        return _train(held, recipe, data)

    told = f"{recipe.dataset} {recipe.method} seed {recipe.seed}: {plural(recipe.epochs, 'epoch')}, {recipe.told()}"
    return trained(recipe.plain(), build, train, context, told)


def _train(held: Held, recipe: Recipe, data: LabelledSet) -> dict[str, Any]:
    devices = [data.train_x.device] if data.train_x.is_cuda else []
    started = time.perf_counter()
    losses, stopped = [], ""
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(recipe.seed)
        try:
            losses += _epochs(held, recipe, data)
        except InvalidArgument as error:  # of a step whose gradient is not finite: a candidate not to be chosen
            stopped = str(error)
    held.keep()
    seconds = time.perf_counter() - started
    return {"losses": losses, "stopped": stopped, "seconds": seconds, "n_data": len(data.train_y)}


def _epochs(held: Held, recipe: Recipe, data: LabelledSet) -> list[float]:
    batch_size = min(recipe.batch_size, len(data.train_y) // 2)
    batches = TensorBatches(data.train_x, data.train_y, batch_size=batch_size, drop_last=True)
    steps = recipe.epochs * len(batches)
    schedule = LambdaLR(held.optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * min(step, steps) / steps)))
    step, losses = training_step(held.net.train(), held.optimizer), []
    for _ in range(recipe.epochs):
        total = torch.zeros((), device=data.train_x.device)
        for x, y in batches:
            total += step(mirrored(x) if recipe.flips else x, y)
            schedule.step()
        losses.append(total.item() / len(batches))
    return losses


def training_step(net: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[Tensor, Tensor], Tensor]:
    """A step on the mean cross-entropy of a batch, at a draw where the optimizer draws; it returns the loss."""

    def plain(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss.detach()

    def step(x: Tensor, y: Tensor) -> Tensor:
        if isinstance(optimizer, PosteriorOptimizer):
            with optimizer.sampled_params():
                loss = plain(x, y)
        else:
            loss = plain(x, y)
        optimizer.step()
        return loss

    return step


def _word(name: str) -> str:
    return name.replace(".", "_")


def _flatten(packed: Any, name: str, into: dict[str, Tensor]) -> None:
    """Every tensor of a packed state by its path."""
    if isinstance(packed, Tensor):
        into[name] = packed
    elif isinstance(packed, Mapping | list):
        parts = packed.items() if isinstance(packed, Mapping) else enumerate(packed)
        for key, value in parts:
            _flatten(value, f"{name}{NESTED}{key}", into)


def _filled(packed: Any, name: str, tensors: Mapping[str, Tensor]) -> Any:
    """A packed state with the tensors of their paths."""
    if isinstance(packed, Tensor):
        return tensors[name]
    if isinstance(packed, Mapping):
        return {key: _filled(value, f"{name}{NESTED}{key}", tensors) for key, value in packed.items()}
    if isinstance(packed, list):
        return [_filled(value, f"{name}{NESTED}{key}", tensors) for key, value in enumerate(packed)]
    return packed

"""What a training step costs: time, beside Adam's in turns, and the bytes that are kept."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bayesrule.data import LabelledSet
from bayesrule.experiments.blr.image_recipe import Recipe
from bayesrule.experiments.blr.image_search import BASE
from bayesrule.experiments.blr.image_training import state_tensors, training_step
from bayesrule.experiments.ktied.step_times import Step, interleaved_times
from bayesrule.optim import PosteriorOptimizer

COSTS = ("step_ms", "step_ratio", "state_bytes", "state_ratio", "memory_mb")
REFERENCE = "adam"


def costs(
    recipes: Mapping[str, Recipe], data: LabelledSet, rounds: int, members: int
) -> dict[str, dict[str, list[float]]]:
    """By method and metric, one number for each round of timings; recipes must have Adam's and AdamW's.

    Laplace trains as AdamW does, and an ensemble costs that once for each member. ``memory_mb`` is the peak of a step
    with everything that lives then, as the GPU's allocator counts it; on a CPU, what is kept: weights, gradients,
    state, and the copy of the means while a draw is in the weights.
    """
    made = {method: _made(recipe, data) for method, recipe in recipes.items()}
    memory = {method: _memory(*built) for method, built in made.items()}
    seconds = interleaved_times({method: step for method, (_, _, step) in made.items()}, rounds, data.train_x.device)
    reference = seconds[REFERENCE]
    kept = {method: _bytes(state_tensors(optimizer)) for method, (_, optimizer, _) in made.items()}
    found = {
        method: {
            "step_ms": [1e3 * each for each in seconds[method]],
            "step_ratio": [each / adam for each, adam in zip(seconds[method], reference, strict=True)],
            "state_bytes": [float(kept[method])],
            "state_ratio": [kept[method] / kept[REFERENCE]],
            "memory_mb": [memory[method] / 2**20],
        }
        for method in recipes
    }
    own = found[BASE["laplace"]]
    return {**found, "laplace": own, "ensemble": {name: [members * each for each in own[name]] for name in COSTS}}


def _made(recipe: Recipe, data: LabelledSet) -> tuple[nn.Module, torch.optim.Optimizer, Step]:
    """A network after its first step, which allocates the state, its optimizer, and the step on one batch."""
    net = recipe.start().to(data.train_x.device).train()
    optimizer = recipe.optimizer(net, len(data.train_y))
    train = training_step(net, optimizer)
    x, y = data.train_x[: recipe.batch_size], data.train_y[: recipe.batch_size]

    def step() -> None:
        train(x, y)

    step()
    return net, optimizer, step


def _memory(net: nn.Module, optimizer: torch.optim.Optimizer, step: Step) -> int:
    weights = [parameter.detach() for parameter in net.parameters()]
    copies = 3 if isinstance(optimizer, PosteriorOptimizer) else 2
    kept = copies * _bytes(weights) + _bytes(state_tensors(optimizer))
    if not weights[0].is_cuda:
        return kept
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return kept + torch.cuda.max_memory_allocated() - before


def _bytes(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)

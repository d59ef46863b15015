"""The default model of a table: cross-fitted Bayesian perceptrons, trained as one batched network and calibrated."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bayesrule.errors import InvalidArgument
from bayesrule.likelihoods import Categorical, GaussianMixture, Likelihood
from bayesrule.nn import BayesianModule, bayesianize
from bayesrule.predict import Predictive, predict
from bayesrule.train.calibration import Calibration, calibrate
from bayesrule.train.heads import ClassHead, MixtureHead
from bayesrule.train.member_loop import MemberLoop, Progress
from bayesrule.train.settings import Settings, point_estimate
from bayesrule.train.stacked import StackedMembers

__all__ = [
    "Members", "Settings", "Task", "build_member", "make_likelihood", "perceptron", "point_estimate", "pooled",
    "train_members", "trained_loop",
]  # fmt: skip
Task = Literal["classification", "regression"]


class Members(nn.Module):
    """Trained members, their shares, and the likelihood of their calibrated outputs."""

    members: nn.ModuleList
    shares: Tensor

    def __init__(
        self, members: list[BayesianModule], likelihood: Likelihood, shares: Tensor, settings: Settings
    ) -> None:
        super().__init__()
        self.members, self.likelihood, self.settings = nn.ModuleList(members), likelihood, settings
        self.register_buffer("shares", shares)

    @torch.no_grad()
    def predictive(self, x: Tensor, *, seed: int = 0) -> Predictive:
        """The mixture over members, each with as many draws as its share asks for."""
        if self.settings.noiseless:
            outputs = [member.at_mean(x)[None] for member in self.members]  # type: ignore[operator]
        else:
            outputs = [
                predict(member, x, samples=draws, seed=seed + number, memory_limit=2**62).outputs  # type: ignore[arg-type]
                for number, (member, draws) in enumerate(zip(self.members, self._draws(), strict=True))
                if draws
            ]
        return Predictive(torch.cat(outputs), self.likelihood, seed)

    def _draws(self) -> list[int]:
        """Draws in proportion to the shares, at least one in all."""
        counts = [round(self.settings.draws * float(share)) for share in self.shares]
        return counts if any(counts) else [1] * len(counts)


def perceptron(sizes: Sequence[int], task: Task, components: int) -> nn.Sequential:
    """The plain network of a member: SiLU units, and the head of its task."""
    layers: list[nn.Module] = []
    for fan_in, fan_out in pairwise(sizes):
        layers += [nn.Linear(fan_in, fan_out), nn.SiLU()]
    return nn.Sequential(*layers[:-1], ClassHead() if task == "classification" else MixtureHead(components))


def build_member(
    inputs: int, outputs: int, task: Task, settings: Settings, generator: torch.Generator
) -> BayesianModule:
    """One untrained member, from the generator's numbers alone."""
    sizes = (inputs, *settings.hidden, outputs if task == "classification" else 3 * settings.components)
    network = perceptron(sizes, task, settings.components)
    linears = [layer for layer in network if isinstance(layer, nn.Linear)]
    with torch.no_grad():
        for linear in linears:
            gain = 1.0 if linear is linears[-1] else math.sqrt(2)
            noise = torch.randn(linear.weight.shape, generator=generator)
            linear.weight.copy_(noise * gain / math.sqrt(linear.in_features))
            linear.bias.zero_()
    return bayesianize(network, settings.posterior, settings.prior, settings.estimator, generator=generator)


def make_likelihood(task: Task, settings: Settings) -> Likelihood:
    """What the members' outputs mean."""
    return Categorical() if task == "classification" else GaussianMixture(settings.components)


def train_members(
    x: Tensor,
    y: Tensor,
    task: Task,
    settings: Settings,
    *,
    outputs: int = 1,
    checkpoint: Path | None = None,
    resume: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> tuple[Members, list[dict[str, Any]]]:
    """Train and calibrate the default model.

    Args:
        x: Standardised features, (rows, features).
        y: Class indices (rows), or standardised targets (rows, 1).
        task: Which of the two.
        settings: The choices.
        outputs: Classes, for a classification.
        checkpoint: File to keep the state of training in.
        resume: Go on from that file, if it is there.
        on_progress: Told how it goes.

    Returns:
        The model, and its history: a dict for each time it was measured.
    """
    loop = trained_loop(
        x, y, task, settings, outputs=outputs, checkpoint=checkpoint, resume=resume, on_progress=on_progress
    )
    members = list(loop.stacked.members)
    if settings.deterministic:
        shares = torch.full((settings.size,), 1 / settings.size)
        return Members(members, loop.likelihood, shares, settings), loop.history
    found = calibrate(loop.held_out_log_densities, len(settings.temperatures), settings.folds)
    return pooled(members, loop.likelihood, found, settings), loop.history


def trained_loop(
    x: Tensor,
    y: Tensor,
    task: Task,
    settings: Settings,
    *,
    outputs: int = 1,
    checkpoint: Path | None = None,
    resume: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
) -> MemberLoop:
    """What `train_members` does before calibration: the loop after its end, with the trained members."""
    if len(x) < 2 * settings.folds:
        raise InvalidArgument(f"Training needs at least {2 * settings.folds} rows", got=len(x))
    generator = torch.Generator().manual_seed(settings.seed)
    folds = torch.arange(len(x))[torch.randperm(len(x), generator=generator)].tensor_split(settings.folds)
    with torch.random.fork_rng():  # layers are made with random numbers of torch's own, and overwritten
        members = [build_member(x.shape[1], outputs, task, settings, generator) for _ in range(settings.size)]
    likelihood = make_likelihood(task, settings)
    loop = MemberLoop(StackedMembers(members), likelihood, x, y, folds, settings, generator, checkpoint, on_progress)
    if resume and checkpoint is not None and checkpoint.exists():
        loop.resume(checkpoint)
    loop.run()
    return loop


def pooled(members: list[BayesianModule], likelihood: Likelihood, found: Calibration, settings: Settings) -> Members:
    """The ensemble of calibrated members, those of each kind side by side and equally many."""
    folds = len(members) // len(found.weights)
    for member, log_scale in zip(members, found.log_scales.repeat_interleave(folds), strict=True):
        member.module[-1].log_scale.fill_(float(log_scale))  # type: ignore[index]
    shares = (found.weights / folds).repeat_interleave(folds).float()
    return Members(members, likelihood, shares, settings)

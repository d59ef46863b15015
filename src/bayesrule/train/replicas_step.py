"""One step of many replicas at once, as a pure function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.curvature import Tapped
from bayesrule.optim.intervals import due
from bayesrule.optim.natural_gradient import NaturalGradientRule
from bayesrule.optim.rule import Message, Number, PriorTerm, Rule
from bayesrule.train.replicas_network import Layout, Matrices, Pass, forward
from bayesrule.train.replicas_noise import Batch


@dataclass(frozen=True)
class Noise:
    """``q(τ) = Gamma(shape, rate)`` over the precision of each replica's targets."""

    shape: Float[Tensor, "replicas 1 1"]
    rate: Float[Tensor, "replicas 1 1"]

    @property
    def precision(self) -> Float[Tensor, "replicas 1 1"]:
        """``E[τ]``."""
        return self.shape / self.rate


@dataclass(frozen=True)
class Program:
    """What all steps share.

    Attributes:
        layout: The networks.
        rule: The algorithm, one for all replicas.
        prior: γ of every replica, against the events of its groups.
        scale: ``√(λ/N)``, likewise.
        n_data: N.
        noise_prior: ``p(τ)``.
        noise_lr: Weight of the newest batch in q(τ).
        T_stats: Steps between curvatures.
        T_inv: Steps between inverses.
        quiet_steps: Steps at the start that take the mean for a draw.
    """

    layout: Layout
    rule: Rule
    prior: PriorTerm
    scale: Tensor
    n_data: int
    noise_prior: Noise
    noise_lr: float
    T_stats: int
    T_inv: int
    quiet_steps: int = 0


@dataclass(frozen=True)
class Work:
    """What a step does beside moving the means.

    Attributes:
        stats: Whether it gathers curvature.
        refresh: Whether it computes inverses.
        noisy: Whether it draws weights; else it takes the mean.
    """

    stats: bool
    refresh: bool
    noisy: bool

    @classmethod
    def due(cls, program: Program, steps: int) -> Work:
        """After so many steps."""
        rule = program.rule
        return cls(
            stats=rule.taps and due(steps + 1, program.T_stats),
            refresh=isinstance(rule, NaturalGradientRule) and due(steps + 1, program.T_inv),
            noisy=steps >= program.quiet_steps and not (rule.warm_up and steps == 0),
        )


@dataclass(frozen=True)
class ReplicaState:
    """Means and states by group, and the noise; ``steps`` counts from zero."""

    means: tuple[Tensor, ...]
    states: tuple[Any, ...]
    noise: Noise
    steps: int = 0


def draw(program: Program, state: ReplicaState, noise: Float[Tensor, "replicas entries"]) -> Matrices:
    """``μ + √(λ/N) R ε``, every group; the mean until there is curvature where the rule warms up."""
    if program.rule.warm_up and state.steps == 0:
        return program.layout.matrices(state.means)
    return _drawn(program, state, noise)


def _drawn(program: Program, state: ReplicaState, noise: Tensor) -> Matrices:
    noises = [noise] if program.layout.joint else program.layout.unflatten(noise)
    parts = zip(state.means, state.states, noises, strict=True)
    gamma = program.prior.damping
    events = [torch.addcmul(mean, program.rule.deviation(own, eps, gamma), program.scale) for mean, own, eps in parts]
    return program.layout.matrices(events)


def step(program: Program, state: ReplicaState, batch: Batch, lr: Number) -> ReplicaState:
    """One step with what is due."""
    return worked(program, state, batch, lr, Work.due(program, state.steps))


def worked(program: Program, state: ReplicaState, batch: Batch, lr: Number, work: Work) -> ReplicaState:
    """Draw, pass forward and back, and let the rule move every group; then q(τ) follows the residuals.

    The loss is the mean of ``½ E[τ] (f − y)²`` over the batch; its curvature is that of targets drawn from the model,
    whose gradient at the outputs is ``−√E[τ] ε``.
    """
    means = program.layout.matrices(state.means)
    weights = _drawn(program, state, batch.weight_noise) if work.noisy else means
    passed = forward(weights, batch.x)
    residuals, precision = passed.outputs - batch.y, state.noise.precision
    rows = residuals.shape[-2]
    cotangents = (precision / rows * residuals).unsqueeze(-3)
    if work.stats:
        sampled = -precision.sqrt() * batch.target_noise
        cotangents = torch.cat([cotangents, sampled.unsqueeze(-3)], dim=-3)
    pulled = passed.pull(cotangents)
    gradients = [x.mT @ g[..., 0, :, :] for x, g in zip(passed.inputs, pulled, strict=True)]
    curvatures = _curvatures(program, state, passed, pulled, gradients, batch.weight_noise, work.stats)
    moved = [
        program.rule.update(mean, own, Message(gradient, curvature), program.prior, lr=lr, refresh=work.refresh)
        for mean, own, gradient, curvature in zip(
            state.means, state.states, program.layout.events(gradients), curvatures, strict=True
        )
    ]
    after, states = zip(*moved, strict=True)
    return ReplicaState(after, states, _noise_after(program, state.noise, residuals), state.steps + 1)


def _curvatures(
    program: Program, state: ReplicaState, passed: Pass, pulled: list[Tensor], gradients: Matrices, noise: Tensor,
    stats: bool,
) -> list[dict[str, Tensor] | None]:  # fmt: skip
    """By group: the rule's own from what its layers saw, or the gradient along the noise for a rule without."""
    if not program.rule.taps:
        noises = program.layout.unflatten(noise)
        return [{"spread": gradient * eps} for gradient, eps in zip(gradients, noises, strict=True)]
    if not stats:
        return [None] * len(state.states)
    layers = [
        Tapped(x.unsqueeze(-2), g[..., 1:, :, None, :], x.shape[-2]) for x, g in zip(passed.inputs, pulled, strict=True)
    ]
    grouped = [layers] if program.layout.joint else [[layer] for layer in layers]
    return [program.rule.curvature(own, seen) for own, seen in zip(state.states, grouped, strict=True)]


def _noise_after(program: Program, noise: Noise, residuals: Tensor) -> Noise:
    """``λ ← (1−ρ)λ + ρλ*``, ``λ* = (a₀ + N/2, b₀ + ½ N · mean r²)``; a mean over examples, a sum over targets."""
    prior, (rows, targets) = program.noise_prior, residuals.shape[-2:]
    squares = residuals.square().sum((-2, -1), keepdim=True)
    shape = torch.lerp(noise.shape, prior.shape + 0.5 * program.n_data * targets, program.noise_lr)
    rate = torch.lerp(noise.rate, torch.add(prior.rate, squares, alpha=0.5 * program.n_data / rows), program.noise_lr)
    return Noise(shape, rate)

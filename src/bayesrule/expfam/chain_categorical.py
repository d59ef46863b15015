"""Markov chain of classes: the family behind forward–backward and hidden Markov models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.expfam.categorical import contrasts, draw_one_hot, with_reference, with_rest
from bayesrule.expfam.coordinates import Expectation, Natural
from bayesrule.expfam.family import ExponentialFamily
from bayesrule.expfam.space import Block, Blockwise, ParameterSpace
from bayesrule.random import NoiseSource

States = Float[Tensor, "*batch length classes"]
Pairs = Float[Tensor, "*batch links classes classes"]


@dataclass(frozen=True)
class ChainCategorical(ExponentialFamily):
    """One-hot z_1, …, z_T with log-probability Σ_t z_tᵀu_t + Σ_t z_tᵀW_t z_{t+1} + constant.

    The last class is the reference, so that the family is minimal: λ = (u_t, W_t) and T(z) = (z_t, z_t z_{t+1}ᵀ)
    without its row and column. A is the forward algorithm, so μ = ∇A by automatic differentiation is forward–backward.
    """

    space: ClassVar[ParameterSpace] = Blockwise(
        state=Block(("length", "classes-1")), link=Block(("length-1", "classes-1", "classes-1"))
    )

    def from_potentials(self, states: States, pairs: Pairs) -> Natural:
        """λ of the chain with log-potentials u_t over all classes and W_t over all pairs of them."""
        return self.check(_reduce(states, pairs))

    def states(self, expectation: Expectation) -> States:
        """P(z_t = k), as a linear function of μ."""
        return with_rest(expectation["state"])

    def pairs(self, expectation: Expectation) -> Pairs:
        """P(z_t = i, z_{t+1} = j), as a linear function of μ."""
        before, after = expectation["state"][..., :-1, :], with_rest(expectation["state"][..., 1:, :])
        rows = torch.cat([expectation["link"], (before - expectation["link"].sum(-1)).unsqueeze(-1)], dim=-1)
        return torch.cat([rows, (after - rows.sum(-2)).unsqueeze(-2)], dim=-2)

    def statistics(self, theta: States) -> Expectation:
        """T(z) = (z_t, z_t z_{t+1}ᵀ) without the last class."""
        free = theta[..., :-1]
        return Expectation(state=free, link=free[..., :-1, :].unsqueeze(-1) * free[..., 1:, :].unsqueeze(-2))

    def log_partition(self, natural: Natural) -> Float[Tensor, "*batch"]:
        """A(λ) = log Σ_z exp(…), by the forward algorithm."""
        return _forward(natural)[-1].logsumexp(-1)

    def to_natural(self, expectation: Expectation) -> Natural:
        """Log p(z) = Σ_t log p(z_t, z_{t+1}) − Σ over inner states log p(z_t)."""
        states = self.states(expectation).log()
        pairs = self.pairs(expectation).log()
        sign = -torch.ones_like(states)
        sign[..., 0, :] += 1
        sign[..., -1, :] += 1
        return _reduce(sign * states, pairs)

    def sample(self, natural: Natural, noise: NoiseSource, sample_shape: tuple[int, ...] = ()) -> Tensor:
        """From the last state to the first: P(z_t | z_{t+1}) ∝ exp(forward_t + W_t z_{t+1})."""
        forward, pairs = _forward(natural), _pad(natural["link"])
        states = [draw_one_hot(forward[-1], noise, sample_shape)]
        for t in reversed(range(len(forward) - 1)):
            logits = forward[t] + (pairs[..., t, :, :] @ states[-1].unsqueeze(-1)).squeeze(-1)
            states.append(draw_one_hot(logits, noise))
        return torch.stack(states[::-1], dim=-2)


def _pad(link: Float[Tensor, "*batch links free free"]) -> Pairs:
    return with_reference(with_reference(link).mT).mT


def _reduce(states: States, pairs: Pairs) -> Natural:
    """The log-potentials less those of the last class; what a pair says of one state alone moves to that state."""
    none = torch.zeros_like(states[..., :1, :])
    as_first, as_second = pairs[..., :, -1], pairs[..., -1, :]
    states = states + torch.cat([as_first, none], dim=-2) + torch.cat([none, as_second], dim=-2)
    return Natural(state=contrasts(states), link=contrasts(contrasts(pairs).mT).mT)


def _forward(natural: Natural) -> list[Float[Tensor, "*batch classes"]]:
    """Log Σ over earlier states, for each class of each state."""
    states, pairs = with_reference(natural["state"]), _pad(natural["link"])
    messages = [states[..., 0, :]]
    for t in range(pairs.shape[-3]):
        messages.append(states[..., t + 1, :] + (messages[-1].unsqueeze(-1) + pairs[..., t, :, :]).logsumexp(-2))
    return messages

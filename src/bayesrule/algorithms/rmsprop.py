"""RMSprop: a diagonal Gaussian, the delta method, minibatches, squared gradients, square-root scaling   (Sec. 4.2)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.algorithms.adaptive import Scaled, scaled_step
from bayesrule.algorithms.descent import Losses
from bayesrule.expfam import SquaredGradient


def rmsprop(
    losses: Losses, start: Float[Tensor, " dim"], *, lr: float = 0.01, alpha: float = 0.99, eps: float = 1e-8
) -> Iterator[Float[Tensor, " dim"]]:
    """θ ← θ − lr·∇̂ℓ/(√v + ε), v ← αv + (1−α)∇̂ℓ∘∇̂ℓ   (Eq. 38).

    Conventions of PyTorch: ε outside the root, v = 0 at first.
    """
    state = Scaled(start, torch.zeros_like(start), torch.zeros_like(start))
    for t in itertools.count():
        loss = losses(t)
        squares = SquaredGradient()(loss, state.mean, state.mean).diagonal()
        state = scaled_step(
            state,
            loss.gradient(state.mean),
            squares,
            scale_rate=1 - alpha,
            step_size=lr,
            momentum=0.0,
            precision=lambda scale: scale.sqrt() + eps,
        )
        yield state.mean

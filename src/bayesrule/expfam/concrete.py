"""Gradients for binary weights through the Concrete relaxation, and their limit without noise."""

from __future__ import annotations

import torch

from bayesrule.errors import InvalidArgument
from bayesrule.expfam.bernoulli import Bernoulli
from bayesrule.expfam.coordinates import Natural
from bayesrule.expfam.losses import Loss, Vector
from bayesrule.random import FromGenerator, NoiseSource


def concrete_gradient(
    family: Bernoulli, natural: Natural, loss: Loss, temperature: float, noise: NoiseSource | None = None
) -> Natural:
    """∇_μ E_q[ℓ] ≈ s∘∇ℓ(θ) at a relaxed draw θ = tanh((λ + δ)/τ), δ = ½ log(ε/(1−ε))   (Eqs. 50 and 51).

    s = (1 − θ²)/(τ(1 − tanh²λ)) is the derivative of θ in μ.
    """
    if not temperature > 0:
        raise InvalidArgument("the temperature of the relaxation must be positive", got=temperature)
    logits = natural["linear"]
    uniform = (FromGenerator() if noise is None else noise)(tuple(logits.shape), "uniform", logits)
    theta = torch.tanh((logits + 0.5 * torch.logit(uniform)) / temperature)
    slope = (1 - theta.square()) / (temperature * (1 - torch.tanh(logits).square()))
    return Natural(linear=slope * loss.gradient(theta))


def straight_through_gradient(natural: Natural, loss: Loss) -> Natural:
    """∇ℓ at θ = sign λ: no noise, temperature to 0, and s taken as 1   (Eq. 48)."""
    theta: Vector = torch.where(natural["linear"] >= 0, 1.0, -1.0).to(natural["linear"].dtype)
    return Natural(linear=loss.gradient(theta))

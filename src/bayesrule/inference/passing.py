"""Message passing: sweeps with ρ = 1, and damped updates in their global and their local form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from bayesrule.algorithms import vmp_sweep
from bayesrule.expfam import Natural, learning_rule
from bayesrule.inference.model import Model, Naturals, total


@dataclass(frozen=True)
class Fit:
    """The posterior approximation, and the ELBO after each sweep."""

    naturals: dict[str, Natural]
    elbos: list[float]


def fit_vmp(model: Model, naturals: Naturals, order: Sequence[str], *, sweeps: int, tolerance: float = 0.0) -> Fit:
    """Variational message passing until the ELBO rises by no more than ``tolerance``, or for so many sweeps.

    With conjugate factors each update is the best for its node, so the ELBO never falls.

    Args:
        model: The model.
        naturals: λ of every node, to begin with.
        order: The nodes' names as a sweep updates them; those left out stay as they are.
        sweeps: How many at most.
        tolerance: The least rise of the ELBO after which another sweep is made.
    """
    model.check_naturals(naturals)
    model.check_nodes("order", order)
    current, elbos = dict(naturals), []
    for _ in range(sweeps):
        current = vmp_sweep(model.families, model.expected_loss, current, order)
        elbos.append(model.elbo(current).item())
        if len(elbos) > 1 and elbos[-1] - elbos[-2] <= tolerance:
            break
    return Fit(current, elbos)


def global_step(model: Model, naturals: Naturals, step_size: float) -> dict[str, Natural]:
    """λ ← (1−ρ)λ + ρ Σ_i λ̃_i(μ)   (Eq. 58), all nodes at once; shortened where it would leave a family."""
    model.check_naturals(naturals)
    messages = model.messages(naturals)
    gradients = {name: -total(messages, name) for name in naturals}
    proposals = learning_rule.step(model.families, naturals, gradients, step_size)
    return learning_rule.stay_valid(model.families, naturals, proposals)


def local_step(
    model: Model, sites: Sequence[dict[str, Natural]], step_size: float
) -> tuple[dict[str, Natural], list[dict[str, Natural]]]:
    """λ̃_i ← (1−ρ)λ̃_i + ρλ̃_i(μ), λ ← Σ_i λ̃_i: the same update kept at the factors   (Eq. 60).

    Args:
        model: The model.
        sites: The local parameters of each factor, to begin with such that their sums are valid.
        step_size: ρ, in (0, 1].

    Returns:
        The global parameters after the step, and the local ones.
    """
    learning_rule.check_step_size(step_size)
    naturals = {name: total(sites, name) for name in model.families}
    moved = [
        {name: (1 - step_size) * site[name] + step_size * message[name] for name in site}
        for site, message in zip(sites, model.messages(naturals), strict=True)
    ]
    return {name: total(moved, name) for name in model.families}, moved


def is_rising(elbos: Sequence[float] | Tensor, slack: float = 1e-9) -> bool:
    """Whether no value lies below the one before, but for rounding."""
    values = [float(value) for value in elbos]
    return all(after >= before - slack * (1 + abs(before)) for before, after in pairwise(values))

"""The Bayesian learning rule (Khan & Rue): one equation over a tree of exponential families.

To minimise E_q[ℓ(θ)] − H(q) over q = Π_name q_name, each family moves by a natural gradient, which is the plain
gradient in the other coordinates (Eq. 4):

    λ ← λ − ρ·∇_μ (E_q[ℓ] − H(q))  =  (1−ρ)λ − ρ·∇_μ E_q[ℓ + log h]                    [Eqs. 3 and 6]

It is also the mirror-descent step argmin_μ ⟨∇_μ(E_q[ℓ] − H), μ⟩ + KL[q ‖ q_t]/ρ  (Eq. 22).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.expfam.base_measure import BaseMeasure, UnitBase
from bayesrule.expfam.coordinates import Expectation, Natural, require_same_names
from bayesrule.expfam.family import ExponentialFamily
from bayesrule.expfam.schedules import Schedule, constant
from bayesrule.expfam.space import ParameterSpace


@runtime_checkable
class Candidate(Protocol):
    """What the rule asks of a node: an exponential family, or the conditional family of a mixture."""

    @property
    def base(self) -> BaseMeasure:
        """h(θ)."""

    @property
    def space(self) -> ParameterSpace:
        """Where λ lives."""

    def to_expectation(self, natural: Natural) -> Expectation:
        """The map λ → μ."""

    def valid(self, natural: Natural) -> Tensor:
        """Whether λ ∈ Ω, for each member of a batch."""


Families = Mapping[str, Candidate]
Naturals = Mapping[str, Natural]


def step(
    families: Families,
    naturals: Naturals,
    loss_gradients: Naturals,
    step_size: float | Mapping[str, float],
    *,
    momentum: float = 0.0,
    displacements: Naturals | None = None,
    temperature: float = 1.0,
) -> dict[str, Natural]:
    """λ ← (1−ρ)λ − ρ·∇_μ E_q[ℓ + log h]   (Eq. 6), with momentum + γ(λ_t − λ_{t−1})   (Eq. 80).

    Args:
        families: The family of each name.
        naturals: λ of each name.
        loss_gradients: ∇_μ E_q[ℓ] of each name, exact or approximated; the step adds the term of log h itself. ℓ is the
            whole loss, −log p(data, θ) for Bayesian inference: a sum over the data, with the prior.
        step_size: ρ, or one for each name, in (0, 1]; with 1 and a conjugate model the step is Bayes' rule (Eq. 54).
            Where λ does not decay (temperature 0, a Gaussian with fixed covariance) ρ is a learning rate, of any size.
        momentum: γ of Eq. 80.
        displacements: λ_t − λ_{t−1} of each name; without it the momentum has nothing to act on.
        temperature: Weight τ of the entropy in E_q[ℓ] − τH(q): 1 is Bayes, 0 drops the entropy and so the decay of λ.

    Returns:
        The new λ of each name, not checked: a large step may leave the family, which ``family.check`` finds and
        :func:`stay_valid` mends.

    >>> from bayesrule.expfam import Gamma
    >>> counts, family = torch.tensor([3.0, 5.0]), Gamma()
    >>> prior = family.from_shape_rate(torch.tensor(2.0), torch.tensor(1.0))
    >>> def expected_loss(mu):  # −E_q[log p(θ) + Σ log Poisson(count; θ)], up to a constant
    ...     return -(family.inner(prior, mu) + counts.sum() * mu["log"] - len(counts) * mu["linear"])
    >>> gradient = gradient_in_expectation(family, expected_loss, prior)
    >>> posterior = step({"rate": family}, {"rate": prior}, {"rate": gradient}, step_size=1.0)
    >>> family.to_shape_rate(posterior["rate"])
    (tensor(10.), tensor(3.))
    """
    require_same_names(naturals, families, "families")
    require_same_names(naturals, loss_gradients, "loss_gradients")
    sizes = step_size if isinstance(step_size, Mapping) else dict.fromkeys(naturals, step_size)
    require_same_names(naturals, sizes, "step_size")
    if displacements is not None:
        require_same_names(naturals, displacements, "displacements")
    updated = {}
    for name, natural in naturals.items():
        size = sizes[name]
        decays = isinstance(families[name].base, UnitBase)
        check_step_size(size, temperature if decays else 0.0)
        base = temperature * families[name].base.gradient(natural)
        updated[name] = (1 - size * temperature) * natural - size * (loss_gradients[name] + base)
        if displacements is not None:
            updated[name] = updated[name] + momentum * displacements[name]
    return updated


def check_step_size(size: float, temperature: float = 1.0) -> None:
    """Refuse ρ ≤ 0, and ρτ > 1, which would give λ the weight 1 − ρτ < 0 in its own successor."""
    if not size > 0:
        raise InvalidArgument(
            "the step size ρ must be positive, in (0, 1]",
            got=size,
            remedy="ρ = 1 goes all the way, ρ = 0.1 a tenth of it.",
        )
    if size * temperature > 1:
        raise InvalidArgument(
            "the step size ρ, times the temperature, must lie in (0, 1]: beyond, the old λ has a negative weight",
            got=size, remedy="Take ρ = 1 for a conjugate model, less for another.",
        )  # fmt: skip


def stay_valid(families: Families, naturals: Naturals, proposals: Naturals) -> dict[str, Natural]:
    """λ + t(λ' − λ) with the largest t of 1, ½, ¼ … that lies in Ω: for a step of the rule, the step with tρ.

    Each member of a batch has its own t. Ω is open and convex, so for a valid λ some t does it.
    """
    return {name: _stay_valid(families[name], natural, proposals[name]) for name, natural in naturals.items()}


def _stay_valid(family: Candidate, natural: Natural, proposal: Natural) -> Natural:
    if not family.valid(natural).all():
        raise InvalidArgument("the natural parameter to start from must be valid", got=natural)
    scale = torch.ones_like(family.valid(natural), dtype=natural.items[0][1].dtype)
    for _ in range(60):
        trial = _towards(family, natural, proposal, scale)
        inside = family.valid(trial)
        if inside.all():
            return trial
        scale = torch.where(inside, scale, scale / 2)
    return natural


def _towards(family: Candidate, natural: Natural, proposal: Natural, scale: Tensor) -> Natural:
    dims = family.space.event_dims
    return Natural(
        **{
            name: torch.lerp(value, proposal[name], scale.reshape(*scale.shape, *(1,) * dims[name]))
            for name, value in natural.items
        }
    )


def iterates(
    families: Families,
    naturals: Naturals,
    loss_gradients: Callable[[int, Naturals], Naturals],
    step_size: Schedule | float,
    *,
    momentum: Schedule | float = 0.0,
    temperature: float = 1.0,
    line_search: bool = False,
) -> Iterator[dict[str, Natural]]:
    """The rule, again and again: yields λ_1, λ_2, … from λ_0 and ∇_μ E_q[ℓ] as a function of t = 0, 1, … and λ_t."""
    size, inertia = (value if callable(value) else constant(value) for value in (step_size, momentum))
    current, displacements = dict(naturals), None
    for t in itertools.count():
        gradients = loss_gradients(t, current)
        proposals = step(
            families,
            current,
            gradients,
            size(t),
            momentum=inertia(t),
            displacements=displacements,
            temperature=temperature,
        )
        following = stay_valid(families, current, proposals) if line_search else proposals
        displacements = {name: following[name] - natural for name, natural in current.items()}
        current = following
        yield current


def reverse_step(
    expectations: Mapping[str, Expectation], gradients: Mapping[str, Expectation], step_size: float
) -> dict[str, Expectation]:
    """μ ← μ − ρ·∇_λ L: the rule with the two coordinates exchanged   (end of Sec. 2.2).

    A mirror-descent step in Ω with the Bregman divergence of A. For L = A(λ) − ⟨λ, T̄⟩, the negative mean log-likelihood
    of data with mean statistics T̄, it is μ ← (1−ρ)μ + ρT̄: maximum likelihood for ρ = 1, its online form for ρ < 1.
    """
    require_same_names(expectations, gradients)
    return {name: expectation - step_size * gradients[name] for name, expectation in expectations.items()}


def gradients_in_expectation(
    families: Families,
    expected_loss: Callable[[Mapping[str, Expectation]], Tensor],
    naturals: Naturals,
    names: Iterable[str] | None = None,
) -> dict[str, Natural]:
    """∇_μ E_q[ℓ] at μ = ∇A(λ), from E_q[ℓ] as a function of all μ, by automatic differentiation.

    For a factor of a graphical model, with ℓ = −log f, it is minus the message (Eq. 58). Several numbers (one for each
    member of a batch) are summed: each member then gets its own gradient.

    Args:
        families: The family of each name.
        expected_loss: E_q[ℓ] of all μ, by name.
        naturals: λ of each name.
        names: Of which gradients are wanted; all, unless said.
    """
    expectations = {name: families[name].to_expectation(natural) for name, natural in naturals.items()}
    wanted = list(naturals if names is None else names)
    free = {name: expectations[name] for name in wanted}
    gradients = torch.func.grad(lambda mu: expected_loss({**expectations, **mu}).sum())(free)
    return {name: families[name].space.project(Natural(**gradient.blocks)) for name, gradient in gradients.items()}


def gradient_in_expectation(
    family: Candidate, expected_loss: Callable[[Expectation], Tensor], natural: Natural
) -> Natural:
    """∇_μ f(μ) at μ = ∇A(λ), for one family: a ``Natural``   (Eq. 4, right side)."""
    return gradients_in_expectation({"q": family}, lambda mu: expected_loss(mu["q"]), {"q": natural})["q"]


def natural_gradient(
    family: ExponentialFamily, expected_loss: Callable[[Natural], Tensor], natural: Natural
) -> Natural:
    """F(λ)⁻¹ ∇_λ f(λ) = ∇_μ f(λ(μ)), by the chain rule through μ → λ: no Fisher matrix is formed   (Eq. 4).

    A function of the usual parameters is one of λ:
    ``natural_gradient(family, lambda q: loss(*family.to_mean_precision(q)), natural)``.
    """
    return gradient_in_expectation(family, lambda mu: expected_loss(family.to_natural(mu)), natural)

"""μ → λ by Newton's method, for a family without a formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NoReturn

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.expfam.coordinates import Coordinates, Expectation, Natural
from bayesrule.expfam.family import ExponentialFamily

Vectors = Float[Tensor, "members entries"]


def solve_natural(
    family: ExponentialFamily,
    expectation: Expectation,
    start: Natural,
    *,
    tolerance: float = 1e-8,
    max_steps: int = 100,
) -> Natural:
    """Solve ∇A(λ) = μ, that is, minimise the strictly convex A(λ) − ⟨λ, μ⟩: λ ← λ + t·(∇²A)⁻¹(μ − ∇A(λ)).

    The step t is halved until λ stays in Ω and the objective falls. Iteration ends when the Newton decrement δ, with
    δ² = (μ − ∇A)ᵀ(∇²A)⁻¹(μ − ∇A), is at most ``tolerance``: then KL ≈ δ²/2 to the solution, in any units of θ, and
    two more steps leave only rounding. These two carry the graph, so derivatives in μ are right up to the third.
    Whatever the dtype of μ, the work is done in float64: μ → λ loses digits wherever a distribution is narrow.

    Args:
        family: A family without symmetric blocks, whose ∇²A in all entries would be singular.
        expectation: μ; leading dimensions are a batch.
        start: A valid λ for each member of the batch.
        tolerance: The largest Newton decrement at which to stop.
        max_steps: Newton steps before giving up.

    Raises:
        InvalidArgument: If ``start`` is not valid or no λ was found: μ is then not the expectation of any member.
    """
    if any(block.symmetric for block in family.space.blocks.values()):
        raise Unsupported(
            "Newton's method on a family with a symmetric block",
            got=type(family).__name__,
            remedy="Write to_natural by formula, or solve for the entries without one.",
        )
    if not family.valid(start).all():
        _refuse(start)

    def log_partition(vector: Float[Tensor, " entries"]) -> Tensor:
        return family.log_partition(_from_vectors(family, vector, start, batch_shape=()))

    def valid(points: Vectors) -> Bool[Tensor, " members"]:
        return family.valid(_from_vectors(family, points, start, batch_shape=(len(points),)))

    target, at = _to_vectors(family, expectation).double(), _to_vectors(family, start).detach().double()
    solution = invert_gradient(log_partition, target, at, valid, tolerance=tolerance, max_steps=max_steps)
    if solution is None:
        _refuse(expectation)
    natural = _from_vectors(family, solution, start, batch_shape=_batch_shape(family, start))
    return natural.map(lambda value: value.to(expectation.items[0][1].dtype))


def invert_gradient(
    potential: Callable[[Float[Tensor, " entries"]], Float[Tensor, ""]],
    target: Vectors,
    start: Vectors,
    valid: Callable[[Vectors], Bool[Tensor, " members"]],
    *,
    tolerance: float = 1e-8,
    max_steps: int = 100,
) -> Vectors | None:
    """The x with ∇f(x) = target for a strictly convex f, one for each member; see :func:`solve_natural`.

    Returns:
        The solution, or None if there is none to be found.
    """

    def newton_step(point: Vectors, target: Vectors) -> tuple[Vectors, Float[Tensor, " members"]]:
        residual = target - torch.func.vmap(torch.func.grad(potential))(point)
        hessian = torch.func.vmap(torch.func.jacrev(torch.func.grad(potential)))(point)
        step = torch.linalg.solve_ex(hessian, residual.unsqueeze(-1)).result.squeeze(-1)
        return step, (residual * step).sum(-1)

    def objective(point: Vectors) -> Float[Tensor, " members"]:
        inside = valid(point)
        safe = torch.where(inside.unsqueeze(-1), point, start)
        value = torch.func.vmap(potential)(safe) - (safe * target.detach()).sum(-1)
        return torch.where(inside, value, torch.inf)

    point = start
    with torch.no_grad():
        for _ in range(max_steps):
            step, squared_decrement = newton_step(point, target.detach())
            if not step.isfinite().all():  # ∇²f has become singular: x runs away to the boundary
                return None
            if (squared_decrement.abs() <= tolerance**2).all():
                break
            point = point + _halve_until_lower(objective, point, step).unsqueeze(-1) * step
        else:
            return None
        # Far out, where x runs away, ∇²f is rounding alone and its decrement means nothing: look at ∇f itself.
        reached = torch.func.vmap(torch.func.grad(potential))(point)
        if not torch.allclose(reached, target.detach(), rtol=1e-4, atol=1e-4):
            return None
    for _ in range(2):
        point = point + newton_step(point, target)[0]
    return point


def _halve_until_lower(
    objective: Callable[[Vectors], Float[Tensor, " members"]], point: Vectors, step: Vectors
) -> Float[Tensor, " members"]:
    """For each member the largest t of 1, ½, ¼ … whose objective is not higher, but for rounding."""
    value = objective(point)
    allowed = value + 8 * torch.finfo(value.dtype).eps * (1 + value.abs())
    size = torch.ones_like(value)
    for _ in range(60):
        lower = objective(point + size.unsqueeze(-1) * step) <= allowed
        if lower.all():
            break
        size = torch.where(lower, size, size / 2)
    return size


def _refuse(got: Coordinates) -> NoReturn:
    raise InvalidArgument(
        "no natural parameter was found that has this expectation",
        got=got,
        remedy="Check that μ is the mean of T(θ) under some member: a gamma, say, needs E[log θ] < log E[θ].",
    )


def _batch_shape(family: ExponentialFamily, point: Coordinates) -> tuple[int, ...]:
    name, value = point.items[0]
    return tuple(value.shape[: value.ndim - family.space.event_dims[name]])


def _event_shapes(family: ExponentialFamily, point: Coordinates) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape[value.ndim - family.space.event_dims[name] :]) for name, value in point.items}


def _to_vectors(family: ExponentialFamily, point: Coordinates) -> Vectors:
    members = math.prod(_batch_shape(family, point))
    events = _event_shapes(family, point)
    return torch.cat([value.reshape(members, math.prod(events[name])) for name, value in point.items], dim=-1)


def _from_vectors(family: ExponentialFamily, vectors: Tensor, like: Natural, batch_shape: tuple[int, ...]) -> Natural:
    events = _event_shapes(family, like)
    parts = vectors.split([math.prod(event) for event in events.values()], dim=-1)
    return Natural(
        **{name: part.reshape(batch_shape + event) for (name, event), part in zip(events.items(), parts, strict=True)}
    )

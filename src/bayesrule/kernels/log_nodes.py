"""``Σ log(U Vᵀ)`` of rank 2 and its gradient at the cost of a few columns: nothing of size m × n is made at all.

``log(u₁v₁ + u₂v₂) = log u₁ + log v₁ + f(a + b)`` with ``f = log(1 + eᶻ)``, ``a = log u₂/u₁``, ``b = log v₂/v₁``. The
singularities of f are those at ``±iπ``, so that on an interval of half-width R Chebyshev interpolation in b converges
like ``ρ⁻ᑫ``, ``ρ = π/R + √(1 + (π/R)²)``: a dozen nodes β serve all entries to the last digit,
``Σ_ij f(a_i + b_j) = Σ_q (Σ_i f(a_i + β_q)) (Σ_j ℓ_q(b_j))``.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import softplus

WIDEST = 6.0
"""Half of the interval's greatest width: on wider ones sums differ by more than a precision's digits can tell."""
FARTHEST = 80.0
"""Where ``1/(1 + e⁻ᶻ)`` is still a number in single precision."""
STEP = 4
"""Numbers of nodes are multiples of it, so that few tables are needed."""


def sum_log_by_nodes(left_logs: Tensor, right_logs: Tensor) -> tuple[float, Tensor, Tensor] | None:
    """The sum, and its gradients in log U and log V, for (m, 2) and (n, 2); None where there is no gain in it."""
    difference = _pair(-1.0, 1.0, left_logs.dtype)
    left, right = torch.mv(left_logs, difference), torch.mv(right_logs, difference)
    (left_low, left_high), (right_low, right_high) = (
        (low.item(), high.item()) for low, high in (torch.aminmax(left), torch.aminmax(right))
    )
    far = max(abs(left_low), abs(left_high)) + max(abs(right_low), abs(right_high))
    if not far < FARTHEST:
        return None
    if left_high - left_low < right_high - right_low:
        found = _interpolated(right, left, left_low, left_high)
        sums = None if found is None else (found[0], found[2], found[1])
    else:
        sums = _interpolated(left, right, right_low, right_high)
    if sums is None:
        return None
    total, of_left, of_right = sums
    fan_in, fan_out = left.shape[0], right.shape[0]
    total += fan_out * left_logs[:, 0].sum().item() + fan_in * right_logs[:, 0].sum().item()
    # What one column gains in share, the other loses.
    return (
        total,
        torch.addcmul(_pair(fan_out, 0.0, left.dtype), of_left.unsqueeze(1), difference),
        torch.addcmul(_pair(fan_in, 0.0, left.dtype), of_right.unsqueeze(1), difference),
    )


def _interpolated(whole: Tensor, narrow: Tensor, low: float, high: float) -> tuple[float, Tensor, Tensor] | None:
    """``Σ_ij f(a_i + b_j)`` and the gradients in a and b, by nodes for b, all of which lie between two numbers.

    Only f′ is found at all nodes; f is its integral from the first one on.
    """
    centre, half_width, dtype = (high + low) / 2, (high - low) / 2, narrow.dtype
    half_width += 8 * torch.finfo(dtype).eps * (1 + abs(centre))  # no rounding leads out of the interval
    count = _count(half_width, dtype)
    if half_width > WIDEST or count * (3 * whole.shape[0] + 2 * narrow.shape[0]) > whole.shape[0] * narrow.shape[0]:
        return None
    nodes, degrees, transform, integral = _tables(count, dtype)
    polynomials = torch.mul(degrees, narrow.sub(centre).div_(half_width).acos_()).cos_()
    summed = polynomials.sum(1)
    z = torch.add(whole.add(centre), nodes, alpha=half_width)
    slopes = z.sigmoid()
    sums = slopes.sum(1)
    total = half_width * torch.dot(integral @ sums, summed).item()
    total += narrow.shape[0] * softplus(z[0], threshold=FARTHEST).sum().item()
    return total, (summed @ transform) @ slopes, (transform @ sums) @ polynomials


def _count(half_width: float, dtype: torch.dtype) -> int:
    """How many nodes leave an error below the last digit, also of the smallest sums of slopes."""
    digits = math.log(16 * (1 + half_width) / torch.finfo(dtype).eps) + 2 * half_width
    return STEP * math.ceil(digits / math.asinh(math.pi / half_width) / STEP)


@lru_cache(maxsize=64)
def _tables(count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Chebyshev's nodes and the degrees of his polynomials, as columns, and what makes coefficients of values there.

    First the coefficients of the function, then those of its integral from the first node on, but for the last, which
    is as small as the error: ``2∫T_p = T_{p+1}/(p+1) − T_{p−1}/(p−1)``.
    """
    with torch.inference_mode(False), torch.no_grad():
        degrees = torch.arange(count, dtype=torch.float64, device="cpu").unsqueeze(1)
        angles = (degrees.mT + 0.5) * (math.pi / count)
        transform = (degrees * angles).cos_().mul_(2 / count)
        transform[0] /= 2
        integral = torch.zeros_like(transform)
        integral[1:] = transform[:-1]
        integral[1] *= 2
        integral[1:-1] -= transform[2:]
        integral[1:] /= 2 * degrees[1:]
        integral[0] = -((degrees * angles[0, 0]).cos().mT @ integral)
        return tuple(table.to(dtype) for table in (angles.mT.cos(), degrees, transform, integral))  # type: ignore[return-value]


@lru_cache(maxsize=64)
def _pair(first: float, second: float, dtype: torch.dtype) -> Tensor:
    with torch.inference_mode(False):
        return torch.tensor([first, second], dtype=dtype, device="cpu")

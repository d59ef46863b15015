"""What replicas are given: refused where they could not be trained on it, before anything is made of it."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from numbers import Integral, Real
from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch, check_tensors
from bayesrule.optim.rule import Rule
from bayesrule.train.replicas_network import Start

LARGEST = 20.0
"""Root mean square of a column that is not warned about."""
OF_EACH = "Of each replica's own tensors, give torch.stack."
Setting = float | Sequence[float] | Tensor
"""One number, or one for each replica."""


def check_kinds(x: object, y: object, rule: object, hidden: object, seeds: object, start: object) -> None:
    """Refuse what is of the wrong kind."""
    check_tensors({"x": x, "y": y}, OF_EACH)
    if not isinstance(rule, Rule):
        raise InvalidArgument(
            "rule is the algorithm of the replicas", got=repr(rule),
            remedy="Give a rule such as bayesrule.optim.NoisyKFACRule(), not its name or an optimizer.",
        )  # fmt: skip
    for name, value in (("hidden", hidden), ("seeds", seeds)):
        if not isinstance(value, Collection) or not all(isinstance(each, Integral) for each in value):
            raise InvalidArgument(
                f"{name} is a sequence of whole numbers", got=repr(value),
                remedy=f"Write {name}=({value},)." if isinstance(value, Integral) else "",
            )  # fmt: skip
    if isinstance(hidden, Collection) and any(width < 1 for width in hidden):
        raise InvalidArgument("Hidden layers have at least one unit", got=repr(hidden))
    if start not in get_args(Start):
        raise InvalidArgument(f"start is one of {', '.join(map(repr, get_args(Start)))}", got=repr(start))


def check_data(x: Tensor, y: Tensor, seeds: Collection[int]) -> None:
    """Refuse inputs and targets that do not fit together, or are not numbers to train on."""
    if x.ndim != 3 or y.ndim != 3 or x.shape[:2] != y.shape[:2] or len(seeds) != len(x):
        raise ShapeMismatch(
            "Inputs and targets are (replicas, rows, …), with a seed for each replica",
            got=f"{tuple(x.shape)}, {tuple(y.shape)} and {len(seeds)} seeds",
        )
    if not x.numel() or not y.numel():
        raise ShapeMismatch("There is nothing to train on", got=f"{tuple(x.shape)} and {tuple(y.shape)}")
    if x.dtype not in (torch.float32, torch.float64):
        raise InvalidArgument("x must be in single or double precision", got=x.dtype, remedy="Give x.float().")
    for name, value in (("x", x), ("y", y)):
        _check_finite(name, value)
        size = float(value.double().square().mean(1).sqrt().max())
        if size > LARGEST:
            warnings.warn(
                f"Replicas are made for standardised data, and {name} has a column of size {size:.3g}: weights would "
                "have to leave their prior far behind. Subtract means, and divide by standard deviations.",
                stacklevel=3,
            )


def _check_finite(name: str, value: Tensor) -> None:
    broken = (~value.isfinite()).flatten(1).sum(1)
    if bool(broken.any()):
        raise InvalidArgument(
            f"{name} must be finite", got=f"{int(broken.sum())} entries that are not, {_replicas(broken > 0)}",
            remedy="Leave out the rows with gaps, or fill them; a constant column standardised has no numbers.",
        )  # fmt: skip


def check_inputs(x: Any, replicas: int, features: int) -> None:
    """Refuse inputs for a prediction that are not each replica's own, or not finite."""
    check_tensors({"x": x}, OF_EACH)
    if x.ndim != 3 or len(x) != replicas or x.shape[2] != features:
        shared = x.shape[-1:] == (features,) and (x.ndim == 2 or (x.ndim == 3 and len(x) == 1))
        raise ShapeMismatch(
            f"Inputs are ({replicas}, rows, {features}): rows of its own for each replica", got=tuple(x.shape),
            remedy=f"For the same rows in all of them, give x.expand({replicas}, -1, -1)." if shared else "",
        )  # fmt: skip
    _check_finite("x", x)


def check_targets(y: Tensor, outputs: Tensor) -> None:
    """Refuse targets that would be broadcast against the predictions (draws, replicas, rows, targets)."""
    if y.shape != outputs.shape[1:]:
        raise ShapeMismatch(
            f"Targets are {tuple(outputs.shape[1:])}, as (replicas, rows, targets) of the predictions",
            got=tuple(y.shape),
        )


def noise_rate(value: Any) -> float:
    """Of the noise, where it is the weight of an average."""
    single = isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1)
    if not single or not 0 <= float(value) <= 1:
        raise InvalidArgument(
            "noise_lr, the weight of the newest batch in q(τ), lies in [0, 1]", got=repr(value),
            remedy="The default is 0.01; at 0 the noise stays at its prior.",
        )  # fmt: skip
    return float(value)


def gamma_numbers(noise_prior: Any, replicas: int) -> list[Tensor]:
    """Shapes and rates of the Gamma priors, each one number for each replica."""
    try:
        shape, rate = noise_prior
    except (TypeError, ValueError) as error:
        raise InvalidArgument(
            "noise_prior is a pair, the shape and the rate of a Gamma law", got=repr(noise_prior),
            remedy="The default is (1.0, 0.01).",
        ) from error  # fmt: skip
    return [
        numbers(f"The {name} of noise_prior", each, replicas, remedy="The default is (1.0, 0.01).")
        for name, each in (("shape", shape), ("rate", rate))
    ]


def numbers(
    name: str, value: Any, replicas: int, *, zero: bool = False, remedy: str = ""
) -> Float[Tensor, " replicas"]:
    """One number for each replica, in float64, from one or as many.

    Args:
        name: Of the setting.
        value: A number, a sequence of them, or a tensor.
        replicas: How many.
        zero: Whether it may be zero; it must be positive otherwise.
        remedy: What to give instead of a number that it cannot be.
    """
    expected = f"{name} is one number, or one for each of {replicas} replicas"
    try:
        found = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidArgument(expected, got=repr(value)) from error
    if found.ndim > 1 or found.numel() not in (1, replicas):
        got = f"shape {tuple(found.shape)}" if isinstance(value, Tensor) else repr(value)
        raise ShapeMismatch(expected, got=got)
    wrong = ~(found.isfinite() & ((found >= 0) if zero else (found > 0)))
    if bool(wrong.any()):
        single = found.numel() == 1
        raise InvalidArgument(
            f"{name} must be finite and {'not negative' if zero else 'positive'}",
            got=found.item() if single else f"{found[wrong][0].item()}, {_replicas(wrong)}", remedy=remedy,
        )  # fmt: skip
    return found.expand(replicas)


def _replicas(wrong: Tensor) -> str:
    """Where it is so, by number."""
    return f"in replicas {wrong.nonzero().flatten().tolist()}"

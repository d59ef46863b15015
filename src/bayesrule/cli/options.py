"""Recipes and sizes as they are written on a command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from bayesrule.data.names import nearest
from bayesrule.errors import InvalidArgument
from bayesrule.estimators import Auto, Estimator, Flipout, LocalReparam, Mean, WeightSample
from bayesrule.posteriors import Diagonal, Family, Full, KTied, MatrixNormal, MatrixNormalDiagonal
from bayesrule.priors import ARD, GroupARD, HeNormal, LearnedNormal, Normal, Prior

T = TypeVar("T")
INIT_STD = 0.02
"""Where the weights' standard deviations start, as in the default settings."""


@dataclass(frozen=True)
class Recipe(Generic[T]):
    """How one name becomes a recipe.

    Attributes:
        build: Without, or with, what stands after the colon.
        read: Reads that; None where nothing may stand there.
        form: How it is written, for a message.
    """

    build: Callable[..., T]
    read: Callable[[str], object] | None
    form: str


def _one_of(*words: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return read


POSTERIORS: Mapping[str, Recipe[Family]] = {
    "ktied": Recipe(lambda rank=2: KTied(rank, init_std=INIT_STD), int, "ktied:RANK"),
    "diagonal": Recipe(partial(Diagonal, init_std=INIT_STD), None, "diagonal"),
    "matrix-normal": Recipe(partial(MatrixNormal, init_std=INIT_STD), None, "matrix-normal"),
    "matrix-normal-diagonal": Recipe(
        lambda diagonal="kronecker": MatrixNormalDiagonal(diagonal, init_std=INIT_STD),
        _one_of("kronecker", "free"),
        "matrix-normal-diagonal[:kronecker|free]",
    ),
    "full": Recipe(partial(Full, init_std=INIT_STD), None, "full"),
}
PRIORS: Mapping[str, Recipe[Prior]] = {
    "group-ard": Recipe(GroupARD, _one_of("row", "column", "both"), "group-ard[:row|column|both]"),
    "ard": Recipe(ARD, None, "ard"),
    "learned": Recipe(LearnedNormal, None, "learned"),
    "he": Recipe(HeNormal, None, "he"),
    "normal": Recipe(Normal, float, "normal[:STD]"),
}
ESTIMATORS: Mapping[str, Recipe[Estimator]] = {
    "local": Recipe(LocalReparam, None, "local"),
    "weight": Recipe(WeightSample, None, "weight"),
    "flipout": Recipe(Flipout, None, "flipout"),
    "auto": Recipe(Auto, None, "auto"),
    "mean": Recipe(Mean, None, "mean"),
}


def forms(known: Mapping[str, Recipe[T]]) -> str:
    """How each is written."""
    return ", ".join(recipe.form for recipe in known.values())


def posterior(text: str) -> Family:
    """``ktied:2`` and the like.

    >>> posterior("ktied:3").rank
    3
    """
    return _parsed("posterior", text, POSTERIORS)


def prior(text: str) -> Prior:
    """``normal:0.5`` and the like."""
    return _parsed("prior", text, PRIORS)


def estimator(text: str, family: Family) -> Estimator:
    """``flipout`` and the like; refused where the posterior does not allow it.

    >>> estimator("weight", MatrixNormal())
    WeightSample()
    """
    found = _parsed("estimator", text, ESTIMATORS)
    if isinstance(found, Flipout) and not isinstance(family, KTied | Diagonal):
        raise InvalidArgument(
            "Flipout needs a posterior whose weights are independent", got=f"--estimator {text} with {family}",
            remedy="Use --estimator local or weight with it, or --posterior diagonal or ktied:2.",
        )  # fmt: skip
    return found


def _parsed(kind: str, text: str, known: Mapping[str, Recipe[T]]) -> T:
    name, colon, argument = text.strip().lower().partition(":")
    if name not in known:
        raise InvalidArgument(
            f"There is no {kind} {name!r}", got=f"--{kind} {text}",
            remedy=f"{nearest(name, known)}Known: {forms(known)}.",
        )  # fmt: skip
    recipe = known[name]
    if not colon:
        return recipe.build()
    try:
        if recipe.read is None:
            raise ValueError(argument)
        value = recipe.read(argument)
    except ValueError:
        raise InvalidArgument(
            f"The {kind} {name} cannot be read", got=f"--{kind} {text}", remedy=f"Write it as {recipe.form}."
        ) from None
    return recipe.build(value)


def widths(text: str) -> tuple[int, ...]:
    """Widths of hidden layers, ``64,64``.

    >>> widths("64, 32")
    (64, 32)
    """
    try:
        found = tuple(int(width) for width in text.split(","))
    except ValueError:
        found = ()
    if not found or min(found) < 1:
        raise InvalidArgument(
            "The widths of the hidden layers must be whole numbers from 1 on", got=f"--hidden {text}",
            remedy="Write them with commas between, as in --hidden 64,64.",
        )  # fmt: skip
    return found


def at_least(low: int, option: str, value: int | None) -> int | None:
    """The number, refused if it is too small."""
    if value is not None and value < low:
        raise InvalidArgument(f"{option} must be at least {low}", got=value, remedy=f"Write {option} {low} or more.")
    return value

"""Small data sets by name, as scikit-learn ships them: nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from bayesrule.data.names import nearest
from bayesrule.data.targets import Task
from bayesrule.errors import InvalidArgument, Unsupported


@dataclass(frozen=True)
class BuiltinSet:
    """A table and what is to be learned from it.

    Attributes:
        name: Of the set.
        frame: Features and target.
        target: The target's column.
        task: What it poses.
        image: Height and width, if the features are the pixels of an image, row by row.
    """

    name: str
    frame: pd.DataFrame
    target: str
    task: Task
    image: tuple[int, int] | None = None


BUILTIN: dict[str, Task] = {
    "digits": "classification",
    "diabetes": "regression",
    "breast-cancer": "classification",
    "wine": "classification",
}
"""Names and tasks; the first is what ``bayesrule fit`` takes when it is given no data."""


def builtin(name: str = "digits") -> BuiltinSet:
    """A set by its name."""
    if name not in BUILTIN:
        raise InvalidArgument(
            f"There is no built-in data set {name!r}", remedy=f"{nearest(name, BUILTIN)}Known: {', '.join(BUILTIN)}."
        )
    try:
        from sklearn import datasets
    except ImportError as error:
        raise Unsupported(
            "The built-in data sets are scikit-learn's", remedy="pip install 'bayesrule[tabular]'"
        ) from error
    # Diabetes as measured: scikit-learn's default has features scaled over all rows, the test rows included.
    options = {"scaled": False} if name == "diabetes" else {}
    stored = getattr(datasets, f"load_{name.replace('-', '_')}")(as_frame=True, **options)
    frame = stored.data
    if BUILTIN[name] == "classification":
        target = "digit" if name == "digits" else "class"
        frame = frame.assign(**{target: stored.target.map(lambda index: str(stored.target_names[index]))})
    else:
        target = "progression"
        frame = frame.assign(**{target: stored.target})
    return BuiltinSet(name, frame, target, BUILTIN[name], (8, 8) if name == "digits" else None)

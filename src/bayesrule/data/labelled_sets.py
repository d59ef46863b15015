"""Labelled sets by their names."""

from __future__ import annotations

import os
from collections.abc import Callable

from bayesrule.data.cifar import cifar10, cifar100
from bayesrule.data.imdb import imdb
from bayesrule.data.labelled import LabelledSet
from bayesrule.data.mnist import fashion_mnist, mnist
from bayesrule.data.names import nearest
from bayesrule.errors import InvalidArgument

LABELLED_SETS: dict[str, Callable[..., LabelledSet]] = {
    "mnist": mnist,
    "fashion-mnist": fashion_mnist,
    "cifar-10": cifar10,
    "cifar-100": cifar100,
    "imdb": imdb,
}
"""The function that loads a set, by the set's name; each takes ``data`` and ``verify``."""


def labelled_set(name: str, data: str | os.PathLike[str] | None = None, *, verify: bool = False) -> LabelledSet:
    """A set by its name.

    Args:
        name: One of `LABELLED_SETS`.
        data: The folder to look in first.
        verify: Whether to compare the files' checksums.
    """
    if name not in LABELLED_SETS:
        raise InvalidArgument(
            f"There is no data set {name!r}", remedy=f"{nearest(name, LABELLED_SETS)}Known: {', '.join(LABELLED_SETS)}."
        )
    return LABELLED_SETS[name](data, verify=verify)

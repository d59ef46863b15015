"""IMDB reviews as token numbers."""

from __future__ import annotations

import os
from collections.abc import Mapping

import numpy as np
import torch
from jaxtyping import Int64, Shaped
from torch import Tensor

from bayesrule.data.contents import AGAIN, BadData, read_arrays
from bayesrule.data.files import DataFile, locate
from bayesrule.data.labelled import LabelledSet
from bayesrule.errors import InvalidArgument

FILE = DataFile("imdb/imdb_tokens.npz", "f0d6a138a9ef92f3c41ea097904b058166b92bea0856465a42decad90bfd4604")
PAD, OOV = 0, 1
VOCABULARY = 20_000
SHUFFLE_SEED = 0
Array = Shaped[np.ndarray, " ..."]


def imdb(data: str | os.PathLike[str] | None = None, *, length: int = 80, verify: bool = False) -> LabelledSet:
    """25,000 training and 25,000 test reviews as (N, length) token numbers; class 1 is a positive review.

    A review is its *last* ``length`` tokens, padded on the left with 0. The stored reviews are sorted by class; either
    part is shuffled once, always in the same way: by ``numpy.random.RandomState(0).permutation``, the training part
    first. So a validation part of the last reviews has both classes.

    Args:
        data: The folder to look in first, for ``imdb/imdb_tokens.npz``.
        length: How many tokens.
        verify: Whether to compare the file's checksum.
    """
    if length < 1:
        raise InvalidArgument("A review must have a positive number of tokens", got=length)
    parts = [f"{part}_{field}" for part in ("train", "test") for field in ("tokens", "offsets", "labels")]
    arrays = read_arrays(locate(FILE, data), [*parts, "vocab"], FILE.sha256 if verify else "")
    # The stream of RandomState is frozen by numpy's policy: the validation reviews stay the same ones for ever.
    random = np.random.RandomState(SHUFFLE_SEED)
    train_x, train_y = _part("train", arrays, length, random)
    test_x, test_y = _part("test", arrays, length, random)
    return LabelledSet(train_x, train_y, test_x, test_y, 2, "imdb")


def _part(
    part: str, arrays: Mapping[str, Array], length: int, random: np.random.RandomState
) -> tuple[Int64[Tensor, "n length"], Int64[Tensor, " n"]]:
    tokens, offsets, labels = (arrays[f"{part}_{field}"] for field in ("tokens", "offsets", "labels"))
    _check(part, tokens, offsets, labels, len(arrays["vocab"]))
    order = random.permutation(len(labels))
    reviews = last_tokens(tokens, offsets.astype(np.int64), length)[order]
    return torch.from_numpy(reviews), torch.from_numpy(labels.astype(np.int64)[order])


def imdb_vocabulary(data: str | os.PathLike[str] | None = None) -> tuple[str, ...]:
    """The word of each token number; 0 is ``<pad>`` and 1 is ``<oov>``."""
    return tuple(str(word) for word in read_arrays(locate(FILE, data), ["vocab"])["vocab"])


def last_tokens(
    tokens: Shaped[np.ndarray, " total"], offsets: Int64[np.ndarray, " n_plus_1"], length: int
) -> Int64[np.ndarray, "n length"]:
    """The last tokens of each stretch ``tokens[offsets[i]:offsets[i + 1]]``, padded on the left."""
    places = offsets[1:, None] + np.arange(-length, 0)
    inside = places >= offsets[:-1, None]
    padded = np.append(tokens.astype(np.int64), PAD)  # something to point at where there is no token
    return np.where(inside, padded[np.where(inside, places, -1)], PAD)


def _check(part: str, tokens: Array, offsets: Array, labels: Array, words: int) -> None:
    faults = {
        "tokens, offsets and labels must be rows of whole numbers": any(
            array.ndim != 1 or array.dtype.kind not in "iu" for array in (tokens, offsets, labels)
        )
    }
    if not any(faults.values()):
        faults |= {
            "there must be one more offset than labels": len(offsets) != len(labels) + 1 or len(labels) == 0,
            "offsets must rise from 0 to the number of tokens": len(offsets) == 0
            or int(offsets[0]) != 0
            or int(offsets[-1]) != len(tokens)
            or bool((np.diff(offsets.astype(np.int64)) < 0).any()),
            f"tokens must be numbers of the {words} words": bool(((tokens < 0) | (tokens >= words)).any()),
        }
    for fault, found in faults.items():
        if found:
            raise BadData(
                f"The {part} part of {FILE.path} is damaged: {fault}",
                got=f"shapes {tokens.shape}, {offsets.shape} and {labels.shape} of tokens, offsets and labels",
                remedy=AGAIN,
            )

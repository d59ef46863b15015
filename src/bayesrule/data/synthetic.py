"""Stand-ins of the true shape for trials that must not need a download. What is learned from them says nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bayesrule.data.imdb import PAD, VOCABULARY
from bayesrule.data.labelled import LabelledSet, UnlabelledSet
from bayesrule.data.names import nearest
from bayesrule.errors import InvalidArgument
from bayesrule.random import keyed_generator


@dataclass(frozen=True)
class SetForm:
    """What a set's examples look like.

    Attributes:
        shape: Of one example.
        classes: How many there are.
    """

    shape: tuple[int, ...]
    classes: int


FORMS = {
    "mnist": SetForm((1, 28, 28), 10),
    "fashion-mnist": SetForm((1, 28, 28), 10),
    "cifar-10": SetForm((3, 32, 32), 10),
    "cifar-100": SetForm((3, 32, 32), 100),
    "imdb": SetForm((80,), 2),
}
"""By name; `labelled_set` loads the real ones."""

GRID = 4  # of the random brightnesses a class is known by
PATTERN = 0.6  # their share in an image; the rest is noise
CLASS_WORDS = 50
CLASS_SHARE = 0.2  # of the tokens of a review


def synthetic_like(name: str, train: int = 512, test: int = 256, seed: int = 0) -> LabelledSet:
    """A set of the shape, type and classes of a real one, which a network can learn.

    An image is a smooth random pattern of its class and noise; a review has random words, a fifth of them from those of
    its class, and a random length. Classes are equally frequent, in random order.

    Args:
        name: Of the real set.
        train: How many training examples.
        test: How many test examples.
        seed: Equal seeds give equal sets.
    """
    if name not in FORMS:
        raise InvalidArgument(
            f"There is no data set {name!r}", remedy=f"{nearest(name, FORMS)}Known: {', '.join(FORMS)}."
        )
    form, count = FORMS[name], _count(train=train, test=test)
    generator = keyed_generator(torch.device("cpu"), "synthetic", name, seed)
    y = torch.randperm(count, generator=generator) % form.classes
    if len(form.shape) == 1:
        x: Tensor = _reviews(y, form, generator)
    else:
        x = (_brightness(y, form, generator) * 255).to(torch.uint8)
    return LabelledSet(x[:train], y[:train], x[train:], y[train:], form.classes, name, synthetic=True)


def synthetic_binarized_mnist(train: int = 512, valid: int = 128, test: int = 256, seed: int = 0) -> UnlabelledSet:
    """A set in the form of `binarized_mnist`: pixels drawn by the brightness of ten smooth patterns."""
    count = _count(train=train, valid=valid, test=test)
    generator = keyed_generator(torch.device("cpu"), "synthetic", "binarized-mnist", seed)
    form = FORMS["mnist"]
    pattern = _patterns(form, generator)[torch.randint(form.classes, (count,), generator=generator)].flatten(1)
    # The square makes most pixels dark and some sure, as those of digits are.
    pixels = (torch.rand(pattern.shape, generator=generator, dtype=pattern.dtype) < pattern.square()).to(torch.uint8)
    parts = pixels.split([train, valid, test])
    return UnlabelledSet(parts[0], parts[1], parts[2], "binarized-mnist", synthetic=True)


def _count(**parts: int) -> int:
    if min(parts.values()) < 1:
        raise InvalidArgument("Each part of a synthetic set needs at least one example", got=parts)
    return sum(parts.values())


def _patterns(form: SetForm, generator: torch.Generator) -> Float[Tensor, "classes channels height width"]:
    channels, height, width = form.shape
    grid = torch.rand(form.classes, channels, GRID, GRID, generator=generator, dtype=torch.float32)
    return nn.functional.interpolate(grid, size=(height, width), mode="bilinear")


def _brightness(
    y: Int64[Tensor, " n"], form: SetForm, generator: torch.Generator
) -> Float[Tensor, "n channels height width"]:
    pattern = _patterns(form, generator)[y]
    noise = torch.rand(pattern.shape, generator=generator, dtype=torch.float32)
    return PATTERN * pattern + (1 - PATTERN) * noise


def _reviews(y: Int64[Tensor, " n"], form: SetForm, generator: torch.Generator) -> Int64[Tensor, "n length"]:
    shape = (len(y), *form.shape)
    first = 2  # after <pad> and <oov>
    # Frequencies fall as 1/rank, as those of words do: the logarithm of the number is uniform.
    spread = torch.rand(shape, generator=generator, dtype=torch.float64) * math.log(VOCABULARY / first)
    words = (first * spread.exp()).long().clamp(max=VOCABULARY - 1)
    of_class = first + CLASS_WORDS * (y[:, None] + 1) + torch.randint(CLASS_WORDS, shape, generator=generator)
    words = torch.where(torch.rand(shape, generator=generator) < CLASS_SHARE, of_class, words)
    lengths = torch.randint(form.shape[0] // 4, form.shape[0] + 1, (len(y), 1), generator=generator)
    return words.masked_fill(torch.arange(form.shape[0]) < form.shape[0] - lengths, PAD)

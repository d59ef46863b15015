"""Which units must stay."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool
from torch import Tensor

from bayesrule.prune.walk import Reader, Walk

Units = Bool[Tensor, " units"]


@dataclass(frozen=True)
class Merge:
    """Constant units of one set that its readers' biases cannot take: one of them can stand for all.

    Attributes:
        kept: The one that stays.
        units: All of them.
    """

    kept: int
    units: Units


@dataclass(frozen=True)
class Needs:
    """What must stay.

    Attributes:
        units: By set of units, those that must stay. The rest is read by nobody, or is a constant that its readers'
            biases or another unit's weights take.
        merges: By set of units, those that one stands for.
    """

    units: dict[int, Units]
    merges: dict[int, Merge] = field(default_factory=dict)


def needs_of(walk: Walk) -> Needs:
    """What must stay, with as many constants out of the way as can be."""
    first = _settled(walk, {})
    free = first.units.keys() - _held(walk)
    return _settled(walk, {space: merge for space in free if (merge := _merge(walk, first, space))})


def _held(walk: Walk) -> set[int]:
    """Sets of units of which every one must stay."""
    return {walk.spaces.find(space) for space in [*(pin.space for pin in walk.pins), *walk.open]}


def _settled(walk: Walk, merges: dict[int, Merge]) -> Needs:
    """To begin with, all stay. A unit goes when no reader has a weight from it to an output that stays, unless its
    constant can go into that reader's bias. That can leave other units without readers, and so on to the end. A group
    normalisation mixes the units of a group, so these go together.
    """  # noqa: D205, one thought
    find, sizes = walk.spaces.find, walk.spaces.sizes
    needs = Needs({find(space): torch.ones(sizes[space], dtype=torch.bool) for space in range(len(sizes))}, merges)
    changed = True
    while changed:
        changed = False
        for space in needs.units.keys() - _held(walk):
            stays = torch.zeros_like(needs.units[space])
            for reader in readers_of(walk, space):
                stays |= _read(walk, needs, reader) & ~reader.folds
            if merge := merges.get(space):
                wanted = bool((stays & merge.units).any())
                stays &= ~merge.units
                stays[merge.kept] = wanted
            stays = whole_groups(stays, groupings(walk, space))
            changed |= not torch.equal(stays, needs.units[space])
            needs.units[space] = stays
    return needs


def _merge(walk: Walk, needs: Needs, space: int) -> Merge | None:
    """The constants in a set of units that had to stay, if there are several and one can stand for them."""
    readers = readers_of(walk, space)
    if not readers or groupings(walk, space) or all(bool(reader.constant.isnan().all()) for reader in readers):
        return None
    units = needs.units[space].clone()
    for reader in readers:
        units &= ~_read(walk, needs, reader) | ~reader.constant.isnan()
    # A channel of zeros, or one that varies for a reader which does not read it, could stand for no other.
    strength = torch.full((len(units),), torch.inf, dtype=torch.float64)
    for reader in readers:
        if bool((units & ~reader.folds).any()):
            strength = torch.minimum(strength, reader.constant.abs().nan_to_num(0.0))
    strength[~units] = 0.0
    kept = int(strength.argmax())
    found = int(units.sum()) > 1 and 0 < float(strength[kept]) < torch.inf
    return Merge(kept, units) if found else None


def readers_of(walk: Walk, space: int) -> list[Reader]:
    """Who reads these units."""
    return [reader for reader in walk.readers.values() if walk.spaces.find(reader.space) == walk.spaces.find(space)]


def _read(walk: Walk, needs: Needs, reader: Reader) -> Units:
    outputs = needs.units[walk.spaces.find(walk.writers[reader.layer])]
    return reader.reads[outputs].any(0)


def groupings(walk: Walk, space: int) -> list[int]:
    """How many groups each normalisation makes of these units."""
    return [groups for other, groups in walk.grouped.values() if walk.spaces.find(other) == walk.spaces.find(space)]


def whole_groups(units: Units, groupings: list[int]) -> Units:
    """All units that share a group, of any of the normalisations, with one of these."""
    while True:
        wider = units
        for groups in groupings:
            size = len(units) // groups
            wider = wider.unflatten(0, (groups, size)).any(1).repeat_interleave(size)
        if torch.equal(wider, units):
            return units
        units = wider

"""Which units go, and how every layer is cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.prune.layers import kernels
from bayesrule.prune.needs import Needs, Units, groupings, needs_of, whole_groups
from bayesrule.prune.walk import Reader, Walk

Indices = tuple[int, ...]
Absorbed = tuple[int, Float[Tensor, "outputs positions"]]


@dataclass(frozen=True)
class Cut:
    """What is left of one layer, or of one that keeps numbers for units (a normalisation, an embedding).

    Attributes:
        layer: Its name.
        outputs: Units it keeps; None for all.
        inputs: Inputs it keeps; None for all.
        select: Likewise, where its input stays as it is: the layer then picks these from it.
        groups: Groups a group normalisation keeps.
        offset: What the inputs that were cut added to every output it keeps; None for nothing.
        blank: Whether none of its inputs is needed. Those of one unit are kept, since no layer has zero inputs, and
            their weights are zero.
        absorbed: A constant input that stands for others, and what that adds to its weights.
    """

    layer: str
    outputs: Indices | None = None
    inputs: Indices | None = None
    select: Indices | None = None
    groups: int | None = None
    offset: Float[Tensor, " outputs"] | None = None
    blank: bool = False
    absorbed: Absorbed | None = None

    @property
    def changes(self) -> bool:
        """Whether it does anything."""
        parts = (self.outputs, self.inputs, self.select, self.groups, self.offset)
        return self.blank or any(part is not None for part in parts)


def cuts(walk: Walk, *, select_inputs: bool) -> tuple[Cut, ...]:
    """How to cut every layer that changes."""
    needs = needs_of(walk)
    present = {space: _present(walk, space, units) for space, units in needs.units.items()}
    return tuple(cut for cut in _all_cuts(walk, needs, present, select_inputs) if cut.changes)


def _present(walk: Walk, space: int, units: Units) -> Units:
    """The units that must stay; if none must, one of them, or one group: no layer has zero outputs."""
    if bool(units.any()):
        return units
    one = torch.zeros_like(units)
    one[0] = True
    return whole_groups(one, groupings(walk, space))


def _all_cuts(walk: Walk, needs: Needs, present: dict[int, Units], select_inputs: bool) -> Iterator[Cut]:
    find, needed = walk.spaces.find, needs.units
    for name, space in walk.writers.items():
        outputs, kept = present[find(space)], _indices(present[find(space)])
        reader = walk.readers.get(name)
        if reader is None:
            yield Cut(name, kept)
        elif reader.space in walk.open:
            read = reader.reads[needed[find(space)]].any(0)
            read[0] |= not bool(read.any())
            yield Cut(name, kept, select=_indices(read) if select_inputs else None)
        else:
            inputs, wanted = present[find(reader.space)], needed[find(reader.space)]
            offset = reader.offset[outputs][:, ~wanted].sum(1)
            yield Cut(
                name,
                kept,
                _indices(inputs.repeat_interleave(reader.block)),
                offset=offset if bool(offset.any()) else None,
                blank=not bool(wanted.any()),
                absorbed=_absorbed(walk, needs, reader),
            )
    for name, space in walk.per_unit.items():
        yield Cut(name, _indices(present[find(space)]))
    for name, (space, groups) in walk.grouped.items():
        units = present[find(space)]
        left = int(units.sum()) * groups // len(units)
        yield Cut(name, _indices(units), groups=None if left == groups else left)


def _absorbed(walk: Walk, needs: Needs, reader: Reader) -> Absorbed | None:
    """``Σ_k (c_k / c_kept) W_k`` over the constant inputs that another one stands for and its bias cannot take."""
    merge = needs.merges.get(walk.spaces.find(reader.space))
    if merge is None or not needs.units[walk.spaces.find(reader.space)][merge.kept]:
        return None
    others = merge.units & ~reader.folds & ~reader.constant.isnan()
    others[merge.kept] = False
    if not bool(others.any()):
        return None
    ratios = reader.constant[others] / reader.constant[merge.kept]
    return merge.kept, torch.einsum("oip,i->op", kernels(walk.net.get_submodule(reader.layer))[:, others], ratios)


def _indices(mask: Units) -> Indices | None:
    return None if bool(mask.all()) else tuple(mask.nonzero()[:, 0].tolist())

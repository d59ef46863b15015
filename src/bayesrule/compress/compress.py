"""The verb: a new model with low-rank standard deviations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from bayesrule.compress.compression import CompressedWeight, Compression
from bayesrule.compress.floor import safe_floor, truncated
from bayesrule.compress.ranks import Ranks, plan_layers
from bayesrule.compress.weights import Weight, matrix_weights
from bayesrule.errors import InvalidArgument, conversion_remedy, need_whole
from bayesrule.posteriors import ClippedLowRank, ClippedLowRankCovariance
from bayesrule.typing import Recastable


@torch.no_grad()
def compress(
    bnn: Recastable, rank: Ranks | None = None, *, explained: float | None = None, floor: float | None = None
) -> Any:
    """A new model whose standard deviations have low rank; the one given stays as it is   [k-tied Normal, Table 2].

    Every weight's fan-in × fan-out matrix S of standard deviations (a convolution's is ``(c_in·kh·kw) × c_out``) is
    replaced by ``max(S_k, floor)``, where ``S_k`` is its best rank-k approximation, the truncated singular value
    decomposition. Means stay, and so do biases, weights too small for rank k to save anything, and k-tied ones of
    rank k or less. The result can be trained further, saved and loaded; its ``conversion`` shows the new family, its
    ``compression`` what was done: ranks, numbers, explained variance, entries touched by the floor, KL.

    Args:
        bnn: A model from `bayesianize` whose weights have independent entries (diagonal, k-tied).
        rank: k for every weight, or by the name of its layer (other layers are kept).
        explained: In place of a rank, the fraction of ``Σ S²`` to keep: each layer gets the smallest rank that keeps it
            in all its weights, or stays as it is where that rank would save no numbers.
        floor: The smallest standard deviation. By default each layer's is the smallest that it has, which is the
            largest floor that never adds to the error; at rank 1, where none is needed, it touches nothing.

    Example:
        >>> from torch import nn
        >>> import bayesrule as br
        >>> bnn = br.bayesianize(nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)), br.Diagonal())
        >>> lean = compress(bnn, rank=2)
        >>> [(row.name, row.rank, row.numbers_before, row.numbers_after) for row in lean.compression]
        [('0.weight', 2, 4096, 2240), ('2.weight', 2, 640, 404)]
    """
    if isinstance(bnn, torch.optim.Optimizer):
        raise InvalidArgument(
            "br.compress takes a converted model, not an optimizer that holds a posterior", got=type(bnn).__name__,
            remedy="Use KTiedVON, whose standard deviations have low rank while it trains.",
        )  # fmt: skip
    if not isinstance(bnn, Recastable):
        raise InvalidArgument(
            "Only a converted model can be compressed", got=type(bnn).__name__,
            remedy=conversion_remedy(bnn, Recastable),
        )  # fmt: skip
    need_whole(bnn, "br.compress")
    if floor is not None:
        ClippedLowRank(floor=floor)  # refuses what is no floor
    weights, layers = matrix_weights(bnn.posteriors()), bnn.layers()
    by_layer: dict[str, list[Weight]] = {}
    for name, weight in weights.items():
        by_layer.setdefault(layers[name], []).append(weight)
    plans = plan_layers(by_layer, rank, explained)
    families: dict[str, ClippedLowRank] = {}
    parameters: dict[str, dict[str, Tensor]] = {}
    for layer, plan in plans.items():
        if changing := [weight for weight in by_layer[layer] if weight.name not in plan.kept]:
            lowest = safe_floor(changing, plan.rank) if floor is None else floor
            families[layer] = ClippedLowRank(plan.rank, lowest)
            parameters |= {weight.name: _factors(weight, plan.rank) for weight in changing}
    notes = {name: _note(weights[name], families[layers[name]].rank) for name in parameters}
    lean = bnn.recast(families, parameters, notes)
    kept = {name: why for plan in plans.values() for name, why in plan.kept.items()}
    lean.compression = _report(bnn, lean, weights, kept)
    return lean


def _factors(weight: Weight, rank: int) -> dict[str, Tensor]:
    found = truncated(weight, rank)
    factors = {"fan_in_factor": found.fan_in_factor, "fan_out_factor": found.fan_out_factor}
    return {key: factor.to(weight.dtype) for key, factor in factors.items()}


def _note(weight: Weight, rank: int) -> str:
    return f"compressed: {100 * weight.explained_by(rank):.3f} % explained"


def _report(
    before: Recastable, after: Recastable, weights: Mapping[str, Weight], kept: Mapping[str, str]
) -> Compression:
    posteriors = after.posteriors()
    kl_before, kl_after = ({name: float(kl) for name, kl in model.kls().items()} for model in (before, after))
    rows = []
    for name, weight in weights.items():
        row = CompressedWeight(
            name=name,
            shape=tuple(weight.std.shape),
            numbers_before=before.conversion[name].numbers,
            numbers_after=after.conversion[name].numbers,
            kl_before=kl_before[name],
            kl_after=kl_after[name],
            note=kept.get(name, ""),
        )
        rows.append(row if name in kept else _with_truncation(row, weight, posteriors[name].covariance))
    return Compression(
        tuple(rows),
        numbers_before=before.conversion.numbers,
        numbers_after=after.conversion.numbers,
        kl_before=sum(kl_before.values()),
        kl_after=sum(kl_after.values()),
    )


def _with_truncation(row: CompressedWeight, weight: Weight, covariance: ClippedLowRankCovariance) -> CompressedWeight:
    rank = covariance.fan_in_factor.shape[-1]
    return replace(
        row,
        rank=rank,
        explained=weight.explained_by(rank),
        floor=covariance.floor,
        touched=int(covariance.clipped),
        nonpositive=int((covariance.unclipped <= 0).sum()),
    )

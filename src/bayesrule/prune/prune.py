"""The verb: a plain network without the weights that are noise."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from bayesrule.errors import InvalidArgument, Unsupported, conversion_remedy, need_whole
from bayesrule.linalg import MatrixView
from bayesrule.prune.cutting import apply
from bayesrule.prune.masks import PrunableWeight, choose, prunable_weights
from bayesrule.prune.measuring import Evaluate, cpu_seconds, evaluating, measures, multiply_adds, stored_bytes
from bayesrule.prune.plan import Cut
from bayesrule.prune.pruning import Cost, PrunedWeight, Pruning
from bayesrule.prune.sparse import sparse_bytes
from bayesrule.prune.structure import plan_cuts
from bayesrule.prune.tracing import WEIGHTS_REMEDY, first_line
from bayesrule.typing import Prunable

STRUCTURES = ("units", "auto", "weights")


@torch.no_grad()
def prune(
    bnn: object,
    threshold: float | None = None,
    *,
    target_sparsity: float | None = None,
    structure: str = "units",
    example: Tensor | tuple[Any, ...] | None = None,
    evaluate: Evaluate | None = None,
    select_inputs: bool = True,
) -> nn.Module:
    """A new, plain and smaller network; the model given stays as it is   [Rudnev & Kropotov, Sec. 3.1].

    A weight with mean M and marginal variance s is dropped (becomes zero) when ``log(s/M²) > threshold``; the others
    keep their means. A unit (a feature, a channel) that nothing reads any more is cut from the layer that writes it,
    and one that has become constant goes into the biases of its readers, through normalisations, depthwise
    convolutions, activations, pools, flattenings and residual sums. The result is in evaluation mode, where it equals
    the masked network. Its ``pruning`` is the table of what was done, with the masks.

    Args:
        bnn: A model from `bayesianize`.
        threshold: Of ``log(s/M²)``; 3 by default.
        target_sparsity: In place of a threshold, the share of all weights that is to be dropped, the noisiest first.
        structure: ``"units"`` cuts units, and refuses networks that hold a layer for which that is not possible, by
            name; ``"auto"`` leaves such layers whole, with a note in the table; ``"weights"`` cuts nothing: the
            network keeps its shapes, and `sparse_state` leaves out the zeros.
        example: A batch of inputs, or the tuple of all arguments: for the multiply-adds and the time in the table, for
            networks whose shapes do not follow from their layers, and to check the result once more.
        evaluate: Batches of inputs and targets (for the likelihood given at conversion), or a function from a network
            to named measures: then the table has these for both networks. The function gets copies in evaluation mode.
        select_inputs: Let first layers pick the inputs they still read; otherwise their other columns stay, as zeros.

    Example:
        >>> from torch import nn
        >>> import bayesrule as br
        >>> _ = torch.manual_seed(0)
        >>> net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        >>> bnn = br.bayesianize(net, br.Diagonal(init_std=0.01))
        >>> bnn.homes()["2.weight"].mean.data[:, 2:] *= 1e-4  # of eight hidden units, two are used
        >>> prune(bnn)
        Sequential(
          (0): Linear(in_features=6, out_features=2, bias=True)
          (1): ReLU()
          (2): Linear(in_features=2, out_features=3, bias=True)
        )
    """
    if not isinstance(bnn, Prunable):
        raise InvalidArgument(
            "Only a converted model can be pruned", got=type(bnn).__name__, remedy=conversion_remedy(bnn, Prunable)
        )
    need_whole(bnn, "br.prune")
    if structure not in STRUCTURES:
        raise InvalidArgument(f"structure must be one of {', '.join(STRUCTURES)}", got=repr(structure))
    weights = prunable_weights(bnn.posteriors())
    choice = choose(weights, threshold, target_sparsity)
    mean, net = bnn.plain().eval(), bnn.plain().eval()
    owners = {name: net.get_submodule(name.rpartition(".")[0]) for name in choice.masks}
    for name, mask in choice.masks.items():
        net.get_parameter(name).mul_(mask.to(net.get_parameter(name).device))
    inputs = example if example is None or isinstance(example, tuple) else (example,)
    if inputs is not None:
        _check_runs(mean, inputs)
    cuts: tuple[Cut, ...] = ()
    notes: dict[str, str] = {}
    if structure != "weights":
        strict = structure == "units"
        cuts, notes = plan_cuts(net, choice.masks, inputs, strict=strict, select_inputs=select_inputs)
    masked = None if inputs is None else copy.deepcopy(net)
    apply(net, cuts)
    if masked is not None and inputs is not None:
        _check_same(masked, net, inputs)
    rows = tuple(_row(weight, choice.masks[weight.name], mean, owners[weight.name], notes) for weight in weights)
    before, after = _costs([mean, net], rows, inputs, evaluate, bnn.default_likelihood())
    net.pruning = Pruning(rows, choice.threshold, structure, before, after, choice.masks, cuts)
    return net


def _check_runs(net: nn.Module, inputs: tuple[Any, ...]) -> None:
    """That the network takes the example: before anything else fails on it, deep inside."""
    try:
        with evaluating(net):
            net(*inputs)
    except Exception as error:  # whatever the network's own code raises
        shapes = [f"shape {tuple(each.shape)}" if isinstance(each, Tensor) else type(each).__name__ for each in inputs]
        raise InvalidArgument(
            f"The network does not run on the example: {first_line(error)}",
            got=f"an example of {', '.join(shapes)}",
            remedy="Give a batch of inputs as its forward takes them, or the tuple of all its arguments.",
        ) from error


def _check_same(masked: nn.Module, cut: nn.Module, inputs: tuple[Any, ...]) -> None:
    """That the example gives the same outputs: a safeguard for what a network does beyond its graph."""
    with evaluating(masked), evaluating(cut):
        want, got = masked(*inputs), cut(*inputs)
    if not isinstance(want, Tensor):
        return
    tolerance = 100 * torch.finfo(want.dtype).eps * (1 + float(want.abs().max()))
    if want.shape != got.shape or not bool(torch.isclose(want, got, rtol=0, atol=tolerance, equal_nan=True).all()):
        raise Unsupported(
            "This network cannot be pruned structurally: cut, it gives other outputs than masked, so it does something "
            "that its graph does not show (hooks, or state that changes between calls)",
            got=f"a difference of {float((want - got).abs().max()):.2g}" if want.shape == got.shape else "other shapes",
            remedy=WEIGHTS_REMEDY,
        )


def _row(
    weight: PrunableWeight, mask: Tensor, mean: nn.Module, owner: nn.Module, notes: dict[str, str]
) -> PrunedWeight:
    layer, _, local = weight.name.rpartition(".")
    left = owner.get_parameter(local)
    groups = owner.groups if weight.view.groups > 1 and isinstance(owner, _ConvNd) else weight.view.groups
    after = MatrixView(tuple(left.shape), weight.view.fan_out_axis, groups)
    matrix = weight.view.matrix(mask)
    return PrunedWeight(
        weight.name,
        (weight.view.fan_in, weight.view.fan_out),
        mask.numel(),
        int(mask.sum()),
        int(matrix.any(1).sum()),
        int(matrix.any(0).sum()),
        (after.fan_in, after.fan_out),
        mask.numel() - int(mean.get_parameter(weight.name).count_nonzero()),
        int(left.count_nonzero()),
        notes.get(layer, ""),
    )


def _costs(
    modules: list[nn.Module],
    rows: tuple[PrunedWeight, ...],
    inputs: tuple[Any, ...] | None,
    evaluate: Evaluate | None,
    likelihood: Any,
) -> list[Cost]:
    entries = [sum(row.weights for row in rows), sum(row.shape_after[0] * row.shape_after[1] for row in rows)]
    nonzero = [sum(row.weights - row.zeros_before for row in rows), sum(row.nonzero_after for row in rows)]
    counted = [None if inputs is None else multiply_adds(module, inputs) for module in modules]
    timed = [None, None] if inputs is None else cpu_seconds(modules, inputs)
    batch = None if inputs is None else len(inputs[0])
    measured: list[Any] = [{}, {}] if evaluate is None else measures(modules, evaluate, likelihood)
    numbers = zip(modules, entries, nonzero, counted, timed, measured, strict=True)
    return [
        Cost(weights, filled, stored_bytes(module), sparse_bytes(module), adds, time, batch, values)
        for module, weights, filled, adds, time, values in numbers
    ]

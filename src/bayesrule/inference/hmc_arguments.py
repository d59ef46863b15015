"""What `hmc` is given: refused where it cannot be sampled, before anything is."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

from torch import Tensor, nn

from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported, check_tensors
from bayesrule.likelihoods import Gaussian, GaussianGammaNoise, Likelihood

ACTIVATIONS: dict[type[nn.Module], str] = {
    nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.SiLU: "silu", nn.Softplus: "softplus",
}  # fmt: skip
"""Activations, all without options, and their names in `jax.nn`."""


def layers_of(net: nn.Module) -> list[tuple[str, nn.Module]]:
    """With the prefixes of their parameters' names."""
    return [("", net)] if isinstance(net, nn.Linear) else [(f"{name}.", layer) for name, layer in net.named_children()]


def check_problem(net: nn.Module, x: Any, y: Any, likelihood: Likelihood) -> None:
    """Refuse networks and likelihoods that have no form in JAX here, and data that do not fit them."""
    kinds = [type(layer) for _, layer in layers_of(net)]
    unknown = [kind.__name__ for kind in kinds if kind not in {nn.Linear, *ACTIVATIONS}]
    if not isinstance(net, nn.Linear | nn.Sequential) or unknown or nn.Linear not in kinds:
        raise Unsupported(
            "HMC takes an nn.Linear, or an nn.Sequential of linear layers and plain activations",
            got=unknown or type(net).__name__,
            remedy=f"Activations: {', '.join(kind.__name__ for kind in ACTIVATIONS)}.",
        )
    if not isinstance(likelihood, Gaussian | GaussianGammaNoise):
        raise Unsupported(
            "HMC is for regressions here", got=type(likelihood).__name__, remedy="Use GaussianGammaNoise."
        )
    _check_data(x, y)
    _check_widths(net, x, y)
    stds = likelihood.noise_std.numel()
    if stds not in (1, y.shape[1]):
        raise ShapeMismatch(
            "The noise has one standard deviation, or one for each target",
            got=f"{stds} of them, and targets of shape {tuple(y.shape)}",
        )


def check_chains(chains: Any, warmup: Any, draws: Any, target_acceptance: Any, max_tree_depth: Any) -> None:
    """Refuse chains that are too few or too short to be compared, and steps that cannot be adapted."""
    whole = {"chains": chains, "warmup": warmup, "draws": draws, "max_tree_depth": max_tree_depth}
    for name, value in whole.items():
        if not isinstance(value, Integral):
            raise InvalidArgument(f"{name} is a whole number", got=repr(value))
    if chains < 2 or draws < 4:
        raise InvalidArgument(
            "R-hat needs two chains of four draws at least", got=f"chains={chains}, draws={draws}, warmup={warmup}"
        )
    if warmup < 1:
        raise InvalidArgument(
            "Step size and metric are adapted in the warm-up, which chains cannot go without", got=f"warmup={warmup}",
            remedy="Give some hundreds; the default is 1000.",
        )  # fmt: skip
    if max_tree_depth < 1:
        raise InvalidArgument("max_tree_depth is at least 1", got=max_tree_depth, remedy="The default is 10.")
    if not isinstance(target_acceptance, Real) or not 0 < float(target_acceptance) < 1:
        raise InvalidArgument(
            "target_acceptance is a probability between 0 and 1", got=repr(target_acceptance),
            remedy="The default is 0.8.",
        )  # fmt: skip


def _check_data(x: Any, y: Any) -> None:
    check_tensors({"x": x, "y": y})
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y) or not len(x):
        raise ShapeMismatch(
            "Inputs and targets are (rows, …), of the same rows", got=f"{tuple(x.shape)} and {tuple(y.shape)}",
            remedy="Make a vector a column: y.unsqueeze(-1)." if y.ndim == 1 else "",
        )  # fmt: skip
    for name, value in (("x", x), ("y", y)):
        broken = (~value.isfinite()).any(1).nonzero().flatten().tolist()
        if broken:
            raise InvalidArgument(
                f"{name} must be finite", got=f"{len(broken)} rows that are not, the first at {broken[:5]}",
                remedy="Leave those rows out of x and y, or fill the gaps.",
            )  # fmt: skip


def _check_widths(net: nn.Module, x: Tensor, y: Tensor) -> None:
    """Layer by layer, as outputs of another width than the targets' would be broadcast against them."""
    width, before = x.shape[1], f"x of shape {tuple(x.shape)}"
    for prefix, layer in layers_of(net):
        if not isinstance(layer, nn.Linear):
            continue
        if layer.in_features != width:
            raise ShapeMismatch(
                f"The linear layer {prefix.removesuffix('.') or 'of the network'} takes {layer.in_features} inputs",
                got=f"{width}, from {before}", remedy=f"Give it in_features={width}, or other inputs.",
            )  # fmt: skip
        width, before = layer.out_features, f"the layer {prefix.removesuffix('.')}"
    if width != y.shape[1]:
        raise ShapeMismatch(
            "The network has an output for each target",
            got=f"outputs of shape {(len(x), width)} and targets of shape {tuple(y.shape)}",
            remedy=f"Give the last layer out_features={y.shape[1]}.",
        )

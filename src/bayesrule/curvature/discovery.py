"""Which parameters of a network can be tapped, and why the others cannot."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from bayesrule.contractions import Conv, Linear
from bayesrule.curvature.fused import FUSED, fused_layers
from bayesrule.curvature.layers import Layer
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.posteriors import Part


@dataclass(frozen=True)
class Found:
    """What `find_layers` found.

    Attributes:
        layers: In the order in which the network registers their modules.
        others: The remaining trainable parameters, each with the reason; ``frozen`` ones are not among them.
        frozen: Parameters that do not ask for a gradient.
    """

    layers: tuple[Layer, ...]
    others: dict[str, str]
    frozen: tuple[str, ...]


def find_layers(model: nn.Module, plain: Collection[str] = (), *, tapped: bool = True, fused: bool = False) -> Found:
    """Every Linear and Conv2d of a network that is called as a module, with the trainable ones of its parameters.

    Weights that several such modules share become one layer, whose uses count as positions. Where only the weight is
    shared, each bias is a layer of its own (of the constant input one).

    Args:
        model: The network.
        plain: Names of modules or parameters to leave out.
        tapped: Whether the layers will be tapped, which a convolution with groups cannot be.
        fused: Whether to find the matrices of recurrent and attention modules too, which no tap sees.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    _check_names(model, plain, names)
    owners = _owners(model)
    reasons: dict[int, str] = {}
    modules: dict[str, nn.Linear | nn.Conv2d] = {}
    for path, module in model.named_modules():
        found = [parameter for parameter in module._parameters.values() if parameter is not None]
        reason = _reason(path, module, plain, fused)
        if reason is None and isinstance(module, nn.Linear | nn.Conv2d):
            if tapped and any(each.requires_grad and not _listed(names[id(each)], plain) for each in found):
                _refuse_groups(path, module)
            modules[path] = module
        for parameter in found:
            named = names[id(parameter)]
            if reason is None and _listed(named, plain):
                reasons[id(parameter)] = "listed in plain"
            elif reason is not None:
                shared = len(owners[id(parameter)]) > 1 and isinstance(module, nn.Embedding)
                reasons[id(parameter)] = f"tied to {path}: {reason}" if shared else reason
    layers = _layers(modules, names, reasons)
    if fused:

        def name_if_usable(parameter: nn.Parameter) -> str | None:
            if not parameter.requires_grad or id(parameter) in reasons:
                return None
            if len(owners[id(parameter)]) > 1:
                reasons[id(parameter)] = "of several recurrent or attention layers"
                return None
            return names[id(parameter)]

        order = list(names.values())
        everything = (*layers, *fused_layers(model, name_if_usable))
        layers = tuple(sorted(everything, key=lambda layer: order.index(layer.name)))
    held = {part.name for layer in layers for part in layer.parts}
    trainable = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    others = {name: reasons.get(id(p), "not a layer's weight or bias") for name, p in trainable.items()}
    frozen = tuple(name for name, parameter in model.named_parameters() if not parameter.requires_grad)
    return Found(layers, {name: reason for name, reason in others.items() if name not in held}, frozen)


def _layers(
    modules: dict[str, nn.Linear | nn.Conv2d], names: dict[int, str], reasons: dict[int, str]
) -> tuple[Layer, ...]:
    """One layer for each set of parameters that are used together."""

    def usable(parameter: nn.Parameter | None) -> bool:
        return parameter is not None and parameter.requires_grad and id(parameter) not in reasons

    weights, biases = ({path: m._parameters.get(key) for path, m in modules.items()} for key in ("weight", "bias"))
    using: dict[int, list[str]] = {}
    for path, weight in weights.items():
        using.setdefault(id(weight), []).append(path)
    bias_users: dict[int, list[str]] = {}
    for path, bias in biases.items():
        if usable(bias):
            bias_users.setdefault(id(bias), []).append(path)
    layers: dict[tuple[str, ...], Layer] = {}
    for path, module in modules.items():
        weight, bias = weights[path], biases[path]
        paths, together = using[id(weight)], usable(bias) and bias_users[id(bias)] == using[id(weight)]
        contraction = Linear.of(module) if isinstance(module, nn.Linear) else Conv.of(module)
        parts = []
        if weight is not None and usable(weight):
            _check_alike(paths, modules)
            parts.append(Part(names[id(weight)], contraction.view))
            if bias is not None and together:
                parts.append(Part(names[id(bias)], tuple(bias.shape)))
            layers[tuple(part.name for part in parts)] = Layer(tuple(paths), tuple(parts), contraction)
        if bias is not None and usable(bias) and len(parts) < 2:
            alone = Part(names[id(bias)], tuple(bias.shape))
            layers[(alone.name,)] = Layer(tuple(bias_users[id(bias)]), (alone,), contraction)
    return tuple(layers.values())


def _check_alike(paths: list[str], modules: dict[str, nn.Linear | nn.Conv2d]) -> None:
    kinds = {Linear.of(m) if isinstance(m, nn.Linear) else Conv.of(m) for m in (modules[path] for path in paths)}
    if len(kinds) > 1:
        raise Unsupported(
            "Layers that share a weight must have the same stride, padding and dilation", got=paths,
            remedy="Name them in plain=(…), to train them by a plain rule.",
        )  # fmt: skip


def _reason(path: str, module: nn.Module, plain: Collection[str], fused: bool) -> str | None:
    """Why this module's own parameters cannot be tapped, or are not wanted; None where they can, and are."""
    if _listed(path, plain):
        return "listed in plain"
    if isinstance(module, NonDynamicallyQuantizableLinear) and not fused:
        return "read by nn.MultiheadAttention, never called"
    known = isinstance(module, nn.Linear | nn.Conv2d) or (fused and isinstance(module, FUSED))
    return None if known else f"of a {type(module).__name__}"


def _refuse_groups(path: str, module: nn.Linear | nn.Conv2d) -> None:
    if isinstance(module, nn.Conv2d) and module.groups > 1:
        raise Unsupported(
            f"The convolution {path!r} has groups, whose outputs share no inputs: a layer's curvature is found here "
            "from inputs that all its outputs see",
            got=f"groups={module.groups}",
            remedy=f"Name it in plain=({path!r},), to train it by a plain rule; or use an optimizer that takes its "
            "curvature from gradients alone, as IVON does.",
        )


def _listed(name: str, plain: Collection[str]) -> bool:
    return any(name == each or name.startswith(f"{each}.") for each in plain)


def _owners(model: nn.Module) -> dict[int, list[nn.Module]]:
    owners: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                owners.setdefault(id(parameter), []).append(module)
    return owners


def _check_names(model: nn.Module, plain: Collection[str], names: dict[int, str]) -> None:
    if isinstance(plain, str):
        raise InvalidArgument("plain is a collection of names", got=repr(plain), remedy=f"Write plain=({plain!r},).")
    known = {*names.values(), *(name for name, _ in model.named_modules())}
    unknown = [name for name in plain if name not in known]
    if unknown:
        raise InvalidArgument("plain names modules or parameters of the network", got=unknown)

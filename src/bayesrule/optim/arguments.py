"""What an optimizer is given: refused where it is of the wrong kind, before anything is made of it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn

from bayesrule.curvature import Layer
from bayesrule.data.names import nearest
from bayesrule.errors import InvalidArgument
from bayesrule.likelihoods import Likelihood
from bayesrule.priors import Prior


def check_network(kind: type, model: object) -> None:
    """Refuse what has no layers: parameters above all, which torch's optimizers take."""
    if not isinstance(model, nn.Module):
        raise InvalidArgument(
            f"{kind.__name__} takes a network, whose layers it looks at", got=type(model).__name__,
            remedy=f"Give the network itself, not its parameters: {kind.__name__}(net, n_data=…).",
        )  # fmt: skip


def check_laws(prior: object, likelihood: object) -> None:
    """Refuse numbers, names and classes in place of a prior or a likelihood."""
    if not isinstance(prior, Prior):
        raise InvalidArgument(
            "prior is a prior over weights", got=_shown(prior), remedy="Give br.Normal(1.0), br.LearnedNormal(), …."
        )
    if likelihood is not None and not isinstance(likelihood, Likelihood):
        raise InvalidArgument(
            "likelihood is what the network's outputs mean", got=_shown(likelihood),
            remedy="Give br.Categorical(), br.Gaussian(std), …, or None.",
        )  # fmt: skip


def check_numbers(n_data: object, lr: object, plain_lr: object, kl_weight: object, noise_lr: object = 0.0) -> None:
    """Refuse sizes and step sizes that are none."""
    if not isinstance(n_data, int) or isinstance(n_data, bool) or n_data < 1:
        raise InvalidArgument(
            "n_data is the number of training examples, a whole number", got=repr(n_data),
            remedy="Give len(train_dataset), not the number of batches.",
        )  # fmt: skip
    for name, value in (("lr", lr), ("plain_lr", plain_lr), ("noise_lr", noise_lr)):
        check_step_size(name, value)
    if not isinstance(kl_weight, Real | Tensor) or not float(kl_weight) > 0:
        raise InvalidArgument("kl_weight, the weight λ of the KL, must be positive", got=repr(kl_weight))


def check_step_size(name: str, value: object) -> None:
    """Refuse what is no step size; 0 is one."""
    if not isinstance(value, Real | Tensor) or not float(value) >= 0:
        raise InvalidArgument(f"{name} is a number, and must not be negative", got=repr(value))


def check_seed(seed: object) -> None:
    """Refuse what is no seed."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral)):
        raise InvalidArgument(
            "seed is a whole number", got=repr(seed), remedy="Leave it out for one from torch's own generator."
        )


def check_trainable(drawn: Mapping[str, nn.Parameter]) -> None:
    """Refuse to train on where some of the parameters with a posterior, but not all of them, were frozen meanwhile."""
    frozen = [name for name, parameter in drawn.items() if not parameter.requires_grad]
    if frozen and len(frozen) < len(drawn) and torch.is_grad_enabled():
        more = f" and {len(frozen) - 4} more" if len(frozen) > 4 else ""
        raise InvalidArgument(
            "Parameters that have a posterior were frozen after the optimizer was made: they would go on being drawn, "
            "and their posterior would learn nothing", got=f"requires_grad=False of {', '.join(frozen[:4])}{more}",
            remedy="Freeze them before the optimizer is made: they are then constants. Or name them in plain=(…), "
            "to have no posterior; or leave them trainable. To evaluate only, use torch.no_grad().",
        )  # fmt: skip


def warn_of_biases(kind: type, base: type, model: nn.Module, layers: Collection[Layer], plain: Collection[str]) -> None:
    """Say so where a weight is named in ``plain`` and its bias, which then has a posterior alone, is not.

    Args:
        kind: The optimizer.
        base: Whose constructor asks.
        model: The network.
        layers: Those with a posterior.
        plain: The user's.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for layer in layers:
        weights = {path: names.get(id(model.get_submodule(path)._parameters.get("weight"))) for path in layer.modules}
        named = {path: weight for path, weight in weights.items() if weight in plain}
        if named:
            (path, weight), bias = next(iter(named.items())), layer.name
            warnings.warn(
                f"{weight!r} is in plain, but {bias!r} of the same layer is not, and has a posterior of its own. To "
                f"train both without one, put {bias!r} there too, or {path!r} for the whole layer.",
                stacklevel=3 + constructors_above(kind, base),
            )


def constructors_above(kind: type, base: type) -> int:
    """How many constructors lie between the user and a base's, which a warning's ``stacklevel`` must skip."""
    return sum("__init__" in vars(each) for each in kind.__mro__[: kind.__mro__.index(base)])


def check_known(kind: type, unknown: Collection[str], left_out: Collection[str]) -> None:
    """Refuse options that an optimizer has not, naming the nearest it has."""
    if not unknown:
        return
    known = [name for name in known_options(kind) if name not in left_out]
    meant = "".join(nearest(name, known) for name in unknown)
    raise InvalidArgument(
        f"{kind.__name__} has no such option", got=", ".join(unknown),
        remedy=f"{meant}Its options are {', '.join(known)}.",
    )  # fmt: skip


def known_options(kind: type) -> list[str]:
    """The keywords that constructors hand on to each other, the most special first."""
    names: dict[str, None] = {}
    for each in kind.__mro__:
        if "__init__" not in vars(each):
            continue
        parameters = inspect.signature(each.__init__).parameters.values()  # type: ignore[misc]
        keywords = [each.name for each in parameters if each.kind is inspect.Parameter.KEYWORD_ONLY]
        names |= dict.fromkeys(keywords)
        if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters) or "capturable" in keywords:
            break
    names.pop("rule_options", None)  # by which constructors speak to each other
    return list(names)


def _shown(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else repr(value)

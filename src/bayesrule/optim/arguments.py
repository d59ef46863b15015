"""What an optimizer is given: refused where it is of the wrong kind, before anything is made of it."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from numbers import Integral, Real
from typing import Any

from torch import Tensor, nn

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
    if not isinstance(n_data, int) or n_data < 1:
        raise InvalidArgument(
            "n_data is the number of training examples, a whole number", got=repr(n_data),
            remedy="Give len(train_dataset), not the number of batches.",
        )  # fmt: skip
    for name, value in (("lr", lr), ("plain_lr", plain_lr), ("noise_lr", noise_lr)):
        if not isinstance(value, Real | Tensor) or not float(value) >= 0:
            raise InvalidArgument(f"{name} is a number, and must not be negative", got=repr(value))
    if not isinstance(kl_weight, Real | Tensor) or not float(kl_weight) > 0:
        raise InvalidArgument("kl_weight, the weight λ of the KL, must be positive", got=repr(kl_weight))


def check_seed(seed: object) -> None:
    """Refuse what is no seed."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, Integral)):
        raise InvalidArgument(
            "seed is a whole number", got=repr(seed), remedy="Leave it out for one from torch's own generator."
        )


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

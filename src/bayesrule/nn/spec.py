"""Recipes as JSON: families, priors, estimators and likelihoods by their public names and arguments."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

import bayesrule.estimators
import bayesrule.likelihoods
import bayesrule.posteriors
import bayesrule.priors
from bayesrule.errors import BayesruleError, InvalidArgument, Unsupported
from bayesrule.estimators import Estimator
from bayesrule.likelihoods import Likelihood
from bayesrule.posteriors import Family
from bayesrule.priors import Prior

KINDS: dict[str, tuple[Any, type]] = {
    "posterior": (bayesrule.posteriors, Family),
    "prior": (bayesrule.priors, Prior),
    "estimator": (bayesrule.estimators, Estimator),
    "likelihood": (bayesrule.likelihoods, Likelihood),
}
"""Where the public names of each kind live, and what they must be."""


def to_spec(thing: Any) -> dict[str, Any]:
    """A recipe (a frozen dataclass) or likelihood as plain data."""
    kinds = [kind for kind, (_, base) in KINDS.items() if isinstance(thing, base)]
    name = type(thing).__name__
    if not kinds or _public(kinds[0]).get(name) is not type(thing):  # it could not be found again
        raise Unsupported(
            f"{name} cannot be saved: it is not of bayesrule", got=type(thing).__module__,
            remedy="Save the model's state_dict, or add the class to bayesrule.",
        )  # fmt: skip
    if isinstance(thing, Likelihood):
        arguments = thing.arguments()
    else:
        arguments = {field.name: getattr(thing, field.name) for field in fields(thing)}
    return {"name": name, **{key: _plain(value) for key, value in arguments.items()}}


def from_spec(kind: str, spec: Any) -> Any:
    """The inverse of `to_spec`; only public names of the right kind are looked up."""
    name = spec.get("name") if isinstance(spec, dict) else None
    found = _public(kind).get(name) if isinstance(name, str) else None
    if found is None:
        raise InvalidArgument(f"Not a {kind} of this version of bayesrule", got=repr(name))
    try:
        return found(**{key: _value(value) for key, value in spec.items() if key != "name"})
    except BayesruleError:
        raise
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:
        raise InvalidArgument(f"{name} does not take these arguments", got=spec) from error


def _public(kind: str) -> dict[str, Any]:
    """The classes of a kind, by their public names."""
    module, base = KINDS[kind]
    public = {name: getattr(module, name) for name in module.__all__}
    return {name: found for name, found in public.items() if isinstance(found, type) and issubclass(found, base)}


def _plain(value: Any) -> Any:
    """As JSON has it: numbers exactly, tensors with their dtype."""
    if isinstance(value, Tensor):
        return {"tensor": value.detach().tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
    return value.item() if isinstance(value, np.generic) else value


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return torch.tensor(value["tensor"], dtype=getattr(torch, value["dtype"]))
    return value

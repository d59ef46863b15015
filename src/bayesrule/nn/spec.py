"""Recipes as JSON: families, priors, estimators and likelihoods by their public names and arguments."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor

import bayesrule.estimators
import bayesrule.likelihoods
import bayesrule.posteriors
import bayesrule.priors
from bayesrule.errors import InvalidArgument, Unsupported
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
    if isinstance(thing, Likelihood):
        arguments = thing.arguments()
    elif is_dataclass(thing):
        arguments = {field.name: getattr(thing, field.name) for field in fields(thing)}
    else:
        raise Unsupported(f"{type(thing).__name__} cannot be saved", remedy="Make it a frozen dataclass.")
    return {"name": type(thing).__name__, **{key: _plain(value) for key, value in arguments.items()}}


def from_spec(kind: str, spec: Any) -> Any:
    """The inverse of `to_spec`; only public names of the right kind are looked up."""
    module, base = KINDS[kind]
    name = spec.get("name") if isinstance(spec, dict) else None
    known = {public: getattr(module, public) for public in module.__all__}
    found = known.get(name) if isinstance(name, str) else None
    if not (isinstance(found, type) and issubclass(found, base)):
        raise InvalidArgument(f"Not a {kind} of this version of bayesrule", got=repr(name))
    try:
        return found(**{key: _value(value) for key, value in spec.items() if key != "name"})
    except TypeError as error:
        raise InvalidArgument(f"{name} does not take these arguments", got=spec) from error


def _plain(value: Any) -> Any:
    return {"tensor": value.detach().tolist()} if isinstance(value, Tensor) else value


def _value(value: Any) -> Any:
    return torch.tensor(value["tensor"]) if isinstance(value, dict) and set(value) == {"tensor"} else value

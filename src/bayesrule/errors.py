"""Errors that say what was wrong, what was got, and what to do."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from itertools import islice

from torch import Tensor, nn


class BayesruleError(Exception):
    """Base of every error the library raises on purpose.

    The message has three parts: ``what`` was wrong, what was ``got``, and the ``remedy``.
    """

    def __init__(self, what: str, *, got: object = None, remedy: str = "") -> None:
        self.what, self.got, self.remedy = what, got, remedy
        parts = [what.rstrip(".") + "."]
        if got is not None:
            parts.append(f"Got: {got}.")
        if remedy:
            parts.append(remedy)
        super().__init__(" ".join(parts))


class InvalidArgument(BayesruleError, ValueError):  # noqa: N818, the base says it is an error
    """A value the caller gave cannot be used."""


class ShapeMismatch(InvalidArgument):
    """A tensor's shape does not fit the others."""


class Unsupported(BayesruleError, NotImplementedError):  # noqa: N818, likewise
    """A structure has no (cheap) form of the operation asked for; the remedy names one that does."""


def check_names(given: Iterable[str], known: Collection[str], what: str) -> None:
    """Refuse names that there are not.

    Args:
        given: The names.
        known: All that there are.
        what: They name.
    """
    unknown = sorted(set(given).difference(known))
    if unknown:
        some = ", ".join(islice(known, 8)) + (", …" if len(known) > 8 else "")
        raise InvalidArgument(f"There is no such {what}", got=", ".join(unknown), remedy=f"There are {some}.")


def check_tensors(values: Mapping[str, object], hint: str = "") -> None:
    """Refuse arrays, lists and tuples in place of tensors, by name.

    Args:
        values: What was given, by the names of the arguments.
        hint: Added to the remedy.
    """
    for name, value in values.items():
        if not isinstance(value, Tensor):
            raise InvalidArgument(
                f"{name} must be one tensor", got=type(value).__name__,
                remedy=f"Give torch.as_tensor({name}). {hint}".rstrip(),
            )  # fmt: skip


def conversion_remedy(model: object, wanted: type) -> str:
    """What to do with a model that is not converted: take the converted one inside it, or convert it.

    Args:
        model: A network; torch's wrappers (DDP, `DataParallel`, `AveragedModel`) have a converted one inside.
        wanted: The class, or protocol, of the converted models that will do.
    """
    parts = model.named_modules() if isinstance(model, nn.Module) else ()
    inside = next((name for name, part in parts if isinstance(part, wanted)), None)
    if inside is None:
        return "Use br.bayesianize on the network first."
    path = ".".join(part for part in inside.split(".") if part != "_orig_mod")  # what a compiled model was made of
    return f"Give its .{path}, the converted model inside."


def need_whole(model: object, verb: str) -> None:
    """Refuse a model of which every process has a part."""
    sharding = sys.modules.get("torch.distributed.tensor")  # slow to import, and needed for there to be any part
    parameters = model.named_parameters() if isinstance(model, nn.Module) else ()
    parts = [name for name, each in parameters if sharding is not None and isinstance(each, sharding.DTensor)]
    if parts:
        raise Unsupported(
            f"{verb} needs whole tensors, and of this model every process has a part", got=f"{parts[0]} in parts",
            remedy="Load br.distributed.whole_state_dict(bnn), which all processes must call, into a converted model "
            "that is not sharded, and give that one.",
        )  # fmt: skip

"""Any model folder read, whatever wrote it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, overload

from torch import nn

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.nn import BayesianModule
from bayesrule.nn.model_folder import kind_of
from bayesrule.nn.saving import load as load_into

if TYPE_CHECKING:
    from bayesrule.train.tabular_model import TabularModel


@overload
def load(folder: str | os.PathLike[str], into: nn.Module) -> BayesianModule: ...
@overload
def load(folder: str | os.PathLike[str], into: None = None) -> TabularModel: ...
def load(folder: str | os.PathLike[str], into: nn.Module | None = None) -> BayesianModule | TabularModel:
    """Read a model saved by `save`, or by a fit to a table; torch's generators stay as they are.

    Args:
        folder: Where from.
        into: A plain network of the architecture that was converted, left as it is. A model of a table needs none.
    """
    if kind_of(Path(folder)) == "module":
        if into is None:
            raise InvalidArgument(
                f"The model in {folder} was made of a network that only its author can build",
                remedy="Give one of the same architecture: br.load(folder, into=network).",
            )
        return load_into(folder, into)
    if into is not None:
        raise InvalidArgument(
            f"The model in {folder} was fitted to a table, and brings its networks with it",
            got=f"into={type(into).__name__}", remedy="Leave it out: br.load(folder).",
        )  # fmt: skip
    try:
        from bayesrule.train.tabular_model import TabularModel
    except ModuleNotFoundError as error:
        raise Unsupported(
            f"A model of a table needs the package {error.name}", remedy="pip install 'bayesrule[tabular]'"
        ) from error
    return TabularModel.load(folder)

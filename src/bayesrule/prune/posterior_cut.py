"""The posterior of some rows and columns of a weight, as parameters of the same family."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Int
from torch import Tensor

from bayesrule.errors import Unsupported
from bayesrule.linalg import log_diagonal_cholesky
from bayesrule.posteriors import Posterior


def marginal_parameters(
    posterior: Posterior,
    parameters: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    rows: Int[Tensor, " rows"],
    columns: Int[Tensor, " columns"],
) -> dict[str, Tensor]:
    """A family's tensors besides the mean, such that the smaller posterior is the marginal of the larger.

    Factors of rows and of columns lose theirs; of a Cholesky factor L the product ``(LLᵀ)`` does, and is factored anew.

    Args:
        posterior: The larger posterior, over a fan-in × fan-out matrix or a vector (one row).
        parameters: Its family's tensors.
        wanted: Those to fill, by name: of the same family, or standard deviations, where it is too small for that.
        rows: Of the matrix, to keep.
        columns: Likewise; of a vector, the entries.
    """
    return {
        name: _piece(name, parameters[name], posterior, rows, columns)
        if name in parameters
        else _stddev(name, posterior)[rows][:, columns].log()
        for name in wanted
    }


def _stddev(name: str, posterior: Posterior) -> Tensor:
    if name != "log_std":
        raise Unsupported(f"A {posterior.structure} posterior cannot be cut", got=name)
    return posterior.stddev


def _piece(name: str, tensor: Tensor, posterior: Posterior, rows: Tensor, columns: Tensor) -> Tensor:
    side = rows if name.startswith("fan_in_") else columns
    if name.startswith(("fan_in_", "fan_out_")):
        return _submatrix(tensor, side) if name.endswith("log_cholesky") else tensor[side]
    if name == "log_cholesky":  # over all entries, row by row
        return _submatrix(tensor, (rows[:, None] * posterior.event_shape[-1] + columns).flatten())
    if name != "log_std":
        raise Unsupported(f"A {posterior.structure} posterior cannot be cut", got=name)
    return tensor[columns] if tensor.ndim == 1 else tensor[rows][:, columns]


def _submatrix(raw: Tensor, kept: Tensor) -> Tensor:
    """The unconstrained matrix of ``chol((LLᵀ)[kept, kept])``, in double precision on the way."""
    rows = log_diagonal_cholesky(raw.double())[kept]
    factor = torch.linalg.cholesky(rows @ rows.mT)
    scale = factor.diagonal()
    return ((factor / scale[:, None]).tril(-1) + scale.log().diag()).to(raw.dtype)

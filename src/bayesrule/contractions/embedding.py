"""Embedding: rows of the weight, chosen by index."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrule.contractions.contraction import Contraction, refuse_batched_weight
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.linalg import MatrixView


@dataclass(frozen=True)
class Embedding(Contraction):
    """`nn.Embedding`: the contraction of a one-hot input, so noise is needed only for the rows used."""

    picks_rows = True
    view: MatrixView
    padding_idx: int | None = None

    @classmethod
    def of(cls, module: nn.Embedding) -> Embedding:
        """The contraction of a module."""
        if module.max_norm is not None:
            raise Unsupported(
                "An embedding with max_norm rescales its rows, so it is not linear in its weight",
                got=f"max_norm={module.max_norm}",
                remedy="Use an embedding without max_norm, or leave this one as it is.",
            )
        return cls(MatrixView(tuple(module.weight.shape), fan_out_axis=1), module.padding_idx)

    @property
    def channel_dim(self) -> int:
        """Features are last."""
        return -1

    def __call__(self, x: Tensor, matrix: Tensor) -> Tensor:
        """``W[x]``."""
        return self.widen(x, matrix)

    def square(self, x: Tensor) -> Tensor:
        """The index itself: a one-hot vector is its own square."""
        return x

    def widen(self, x: Tensor, matrix: Tensor) -> Tensor:
        """``M[x]``."""
        _need_indices(x)
        refuse_batched_weight(matrix, "Embedding")
        return F.embedding(x, matrix, self.padding_idx)

    def used_rows(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The distinct indices."""
        _need_indices(x)
        distinct, positions = x.unique(return_inverse=True)
        return distinct, positions

    def settle(self, x: Tensor, output: Tensor, mean: Tensor) -> Tensor:
        """Padding stays what it is, and gets no gradient."""
        if self.padding_idx is None:
            return output
        fixed = mean.detach()[..., self.padding_idx, :]
        return torch.where((x == self.padding_idx).unsqueeze(-1), fixed[..., *(None,) * x.ndim, :], output)

    def rows(self, x: Tensor) -> int:
        """One for each index."""
        return x.numel()

    def sign_shape(self, x: Tensor) -> None:
        """An index has no sign; the output's signs decorrelate the examples."""


def _need_indices(x: Tensor) -> None:
    if x.is_floating_point():
        raise InvalidArgument("An embedding takes integer indices", got=f"dtype {x.dtype}")

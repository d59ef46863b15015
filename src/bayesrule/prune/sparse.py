"""Zeros left out: tensors as compressed sparse rows, where that takes fewer bytes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from bayesrule.errors import InvalidArgument


@dataclass(frozen=True, repr=False)
class SparseTensor:
    """A tensor, seen as a matrix with its first dimension as rows, without its zeros.

    Attributes:
        shape: Of the tensor.
        starts: Where each row's entries begin, and where the last row's end.
        columns: Of each entry that is not zero; in 16 bits where they suffice.
        values: Of each entry.
    """

    shape: tuple[int, ...]
    starts: Int[Tensor, " rows_and_one"]
    columns: Int[Tensor, " entries"]
    values: Float[Tensor, " entries"]

    @classmethod
    def of(cls, tensor: Tensor) -> SparseTensor:
        """The tensor without its zeros."""
        matrix = tensor.detach().cpu().flatten(1)
        rows, columns = matrix.nonzero(as_tuple=True)
        starts = torch.zeros(len(matrix) + 1, dtype=torch.int32)
        starts[1:] = torch.bincount(rows, minlength=len(matrix)).cumsum(0)
        narrow = torch.int16 if matrix.shape[1] <= torch.iinfo(torch.int16).max + 1 else torch.int32
        return cls(tuple(tensor.shape), starts, columns.to(narrow), matrix[rows, columns])

    def __repr__(self) -> str:
        entries = f"{len(self.values):,} of {math.prod(self.shape):,} entries"
        return f"SparseTensor(shape={self.shape}, {entries}, {self.nbytes:,} bytes)"

    @property
    def nbytes(self) -> int:
        """Of the three tensors."""
        return self.starts.nbytes + self.columns.nbytes + self.values.nbytes

    def dense(self) -> Tensor:
        """With its zeros."""
        counts = self.starts.long().diff()
        matrix = self.values.new_zeros(self.shape).flatten(1)
        inside = len(self.starts) == len(matrix) + 1 and bool((counts >= 0).all()) and self.starts[0] == 0
        entries = len(self.columns)
        counted = int(self.starts[-1]) == entries == len(self.values)
        if not inside or not counted or not self._columns_fit(matrix):
            raise InvalidArgument("The entries of a sparse tensor lie outside it", got=f"shape {self.shape}")
        rows = torch.arange(len(matrix)).repeat_interleave(counts)
        matrix[rows, self.columns.long()] = self.values
        return matrix.reshape(self.shape)

    def csr(self) -> Tensor:
        """As torch's sparse matrix; torch wants its indices in 32 bits or more.

        Always two-dimensional: a convolution's (outputs, inputs, height, width) becomes outputs by all the rest.
        """
        size = (self.shape[0], self.values.new_empty(self.shape).flatten(1).shape[1])
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(
                self.starts, self.columns.int(), self.values, size=size, check_invariants=True
            )

    def _columns_fit(self, matrix: Tensor) -> bool:
        return not len(self.columns) or (int(self.columns.min()) >= 0 and int(self.columns.max()) < matrix.shape[1])


def sparse_state(module: nn.Module) -> dict[str, Tensor | SparseTensor]:
    """The state of a module; weights as `SparseTensor` wherever that takes fewer bytes than all their entries."""
    return {name: _smaller(tensor) for name, tensor in module.state_dict().items()}


def sparse_bytes(module: nn.Module) -> int:
    """Of its parameters and buffers as `sparse_state` has them, tied ones once."""
    return sum(_smaller(tensor).nbytes for tensor in [*module.parameters(), *module.buffers()])


def dense_state(state: Mapping[str, Tensor | SparseTensor]) -> dict[str, Tensor]:
    """The inverse of `sparse_state`: what `load_state_dict` takes."""
    return {name: tensor.dense() if isinstance(tensor, SparseTensor) else tensor for name, tensor in state.items()}


def _smaller(tensor: Tensor) -> Tensor | SparseTensor:
    if tensor.ndim < 2 or not tensor.is_floating_point():
        return tensor.detach().cpu()
    sparse = SparseTensor.of(tensor)
    return sparse if sparse.nbytes < tensor.nbytes else tensor.detach().cpu()

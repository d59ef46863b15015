"""The dense matrix of every known operator, written out with numpy and apart from the operators' own code."""

from __future__ import annotations

from functools import singledispatch
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from bayesrule.posteriors import (
    BlockTridiagonalCovariance,
    ClippedLowRankCovariance,
    CovarianceOperator,
    DiagonalCovariance,
    EigenKroneckerCovariance,
    FullCovariance,
    KTiedCovariance,
    MatrixNormalCovariance,
    MatrixNormalFreeDiagonalCovariance,
    MatrixNormalKroneckerDiagonalCovariance,
    RestrictedCovariance,
)


def array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().numpy()


def root_matrix(operator: CovarianceOperator) -> np.ndarray:
    """R, column by column, from unit noises."""
    units = torch.eye(operator.noise_shape.numel(), dtype=torch.float64).reshape(-1, *operator.noise_shape)
    return array(torch.stack([operator.sqrt_matmul(unit).flatten() for unit in units], dim=-1))


@singledispatch
def dense(operator: CovarianceOperator) -> np.ndarray:
    """Of an operator that this page does not know: its root, squared."""
    root = root_matrix(operator)
    return root @ root.T


@dense.register
def _(operator: DiagonalCovariance) -> np.ndarray:
    return np.diag(array(operator.std).ravel() ** 2)


@dense.register
def _(operator: KTiedCovariance) -> np.ndarray:
    std = np.einsum("ia,ja->ij", array(operator.fan_in_factor), array(operator.fan_out_factor))
    return np.diag(std.ravel() ** 2)


@dense.register
def _(operator: ClippedLowRankCovariance) -> np.ndarray:
    std = np.einsum("ia,ja->ij", array(operator.fan_in_factor), array(operator.fan_out_factor))
    return np.diag(np.where(std > operator.floor, std, operator.floor).ravel() ** 2)


@dense.register
def _(operator: MatrixNormalCovariance) -> np.ndarray:
    fan_in, fan_out = array(operator.fan_in_cholesky), array(operator.fan_out_cholesky)
    return np.kron(fan_in @ fan_in.T, fan_out @ fan_out.T)


@dense.register
def _(operator: MatrixNormalFreeDiagonalCovariance) -> np.ndarray:
    return dense(operator.kronecker) + dense(operator.free)


@dense.register
def _(operator: MatrixNormalKroneckerDiagonalCovariance) -> np.ndarray:
    scales = operator.diagonal_factors
    fan_in, fan_out = array(scales.fan_in_factor)[:, 0] ** 2, array(scales.fan_out_factor)[:, 0] ** 2
    return dense(operator.kronecker) + np.kron(np.diag(fan_in), np.diag(fan_out))


@dense.register
def _(operator: EigenKroneckerCovariance) -> np.ndarray:
    basis = np.kron(array(operator.fan_in_basis), array(operator.fan_out_basis))
    return basis @ np.diag(array(operator.spectrum).ravel()) @ basis.T


@dense.register
def _(operator: FullCovariance) -> np.ndarray:
    root = array(operator.cholesky)
    return root @ root.T


@dense.register
def _(operator: RestrictedCovariance) -> np.ndarray:
    entries = np.arange(operator.whole.event_shape.numel()).reshape(operator.whole.event_shape)
    kept = entries[operator.start : operator.start + operator.length].ravel()
    return dense(operator.whole)[np.ix_(kept, kept)]


@dense.register
def _(operator: BlockTridiagonalCovariance) -> np.ndarray:
    ends = np.cumsum([0, *(block.spectrum.numel() for block in operator.conditionals)])
    xi, blocks = np.eye(ends[-1]), np.zeros((ends[-1], ends[-1]))
    spans = [slice(start, end) for start, end in pairwise(ends)]
    for span, block in zip(spans, operator.conditionals, strict=True):
        blocks[span, span] = dense(block)
    for index, (fan_in, fan_out) in enumerate(operator.couplings):
        xi[spans[index], spans[index + 1]] = -np.kron(array(fan_in), array(fan_out))
    return xi.T @ blocks @ xi

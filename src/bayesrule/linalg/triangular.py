"""Lower-triangular factors from unconstrained matrices."""

from __future__ import annotations

import torch
from torch import Tensor


def log_diagonal_cholesky(raw: Tensor) -> Tensor:
    """A lower-triangular factor: the strictly lower part of ``raw``, and ``exp`` of its diagonal."""
    return raw.tril(-1) + torch.diag_embed(raw.diagonal(dim1=-2, dim2=-1).exp())


def scaled_identity_log_cholesky(size: int, scale: float, like: Tensor) -> Tensor:
    """The unconstrained matrix whose `log_diagonal_cholesky` is ``scale · I``."""
    log_scale = torch.log(torch.as_tensor(scale, dtype=like.dtype, device=like.device))
    return log_scale * torch.eye(size, dtype=like.dtype, device=like.device)


def triangular_logdet(factor: Tensor) -> Tensor:
    """``log det L`` of a triangular factor with positive diagonal."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

"""Lower-triangular factors from unconstrained matrices."""

from __future__ import annotations

import torch
from torch import Tensor


def log_diagonal_cholesky(raw: Tensor) -> Tensor:
    """A lower-triangular factor ``D (I + N)``: D is ``exp`` of the diagonal of ``raw``, N its strictly lower part.

    In units of D a step of an optimizer means the same whatever the scale; absolute entries would drown a small D.
    """
    scale = raw.diagonal(dim1=-2, dim2=-1).exp().unsqueeze(-1)
    return scale * (raw.tril(-1) + torch.eye(raw.shape[-1], dtype=raw.dtype, device=raw.device))


def scaled_identity_log_cholesky(size: int, scale: float, like: Tensor) -> Tensor:
    """The unconstrained matrix whose `log_diagonal_cholesky` is ``scale · I``."""
    log_scale = torch.log(torch.as_tensor(scale, dtype=like.dtype, device=like.device))
    return log_scale * torch.eye(size, dtype=like.dtype, device=like.device)


def triangular_logdet(factor: Tensor) -> Tensor:
    """``log det L`` of a triangular factor with positive diagonal."""
    return factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

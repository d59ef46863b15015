"""Small linear-algebra leaves."""

from bayesrule.linalg.matrix_view import MatrixView
from bayesrule.linalg.reductions import bilinear_sum, broadcast_sum, event_dims, joint_norm, safe_sqrt, sum_of_squares
from bayesrule.linalg.triangular import (
    log_diagonal_cholesky,
    scaled_identity_log_cholesky,
    triangular_logdet,
    triangular_moments,
)

__all__ = [
    "MatrixView",
    "bilinear_sum",
    "broadcast_sum",
    "event_dims",
    "joint_norm",
    "log_diagonal_cholesky",
    "safe_sqrt",
    "scaled_identity_log_cholesky",
    "sum_of_squares",
    "triangular_logdet",
    "triangular_moments",
]

"""Fused or chunked numerical code, each behind a plain signature."""

from bayesrule.kernels.diagonal_layer import diagonal_output
from bayesrule.kernels.divergence import (
    diagonal_divergence,
    has_fused_divergence,
    is_compiled_on_cpu,
    ktied_divergence,
    linked_diagonal_divergence,
    linked_ktied_divergence,
)
from bayesrule.kernels.draw_operator import drawn_by_operator
from bayesrule.kernels.eager import untransformed
from bayesrule.kernels.fast_noise import FastNoise
from bayesrule.kernels.joint import Joint, Piece, diagonal_piece, ktied_piece
from bayesrule.kernels.joint_divergence import JointDivergence, Term
from bayesrule.kernels.joint_draw import DrawnKL, JointDraw
from bayesrule.kernels.ktied_layer import ktied_output
from bayesrule.kernels.ktied_weight import ktied_weight
from bayesrule.kernels.linear_operator import Bias, BiasLaw
from bayesrule.kernels.linked_kl import LinkedKL, sum_linked
from bayesrule.kernels.operators import fresh_noise_seed
from bayesrule.kernels.pairs import pair_products
from bayesrule.kernels.scaled_noise import scaled_normals
from bayesrule.kernels.seeded import seeded_dtype
from bayesrule.kernels.sum_log_product import sum_log_product
from bayesrule.kernels.tap import ParameterTap, StoredParameters

__all__ = [
    "Bias",
    "BiasLaw",
    "DrawnKL",
    "FastNoise",
    "Joint",
    "JointDivergence",
    "JointDraw",
    "LinkedKL",
    "ParameterTap",
    "Piece",
    "StoredParameters",
    "Term",
    "diagonal_divergence",
    "diagonal_output",
    "diagonal_piece",
    "drawn_by_operator",
    "fresh_noise_seed",
    "has_fused_divergence",
    "is_compiled_on_cpu",
    "ktied_divergence",
    "ktied_output",
    "ktied_piece",
    "ktied_weight",
    "linked_diagonal_divergence",
    "linked_ktied_divergence",
    "pair_products",
    "scaled_normals",
    "seeded_dtype",
    "sum_linked",
    "sum_log_product",
    "untransformed",
]

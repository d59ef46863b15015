"""Curvature: a tap on layers, the gradients a Fisher matrix is made of, and their second moments."""

from bayesrule.curvature.discovery import Found, find_layers
from bayesrule.curvature.fisher import Fisher, exact_cotangents, sampled_cotangents
from bayesrule.curvature.layers import Layer, example_count, state_dtype, unfold
from bayesrule.curvature.moments import (
    Tapped,
    cross_moments,
    example_gradients,
    fan_in_moment,
    fan_out_moment,
    squared_gradients,
    weight_gradient,
)
from bayesrule.curvature.tap import FunctionalPass, FunctionalTap, ModuleTap, Pass, assemble, watching
from bayesrule.curvature.triangles import gram, lower_matmul

__all__ = [
    "Fisher",
    "Found",
    "FunctionalPass",
    "FunctionalTap",
    "Layer",
    "ModuleTap",
    "Pass",
    "Tapped",
    "assemble",
    "cross_moments",
    "exact_cotangents",
    "example_count",
    "example_gradients",
    "fan_in_moment",
    "fan_out_moment",
    "find_layers",
    "gram",
    "lower_matmul",
    "sampled_cotangents",
    "squared_gradients",
    "state_dtype",
    "unfold",
    "watching",
    "weight_gradient",
]

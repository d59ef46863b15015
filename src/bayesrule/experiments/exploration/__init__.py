"""Exploration by curiosity: sparse tasks, Bayesian models of their dynamics, and the information that they gain."""

from bayesrule.experiments.exploration.figure2 import FIGURE2

__all__ = ["FIGURE2"]

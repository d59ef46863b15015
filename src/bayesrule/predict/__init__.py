"""Predictions averaged over draws of the weights."""

from bayesrule.predict.predict import draw_weights, predict
from bayesrule.predict.predictive import Predictive

__all__ = ["Predictive", "draw_weights", "predict"]

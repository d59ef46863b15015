"""Predictions averaged over draws of the weights."""

from bayesrule.predict.draws import draw_weights
from bayesrule.predict.predict import predict
from bayesrule.predict.predictive import Predictive

__all__ = ["Predictive", "draw_weights", "predict"]

"""How noise enters a forward pass: one file per estimator."""

from bayesrule.estimators.auto import Auto
from bayesrule.estimators.estimator import Estimator
from bayesrule.estimators.flipout import Flipout
from bayesrule.estimators.local_reparam import LocalReparam
from bayesrule.estimators.mean import Mean
from bayesrule.estimators.weight_sample import WeightSample

__all__ = ["Auto", "Estimator", "Flipout", "LocalReparam", "Mean", "WeightSample"]

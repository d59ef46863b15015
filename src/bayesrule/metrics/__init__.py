"""How good are the predictions? Pure functions of predictions and targets.

Conventions shared by all:

- Values come back in float64 on the device of the inputs, whatever the precision of the inputs: a sum over many
  examples in float32 is off by more than differences worth reporting. (A device without float64: move to the CPU.)
- Shapes must fit exactly; nothing is broadcast. Bad values (NaN, a row that does not sum to 1) are errors.
- Class probabilities are ``(examples, classes)``, already averaged over posterior draws. One column ``p``, as
  ``(examples,)`` or ``(examples, 1)``, means the two classes ``(1 − p, p)`` in every metric.
- ``reduction="none"`` gives one value per example, ready for `mean_and_sem`.
"""

from bayesrule.metrics.calibration import ReliabilityBins, expected_calibration_error, reliability_bins
from bayesrule.metrics.classification import accuracy, brier_score, brier_score_tfp
from bayesrule.metrics.crps import crps_gaussian, crps_samples
from bayesrule.metrics.detection import ood_auroc
from bayesrule.metrics.nll import categorical_nll, mixture_nll
from bayesrule.metrics.regression import interval_coverage, rmse
from bayesrule.metrics.standard_error import MeanAndSem, mean_and_sem

__all__ = [
    "MeanAndSem",
    "ReliabilityBins",
    "accuracy",
    "brier_score",
    "brier_score_tfp",
    "categorical_nll",
    "crps_gaussian",
    "crps_samples",
    "expected_calibration_error",
    "interval_coverage",
    "mean_and_sem",
    "mixture_nll",
    "ood_auroc",
    "reliability_bins",
    "rmse",
]

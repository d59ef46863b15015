"""How well a score tells inputs from elsewhere from those like the training data."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Tensor

from bayesrule.metrics.checks import require_examples, require_values


def ood_auroc(scores_in: Tensor, scores_out: Tensor) -> Float64[Tensor, ""]:
    """``P(s_out > s_in) + ½ P(s_out = s_in)`` over all pairs: the area under the receiver's operating curve.

    Scores are **higher for out-of-distribution** inputs (entropy, mutual information; negate a confidence). Only
    their order counts, infinities included. The area itself is worked out in float32, to about 1e-7.

    Args:
        scores_in: Scores of in-distribution inputs, of any number and shape.
        scores_out: Scores of out-of-distribution inputs, likewise.

    Example:
        >>> import torch
        >>> ood_auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, 9.0])).item()
        0.875
    """
    from torchmetrics.functional.classification import binary_auroc  # here, as importing it takes as long as torch

    for name, scores in (("in-distribution scores", scores_in), ("out-of-distribution scores", scores_out)):
        require_examples(name, scores)
        require_values(f"{name} must be numbers", scores, ~scores.isnan(), "Look for a diverged run.")
    scores = torch.cat([scores_in.flatten(), scores_out.flatten()])
    is_out = torch.arange(len(scores), device=scores.device) >= scores_in.numel()
    # binary_auroc squashes scores outside [0, 1] by a sigmoid, where large ones become equal; ranks it leaves alone.
    rank = scores.unique(return_inverse=True)[1].double() / len(scores)
    return binary_auroc(rank, is_out.long(), validate_args=False).double()

"""Out-of-distribution detection against scikit-learn and scipy."""

from __future__ import annotations

import math

import pytest
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.metrics import ood_auroc

FLOAT32 = 2e-7  # the precision in which the area is worked out


def by_pairs(scores_in: Tensor, scores_out: Tensor) -> float:
    wins = (scores_out[:, None] > scores_in).double() + (scores_out[:, None] == scores_in).double() / 2
    return wins.mean().item()


@pytest.mark.parametrize("scale", [0.01, 1.0, 1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_auroc_is_that_of_two_libraries_at_any_scale(scale: float, dtype: torch.dtype) -> None:
    scores_in, scores_out = scale * torch.randn(300, dtype=dtype), scale * (torch.randn(200, dtype=dtype) + 1)
    got = ood_auroc(scores_in, scores_out).item()
    scores, is_out = torch.cat([scores_in, scores_out]).numpy(), [0] * 300 + [1] * 200
    assert got == pytest.approx(roc_auc_score(is_out, scores), abs=FLOAT32)
    assert got == pytest.approx(stats.mannwhitneyu(scores_out, scores_in).statistic / (300 * 200), abs=FLOAT32)


def test_a_tie_counts_half() -> None:
    scores_in, scores_out = torch.randint(4, (150,)), torch.randint(1, 6, (100,))
    expected = by_pairs(scores_in, scores_out)
    assert ood_auroc(scores_in, scores_out).item() == pytest.approx(expected, abs=FLOAT32)
    assert ood_auroc(scores_out, scores_in).item() == pytest.approx(1 - expected, abs=FLOAT32)
    assert ood_auroc(torch.zeros(3), torch.zeros(5)).item() == 0.5


def test_the_ends_of_the_range_and_single_scores() -> None:
    low, high = torch.rand(5), 2 + torch.rand(4)
    assert ood_auroc(low, high).item() == pytest.approx(1, abs=FLOAT32)
    assert ood_auroc(high, low).item() == 0
    assert ood_auroc(low[:1], high[:1]).item() == 1


def test_only_the_order_counts_also_with_infinities_and_mixed_dtypes() -> None:
    scores_in, scores_out = torch.tensor([-math.inf, 40.0, 41.0]), torch.tensor([41.0, math.inf], dtype=torch.float64)
    assert ood_auroc(scores_in, scores_out).item() == pytest.approx(5.5 / 6, abs=FLOAT32)
    assert ood_auroc(scores_in.reshape(3, 1), scores_out).dtype == torch.float64


def test_no_scores_and_no_numbers_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="out-of-distribution scores hold no examples"):
        ood_auroc(torch.ones(3), torch.ones(0))
    with pytest.raises(InvalidArgument, match=r"in-distribution scores must be numbers.*1 of 2"):
        ood_auroc(torch.tensor([1.0, math.nan]), torch.ones(3))

"""What every metric does with dtypes, devices, single examples and bad input; and the standard error."""

from __future__ import annotations

import math
from collections.abc import Callable

import jaxtyping
import pytest
import torch
from scipy import stats
from torch import Tensor

from bayesrule import metrics
from bayesrule.errors import InvalidArgument, ShapeMismatch

Metric = Callable[..., Tensor]
Inputs = Callable[[int], tuple[Tensor, ...]]

ON_CLASSES: list[Callable[..., object]] = [
    metrics.categorical_nll,
    metrics.accuracy,
    metrics.brier_score,
    metrics.brier_score_tfp,
    metrics.expected_calibration_error,
    metrics.reliability_bins,
]


def classes(examples: int) -> tuple[Tensor, Tensor]:
    return torch.randn(examples, 4, dtype=torch.float64).softmax(-1), torch.randint(4, (examples,))


def numbers(examples: int) -> tuple[Tensor, Tensor, Tensor]:
    mean, std = torch.randn(2, examples, dtype=torch.float64)
    return mean, std.exp(), torch.randn(examples, dtype=torch.float64)


CASES: dict[str, tuple[Metric, Inputs]] = {
    "nll": (metrics.categorical_nll, classes),
    "mixture nll": (metrics.mixture_nll, lambda n: (torch.randn(5, n, dtype=torch.float64),)),
    "accuracy": (metrics.accuracy, classes),
    "brier": (metrics.brier_score, classes),
    "brier tfp": (metrics.brier_score_tfp, classes),
    "ece": (metrics.expected_calibration_error, classes),
    "ece by mass": (lambda *given: metrics.expected_calibration_error(*given, binning="mass"), classes),
    "gap": (lambda *given: metrics.reliability_bins(*given).gap.nan_to_num().sum(), classes),
    "rmse": (metrics.rmse, lambda n: numbers(n)[::2]),
    "coverage": (lambda m, s, y: metrics.interval_coverage(m - s, m + s, y), numbers),
    "crps": (metrics.crps_gaussian, numbers),
    "crps of samples": (metrics.crps_samples, lambda n: (torch.randn(5, n, dtype=torch.float64), numbers(n)[0])),
    "auroc": (metrics.ood_auroc, lambda n: numbers(n)[:2]),
    "mean": (lambda v: metrics.mean_and_sem(v).mean, lambda n: numbers(n)[:1]),
    "sem": (lambda v: metrics.mean_and_sem(v).sem, lambda n: numbers(n + 1)[:1]),
}
every_metric = pytest.mark.parametrize(("metric", "inputs"), CASES.values(), ids=CASES)


@every_metric
def test_a_number_in_float64_from_inputs_of_any_precision(metric: Metric, inputs: Inputs) -> None:
    given = inputs(40)
    exact = metric(*given)
    assert exact.dtype == torch.float64
    assert exact.shape == ()
    for dtype, tolerance in [(torch.float32, 1e-6), (torch.bfloat16, 3e-2)]:
        rounded = [value.to(dtype) if value.is_floating_point() else value for value in given]
        got = metric(*rounded)
        assert got.dtype == torch.float64
        torch.testing.assert_close(got, exact, rtol=tolerance, atol=tolerance)


@every_metric
def test_one_example_is_enough(metric: Metric, inputs: Inputs) -> None:
    assert metric(*inputs(1)).isfinite()


@every_metric
def test_no_example_is_refused(metric: Metric, inputs: Inputs) -> None:
    empty = [
        value[..., :0] if value.is_floating_point() and inputs is not classes else value[:0] for value in inputs(3)
    ]
    with pytest.raises(InvalidArgument, match="hold no examples"):
        metric(*empty)


@every_metric
def test_nan_is_refused_or_shown(metric: Metric, inputs: Inputs) -> None:
    given = [value.clone() for value in inputs(3)]
    given[0][..., 0] = math.nan
    if len(given) == 1 and given[0].ndim == 1:  # mean_and_sem reports what it is given
        assert metric(*given).isnan()
        return
    with pytest.raises(InvalidArgument, match="nan"):
        metric(*given)


@pytest.mark.gpu
@every_metric
def test_a_gpu_gives_the_same_number_and_keeps_it(metric: Metric, inputs: Inputs) -> None:
    given = inputs(1000)
    got = metric(*(value.cuda() for value in given))
    assert got.is_cuda
    torch.testing.assert_close(got.cpu(), metric(*given), rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.uint16, torch.int32, torch.uint64])
def test_class_indices_of_any_integer_dtype(dtype: torch.dtype) -> None:
    probs, targets = classes(30)
    assert metrics.accuracy(probs, targets.to(dtype)) == metrics.accuracy(probs, targets)


@pytest.mark.parametrize("metric", ON_CLASSES)
def test_class_inputs_that_do_not_fit_are_refused(metric: Metric) -> None:
    probs, targets = classes(6)
    one_hot = torch.nn.functional.one_hot(targets, 4)
    draws = probs.expand(3, 6, 4)
    for given in [
        (probs, targets[:5]),
        (probs, one_hot),
        (draws, targets),
        (probs, targets[:, None]),
        (probs[0], targets),
    ]:
        with pytest.raises(ShapeMismatch, match=r"targets do not fit.*argmax"):
            metric(*given)
    for bad in (-1, 4):
        with pytest.raises(InvalidArgument, match=f"class indices from 0 to 3.*1 of 6 not so, the first {bad}"):
            metric(probs, targets.index_fill(0, torch.tensor([2]), bad))
    with pytest.raises(InvalidArgument, match=r"must be integers.*float64.*long"):
        metric(probs, targets.double())
    with pytest.raises(InvalidArgument, match=r"from 0 to 1.*the first 0.5"):
        metric(probs[:, 0], torch.full((6,), 0.5))


@pytest.mark.parametrize("metric", ON_CLASSES)
def test_what_is_not_a_probability_is_refused(metric: Metric) -> None:
    probs, targets = classes(6)
    with pytest.raises(InvalidArgument, match=r"sum to 1.*6 of 6.*softmax"):
        metric(probs / 2, targets)
    with pytest.raises(InvalidArgument, match=r"between 0 and 1.*softmax"):
        metric(torch.randn(6, 4), targets)
    with pytest.raises(InvalidArgument, match=r"between 0 and 1.*sigmoid"):
        metric(torch.tensor([1.2]), torch.tensor([1]))
    with pytest.raises(InvalidArgument, match=r"floating point.*int64"):
        metric(targets, targets)


def test_rounding_is_forgiven_up_to_the_precision_of_the_input() -> None:
    logits, targets = torch.randn(20, 1000), torch.randint(1000, (20,))
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        assert metrics.brier_score(logits.softmax(-1).to(dtype), targets).isfinite()
    with pytest.raises(InvalidArgument, match="sum to 1"):
        metrics.brier_score(logits.softmax(-1) * 1.001, targets)


def test_an_unknown_reduction_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # which would speak first
    with pytest.raises(InvalidArgument, match=r"no such reduction.*'sum'.*mean.*none"):
        metrics.accuracy(*classes(3), reduction="sum")  # type: ignore[arg-type]


def test_log_probabilities_without_draws_or_above_infinity_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match=r"posterior draws.*unsqueeze\(0\)"):
        metrics.mixture_nll(torch.tensor(-1.0))
    with pytest.raises(InvalidArgument, match=r"below \+inf.*the first inf"):
        metrics.mixture_nll(torch.tensor([[-1.0, math.inf]]))


def test_the_standard_error_is_that_of_scipy() -> None:
    values = torch.randn(4, 25, dtype=torch.float64)
    mean, sem = metrics.mean_and_sem(values)
    assert mean.item() == pytest.approx(values.mean().item(), rel=1e-14)
    assert sem.item() == pytest.approx(stats.sem(values.flatten().numpy()), rel=1e-13)


def test_the_standard_error_of_an_accuracy_is_binomial() -> None:
    correct = torch.arange(10_000) < 9_760
    mean, sem = metrics.mean_and_sem(correct)
    assert mean.item() == pytest.approx(0.976, rel=1e-14)
    assert sem.item() == pytest.approx(math.sqrt(0.976 * 0.024 / 9_999), rel=1e-12)


def test_the_standard_error_of_one_value_is_unknown() -> None:
    mean, sem = metrics.mean_and_sem(torch.tensor([3.0]))
    assert mean.item() == 3
    assert sem.isnan()

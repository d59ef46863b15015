"""The report: sound HTML with nothing from outside, everything escaped, and numbers that are those of the data."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.report import (
    Classification,
    FeatureRows,
    Method,
    Provenance,
    Regression,
    Report,
    Table,
    Usage,
    render,
    write_report,
)  # fmt: skip
from bayesrule.report.headline import headline
from report_samples import LEVELS, check, classification, history, regression, stds

EVIL = "<script>alert('x')</script> & \"y\""

every_report = pytest.mark.parametrize("report", [classification(), regression()], ids=["classes", "numbers"])


@every_report
def test_the_page_is_sound_and_has_its_sections(report: Report) -> None:
    page = check(report)
    sections = ("Beside other methods", "Can its certainty be trusted?", "Most and least certain examples",
                "How it learned", "What the posterior looks like")  # fmt: skip
    assert all(section in page.text for section in sections)
    assert {"lang": "en"} in page.named("html")


@every_report
def test_the_same_report_gives_the_same_bytes(report: Report, tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        write_report(report, tmp_path / name)
    content = (tmp_path / "a.html").read_bytes()
    assert content == (tmp_path / "b.html").read_bytes()
    assert content.decode() == render(report)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_what_comes_from_files_is_escaped() -> None:
    base = classification(names=[EVIL, "a&b", "'\"", "</style></svg>"])
    assert isinstance(base.predictions, Classification)
    rows = [[EVIL, 1.0]] * len(base.predictions)
    report = replace(
        base, title=EVIL, data_name=EVIL, sizes={EVIL: 3}, inputs=FeatureRows([EVIL, "</table>"], rows), notes=[EVIL],
        methods=[Method(EVIL, base.metrics, ours=True), Method(EVIL + "2", base.metrics)],
        posterior_stds={EVIL: stds(4, 3)}, conversion=Table([EVIL], [[EVIL]]), usage=Usage(EVIL, [EVIL]),
        provenance=Provenance(EVIL, 0, {EVIL: EVIL}),
    )  # fmt: skip
    page = check(report)
    assert page.text.count(EVIL) >= 12
    number_report = regression()
    assert isinstance(number_report.predictions, Regression)
    check(replace(number_report, predictions=replace(number_report.predictions, target_name=EVIL)))
    assert "<script" not in render(report)


def test_text_without_utf8_bytes_is_written(tmp_path: Path) -> None:
    write_report(replace(classification(), notes=["caf\udce9"]), tmp_path / "report.html")
    assert "caf?" in (tmp_path / "report.html").read_text()


def test_metrics_and_methods_are_shown_as_given() -> None:
    page = check(classification())
    for words in ("0.432", "91.2 %", "0.0345", "0.550", "95.0 %", "12,345", "8.2 s", "1,000", "seed 7", "600"):
        assert words in page.text.replace("\u00a0", " "), words
    html = render(classification()).replace("\u00a0", " ")
    assert re.findall(r"<strong>(.*?)</strong>", html) == ["0.432", "0.0345", "95.0 %"]
    assert "This model has the lowest test NLL: 0.432, next is Point estimate with 0.550." in page.text
    assert "By test NLL this model (1.50) comes after Point estimate (1.40)." in check(regression()).text


def test_the_headline_of_classes_is_computed_from_the_predictions() -> None:
    predictions = classification(n=400).predictions
    assert isinstance(predictions, Classification)
    right = [int(row.argmax()) == target for row, target in zip(predictions.probs, predictions.targets, strict=True)]
    sure = [float(row.max()) for row in predictions.probs]
    near = [hit for hit, claim in zip(right, sure, strict=True) if 0.85 <= claim < 0.95]
    guess = max(list(predictions.targets).count(k) for k in range(4)) / 400
    kept = [hit for _, hit in sorted(zip(sure, right, strict=True), key=lambda pair: -pair[0])][:360]
    told = [sentence.replace("\u00a0", " ") for sentence in headline(predictions)]
    assert told[0] == f"Right on {sum(right) / 4:.1f} % of 400 unseen examples."
    assert told[1] == f"Always answering the commonest class would be right on {100 * guess:.1f} %."
    assert f"it is right {100 * sum(near) / len(near):.0f} % of the time ({len(near)} such answers)" in told[2]
    assert f"claims to be {sum(sure) / 4:.1f} % sure and is right {sum(right) / 4:.1f} %" in told[3]
    assert f"least certain 40 examples to a person, and it is right on {sum(kept) / 3.6:.1f} % of the others" in told[4]


@pytest.mark.parametrize(
    ("claim", "verdict"), [(0.99, "overconfident"), (0.8, "as sure as it should be"), (0.6, "too cautious")]
)
def test_calibration_is_named(claim: float, verdict: str) -> None:
    targets = (np.arange(500) % 5 == 0).astype(int)  # four fifths are of class 0
    predictions = Classification(np.tile([claim, 1 - claim], (500, 1)), targets, ["a", "b"])
    told = " ".join(headline(predictions))
    assert verdict in told
    assert "no better than always answering the commonest class (80.0\u00a0%)" in told
    assert "does not tell its right answers from its mistakes" in told


def test_the_headline_of_numbers_is_computed_from_the_predictions() -> None:
    predictions = regression().predictions
    assert isinstance(predictions, Regression)
    error = predictions.targets - predictions.mean
    low, high = predictions.quantiles[0], predictions.quantiles[-1]
    held = sum(a <= y <= b for a, y, b in zip(low, predictions.targets, high, strict=True))
    told = [sentence.replace("\u00a0", " ") for sentence in headline(predictions)]
    assert told[0] == f"Typically off by {math.sqrt(np.mean(error**2)):.2f} (root mean square) on 90 unseen examples."
    assert told[1] == f"Always answering their mean would be off by {np.std(predictions.targets):.2f}."
    assert (
        f"hold the truth {held / 0.9:.1f} % of the time ({held} of 90 examples): as wide as they should be" in told[2]
    )
    order = sorted(range(90), key=lambda i: predictions.epistemic_std[i] ** 2 + predictions.aleatoric_std[i] ** 2)
    halves = [math.sqrt(np.mean([error[i] ** 2 for i in half])) for half in (order[:45], order[45:])]
    assert told[3] == f"On the half it is surest of it is off by {halves[0]:.3f}, on the other half by {halves[1]:.2f}."
    share = np.sum(predictions.epistemic_std**2) / np.sum(predictions.epistemic_std**2 + predictions.aleatoric_std**2)
    assert told[4].startswith(f"Of its predictive variance {100 * share:.0f} % ")


@pytest.mark.parametrize(("stated", "verdict"), [(0.3, "too narrow"), (3.0, "too wide")])
def test_dishonest_intervals_are_named(stated: float, verdict: str) -> None:
    assert verdict in " ".join(headline(regression(300, stated=stated).predictions))


def test_a_useless_regression_is_called_one() -> None:
    predictions = regression().predictions
    assert isinstance(predictions, Regression)
    assert "no better than always answering their mean" in headline(replace(predictions, mean=-predictions.mean))[1]


ODD_HISTORIES = {
    "empty": [],
    "one epoch": history(1),
    "no validation": history(valid=False),
    "diverged": [
        *history(3),
        replace(history(1)[0], epoch=4, nll=math.nan, kl_per_example=math.inf, valid_nll=math.inf),
    ],
    "constant": [replace(point, nll=0.0, kl_per_example=0.0, valid_nll=0.0) for point in history(5)],
    "huge": [replace(point, nll=1e300 * point.nll, kl_per_example=-1e30) for point in history(5)],
    "long": history(5000),
}


@pytest.mark.parametrize("name", ODD_HISTORIES)
def test_odd_histories(name: str) -> None:
    check(replace(classification(), history=ODD_HISTORIES[name]))


@pytest.mark.parametrize("report", [classification(1), classification(2), regression(1), regression(2),
                                    regression(scale=1e200), regression(scale=1e-200), classification(80, 200),
                                    classification(sharpness=300.0)])  # fmt: skip
def test_odd_data(report: Report) -> None:
    check(report)
    check(replace(report, inputs=None, metrics={}, methods=[], posterior_stds={}, history=[]))


def test_values_that_are_not_numbers() -> None:
    broken = {"test_nll": math.nan, "test_accuracy": math.inf, "test_ece": -math.inf}
    page = check(
        replace(classification(), metrics=broken, methods=[Method("m", broken, ours=True), Method("n", broken)])
    )
    assert "nan" not in page.text
    assert "inf" not in re.sub("inference|information", "", page.text)
    check(replace(classification(), posterior_stds={"w": np.full((3, 3), math.nan), "v": np.zeros((4, 4))}))


@pytest.mark.parametrize("report", [classification(), regression()], ids=["classes", "numbers"])
def test_predictions_that_are_not_numbers_are_left_out(report: Report) -> None:
    predictions = report.predictions
    field = "probs" if isinstance(predictions, Classification) else "mean"
    values = getattr(predictions, field).copy()
    values[:5] = math.nan
    assert (
        "being no finite numbers: 5 test predictions."
        in check(replace(report, predictions=replace(predictions, **{field: values}))).text
    )
    values[:] = math.nan
    check(replace(report, predictions=replace(predictions, **{field: values})))


def test_the_most_and_least_certain_are_shown() -> None:
    probs = np.array([[0.51, 0.49], [0.97, 0.03], [0.25, 0.75], [0.12, 0.88]])
    predictions = Classification(probs, np.array([0, 1, 1, 1]), ["yes", "no"])
    report = replace(
        classification(), predictions=predictions, inputs=FeatureRows(["size"], [[1.5], [2.5], [3.5], [40.0]])
    )
    text = render(report)
    places = [text.index(words) for words in ("Least certain<", ">1.50<", ">3.50<", "Most certain<", ">2.50<", ">40<")]
    assert places == sorted(places)


def test_a_class_never_predicted() -> None:
    probs = np.tile([0.7, 0.3, 0.0], (30, 1))
    report = replace(
        classification(), predictions=Classification(probs, np.arange(30) % 3, ["a", "b", "c"]), inputs=None
    )
    assert "Right on 33.3\u00a0% of 30" in render(report)


@pytest.mark.parametrize("make", [classification, regression])
def test_a_hundred_thousand_rows_stay_small(make: type[Report], tmp_path: Path) -> None:
    write_report(make(100_000), tmp_path / "report.html")  # type: ignore[arg-type]
    assert (tmp_path / "report.html").stat().st_size < 500_000


def test_what_does_not_fit_is_refused() -> None:
    base = regression().predictions
    assert isinstance(base, Regression)
    with pytest.raises(ShapeMismatch, match="class names"):
        Classification(np.full((3, 2), 0.5), np.zeros(3, int), ["a"])
    with pytest.raises(InvalidArgument, match="from 0 to 1"):
        Classification(np.full((3, 2), 0.5), np.array([0, 1, 2]), ["a", "b"])
    with pytest.raises(InvalidArgument, match="the 95 % quantile"):
        replace(base, quantile_levels=LEVELS[:-1], quantiles=base.quantiles[:-1])
    with pytest.raises(ShapeMismatch, match="test inputs"):
        replace(regression(), inputs=FeatureRows(["a"], [[1.0]]))
    with pytest.raises(ShapeMismatch, match="cells of a row"):
        Table(("a", "b"), [("c",)])

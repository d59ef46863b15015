"""The comparison on tables: its measures, splits, refusals and claims."""

from __future__ import annotations

import json
import time
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats

from bayesrule.errors import InvalidArgument
from bayesrule.experiments import EXPERIMENTS, Preset, Row
from bayesrule.experiments import tabular as tabular_file
from bayesrule.experiments.rivals import METHODS, Options
from bayesrule.experiments.rivals.method import Method, class_mixture, normal_mixture
from bayesrule.experiments.rows import with_published
from bayesrule.experiments.tabular_claims import CLAIMS, NLL_BOUNDS, WITHOUT_NAVAL
from bayesrule.experiments.tabular_data import CLASSES, UCI, Split, permutation_splits, real_table, synthetic_table
from bayesrule.experiments.tabular_scores import class_scores, pooled_ece


def test_numbers_are_measured_in_their_own_units() -> None:
    """Against scipy: a mixture of two normals with another scale."""
    random = np.random.RandomState(0)
    y, means, stds = random.randn(50), random.randn(2, 50), random.rand(2, 50) + 0.2
    method = Method("given", "", lambda *given: normal_mixture(list(means), list(stds)), None)
    x = np.zeros((50, 1))
    found = tabular_file.measure(Split(x, y, x, y, 3.0), method, Options())
    density = scipy.stats.norm.pdf(3 * y, 3 * means, 3 * stds).mean(0)
    below = scipy.stats.norm.cdf(y, means, stds).mean(0)
    assert found["log_likelihood"] == pytest.approx(np.log(density).mean(), rel=1e-9)
    assert found["rmse"] == pytest.approx(3 * np.sqrt(np.mean((means.mean(0) - y) ** 2)), rel=1e-9)
    assert found["coverage_90"] == pytest.approx(np.mean((below >= 0.05) & (below <= 0.95)), abs=1e-12)


def test_classes_are_measured() -> None:
    tables = np.random.RandomState(1).dirichlet(np.ones(3), (2, 40))
    y = np.arange(40) % 3
    method = Method("given", "", None, lambda *given: class_mixture(list(tables)))
    x = np.zeros((40, 1))
    found = tabular_file.measure(Split(x, y, x, y, 1.0), method, Options())
    probs = tables.mean(0)
    assert found["nll"] == pytest.approx(-np.log(probs[np.arange(40), y]).mean(), rel=1e-9)
    assert found["accuracy"] == pytest.approx((probs.argmax(1) == y).mean(), abs=1e-12)
    with pytest.raises(InvalidArgument, match="not for this task"):
        tabular_file.measure(Split(x, y.astype(float), x, y.astype(float), 1.0), method, Options())


def test_the_pooled_calibration_error_is_that_of_all_rows() -> None:
    """Against a loop over the bins of all rows together."""
    random = np.random.RandomState(2)
    probs, y = random.dirichlet(np.ones(3), 70), random.randint(0, 3, 70)
    x = np.zeros((70, 1))
    cells = []
    for rows in (slice(0, 20), slice(20, 45), slice(45, 70)):
        split = Split(x[rows], y[rows], x[rows], y[rows], 1.0)
        cells.append(class_scores(class_mixture([probs[rows]]), split))
    confidence, correct = probs.max(1), probs.argmax(1) == y
    expected = 0.0
    for number in range(15):
        inside = (confidence > number / 15) & (confidence <= (number + 1) / 15)
        expected += abs(correct[inside].sum() - confidence[inside].sum()) / 70
    assert pooled_ece(cells) == pytest.approx(expected, abs=1e-12)
    assert pooled_ece(cells) < np.mean([cell["ece"] for cell in cells])


def test_seconds_are_the_processors() -> None:
    def slow(*given: object) -> object:
        time.sleep(0.3)
        return normal_mixture([np.zeros(5)], [np.ones(5)])

    x = np.zeros((5, 1))
    found = tabular_file.measure(Split(x, x[:, 0], x, x[:, 0], 1.0), Method("slow", "", slow, None), Options())
    assert 0 <= found["seconds"] < 0.25


def test_large_tables_may_have_fewer_splits() -> None:
    preset = Preset((), (), {"splits": 4, "fewer_splits": {"yacht": 2}})
    assert [tabular_file.splits_of(synthetic_table(name), preset) for name in ("yacht", "wine")] == [2, 4]
    many = Preset((), (), {"splits": 99})
    assert tabular_file.splits_of(synthetic_table("wine"), many) == 5


def test_made_up_tables_have_the_true_shapes() -> None:
    for name, (rows, features) in UCI.items():
        assert synthetic_table(name).x.shape == (rows, features)
    for name, (rows, features, classes) in CLASSES.items():
        made, real = synthetic_table(name), real_table(name, None)
        assert made.x.shape == real.x.shape == (rows, features)
        assert len(np.unique(real.y)) == len(np.unique(made.y)) == classes
        assert len(real.splits) == 5


def test_splits_are_the_stated_permutations() -> None:
    for number, (train, test) in enumerate(permutation_splits(178)):
        order = np.random.RandomState(number).permutation(178)
        assert np.array_equal(np.concatenate([train, test]), order)
        assert len(train) == 142


def test_a_missing_package_and_too_many_rows_are_said() -> None:
    absent = replace(METHODS["ngboost"], package="no_such_package_at_all", install="it")
    assert "it is not installed" in absent.refusal("regression", 10)
    assert "more than the 2,000" in METHODS["gp"].refusal("regression", 2001)
    assert METHODS["gp"].refusal("regression", 2000) == ""


def claimed(values: dict[str, float], metric: str) -> list[Row]:
    rows = [Row(name, "bayesrule", "", metric, value, None, 1) for name, value in values.items()]
    return with_published(rows, EXPERIMENTS["tabular"].published)


def verdicts(rows: list[Row]) -> list[str]:
    return [claim.check(rows).standing for claim in CLAIMS]


def test_claims_follow_the_numbers() -> None:
    published = json.loads(EXPERIMENTS["tabular"].published.read_text())["rows"]
    best = {row["dataset"]: row["value"] for row in published if row["metric"] == "log_likelihood"}
    behind = {name: value - 0.1 for name, value in best.items()}
    assert verdicts(claimed(behind, "log_likelihood"))[:3] == ["held", "not held", "held"]
    behind["naval"] -= 1
    assert verdicts(claimed(behind, "log_likelihood"))[:3] == ["held", "not held", "not held"]
    del behind["naval"]
    assert verdicts(claimed(behind, "log_likelihood"))[:3] == ["held", "not held", "not measured"]
    coverage = dict.fromkeys(UCI, 0.9)
    assert verdicts(claimed(coverage, "coverage_90"))[4] == "held"
    assert verdicts(claimed({**coverage, **dict.fromkeys(("yacht", "naval", "boston"), 0.95)}, "coverage_90"))[4] == (
        "not held"
    )
    assert verdicts(claimed(NLL_BOUNDS, "nll"))[5] == "held"
    assert verdicts(claimed({**NLL_BOUNDS, "wine": 0.041}, "nll"))[5] == "not held"
    calibrated = dict.fromkeys(NLL_BOUNDS, 0.03)
    assert verdicts(claimed(calibrated, "ece_pooled"))[6:8] == ["held", "not measured"]
    assert verdicts(claimed({**calibrated, "wine": 0.031}, "ece"))[6:8] == ["not measured", "not held"]
    assert verdicts([]) == ["not measured"] * len(CLAIMS)


def test_being_ahead_needs_every_measured_rival() -> None:
    ours = claimed(dict.fromkeys(WITHOUT_NAVAL, 1.0), "log_likelihood")
    assert verdicts(ours)[3] == "not measured"
    rival = [Row("yacht", "gp", "", "log_likelihood", 0.9, None, 1)]
    assert verdicts(ours + rival)[3] == "held"
    assert verdicts([*ours, *rival, Row("boston", "other", "", "log_likelihood", 1.1, None, 1)])[3] == "not held"
    classes = claimed(dict.fromkeys(CLASSES, 0.05), "nll")
    assert verdicts([*classes, Row("wine", "other", "", "nll", 0.06, None, 1)])[8] == "held"
    assert verdicts([*classes, Row("wine", "other", "", "nll", 0.04, None, 1)])[8] == "not held"

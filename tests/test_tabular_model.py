"""A table fitted, predicted and measured."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import integrate, stats

from bayesrule.data import BadTable, NumberTarget
from bayesrule.errors import InvalidArgument
from bayesrule.train.members import Settings
from bayesrule.train.tabular import fit_table
from tabular_cases import SETTINGS, Fitted, classification, regression, table


@pytest.fixture(name="regression")
def fitted_regression() -> Fitted:
    return regression()


@pytest.fixture(name="classification")
def fitted_classification() -> Fitted:
    return classification()


@pytest.fixture(params=[regression, classification], ids=["regression", "classification"])
def fitted(request: pytest.FixtureRequest) -> Fitted:
    return request.param()


def test_rows_are_divided_once_and_for_all(fitted: Fitted) -> None:
    _, fit = fitted
    assert sorted([*fit.train_rows, *fit.test_rows]) == list(range(60))
    assert len(fit.test_rows) == 12
    pd.testing.assert_frame_equal(fit.test_frame, table()[fit.test_frame.columns].iloc[fit.test_rows])
    pd.testing.assert_series_equal(fit.test_targets, table()[fit.test_targets.name].iloc[fit.test_rows])


def test_what_was_found_is_said(fitted: Fitted) -> None:
    model, fit = fitted
    assert model.task == fit.task == model.target.task
    assert any("constant is not used" in note for note in fit.notes)
    assert any("size has missing values" in note for note in fit.notes)
    assert model.info["metrics"] == fit.metrics
    assert model.info["train_rows"] == 48
    assert json.loads(json.dumps(model.info)) == model.info
    assert fit.history[-1]["step"] == 40


def test_only_training_rows_set_the_scales() -> None:
    frame = table().drop(columns="kind")
    _, fit = fit_table(frame, "price", settings=SETTINGS)
    changed = frame.copy()
    changed.loc[fit.test_rows, "size"] += 1000
    model, again = fit_table(changed, "price", settings=SETTINGS)
    assert (again.test_rows == fit.test_rows).all()
    assert isinstance(model.target, NumberTarget)
    assert model.target.mean == pytest.approx(frame["price"].iloc[fit.train_rows].mean(), rel=1e-12)
    numbers = {column.name: column for column in model.encoder.columns}
    assert abs(numbers["size"].mean) < 1


def test_predictions_are_in_the_targets_own_units(regression: Fitted) -> None:
    model, fit = regression
    predicted, report = model.predict_frame(fit.test_frame)
    assert list(predicted) == ["mean", "std", "epistemic_std", "q05", "q50", "q95"]
    assert predicted.index.equals(fit.test_frame.index)
    assert report.rows == 12
    assert isinstance(model.target, NumberTarget)
    standardised = model.predictive(fit.test_frame)
    mean = model.target.mean + model.target.std * standardised.mean[:, 0].double().numpy()
    np.testing.assert_allclose(predicted["mean"], mean, rtol=1e-12)
    for column, moment in (("std", standardised.std), ("epistemic_std", standardised.epistemic_std)):
        np.testing.assert_allclose(predicted[column], model.target.std * moment[:, 0].double().numpy(), rtol=1e-12)
    for column, level in (("q05", 0.05), ("q50", 0.5), ("q95", 0.95)):
        at = torch.from_numpy((predicted[[column]].to_numpy() - model.target.mean) / model.target.std)
        np.testing.assert_allclose(standardised.cdf(at.float())[:, 0], level, atol=1e-5)


def test_classes_have_probabilities(classification: Fitted) -> None:
    model, fit = classification
    predicted, _ = model.predict_frame(fit.test_frame)
    assert list(predicted) == ["prediction", "prob_high", "prob_low", "entropy", "mutual_information"]
    probs = predicted[["prob_high", "prob_low"]].to_numpy()
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-6)
    assert (predicted["prediction"] == np.array(["high", "low"])[probs.argmax(1)]).all()
    np.testing.assert_allclose(predicted["entropy"], stats.entropy(probs, axis=1), atol=1e-6)
    assert (predicted["mutual_information"] <= predicted["entropy"]).all()


def test_measures_of_a_regression(regression: Fitted) -> None:
    """By the mixture of normals in float64, one row at a time, in the target's own units."""
    model, fit = regression
    assert isinstance(model.target, NumberTarget)
    outputs = model.predictive(fit.test_frame).outputs.double().numpy()  # (draws, rows, 3 × components)
    means, log_stds, logits = np.split(outputs, 3, axis=-1)
    weights = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)) / len(outputs)
    means, stds = model.target.mean + model.target.std * means, model.target.std * np.exp(log_stds)
    nll, covered, crps, squares = [], [], [], []
    for row, y in enumerate(fit.test_targets):
        w, m, s = (each[:, row].ravel() for each in (weights, means, stds))
        nll.append(-math.log((w * stats.norm.pdf(y, m, s)).sum()))
        covered.append(0.05 <= (w * stats.norm.cdf(y, m, s)).sum() <= 0.95)
        squares.append(((w * m).sum() - y) ** 2)
        grid = np.linspace(min(m.min(), y) - 8 * s.max(), max(m.max(), y) + 8 * s.max(), 20_001)
        cdf = sum(part * stats.norm.cdf(grid, at, by) for part, at, by in zip(w, m, s, strict=True))
        crps.append(integrate.trapezoid((cdf - (grid >= y)) ** 2, grid))
    assert fit.metrics["test_nll"] == pytest.approx(np.mean(nll), rel=1e-5)
    assert fit.metrics["test_coverage_90"] == pytest.approx(np.mean(covered), abs=1e-12)
    assert fit.metrics["test_rmse"] == pytest.approx(math.sqrt(np.mean(squares)), rel=1e-4)
    assert fit.metrics["test_crps"] == pytest.approx(np.mean(crps), rel=0.1)  # by some 200 samples a row
    assert set(fit.metrics) == {"test_nll", "test_coverage_90", "test_rmse", "test_crps"}


def test_measures_of_a_classification(classification: Fitted) -> None:
    model, fit = classification
    predicted, _ = model.predict_frame(fit.test_frame)
    of_target = [row[f"prob_{kind}"] for (_, row), kind in zip(predicted.iterrows(), fit.test_targets, strict=True)]
    assert fit.metrics["test_nll"] == pytest.approx(-np.log(of_target).mean(), rel=1e-5)
    assert fit.metrics["test_accuracy"] == (predicted["prediction"] == fit.test_targets).mean()
    assert set(fit.metrics) == {"test_nll", "test_accuracy", "test_ece"}


def test_pieces_and_the_whole_agree(fitted: Fitted, monkeypatch: pytest.MonkeyPatch) -> None:
    model, fit = fitted
    whole, measured = model.predict_frame(fit.test_frame)[0], model.evaluate(fit.test_frame, fit.test_targets)
    monkeypatch.setattr("bayesrule.train.tabular_model.ROWS_AT_ONCE", 5)
    pieces, again = model.predict_frame(fit.test_frame)[0], model.evaluate(fit.test_frame, fit.test_targets)
    pd.testing.assert_frame_equal(whole, pieces, rtol=1e-4, atol=1e-5)
    for name in measured.keys() - {"test_crps"}:  # its samples are drawn for a piece at a time
        assert again[name] == pytest.approx(measured[name], rel=1e-5)
    assert again.get("test_crps", 0) == pytest.approx(measured.get("test_crps", 0), rel=0.1)


def test_a_resumed_fit_is_the_same(tmp_path: Path) -> None:
    frame = table().drop(columns="price")
    whole, fit = fit_table(frame, "kind", settings=SETTINGS)

    def stop(progress: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit_table(frame, "kind", settings=SETTINGS, out=tmp_path, on_progress=stop)
    resumed, again = fit_table(frame, "kind", settings=SETTINGS, out=tmp_path, resume=True)
    assert again.metrics == fit.metrics
    assert torch.equal(resumed.predictive(fit.test_frame).outputs, whole.predictive(fit.test_frame).outputs)


@pytest.mark.parametrize("target", ["price", "kind"])
def test_ten_rows_are_enough(target: str) -> None:
    frame = table(10)[["size", target]]
    model, fit = fit_table(frame, target, settings=Settings(hidden=(4,), steps=3, draws=4))
    assert model.members.settings.folds == 4
    assert all(math.isfinite(value) for value in fit.metrics.values())


def test_rows_without_a_target_are_left_out() -> None:
    frame = table(30)
    frame.loc[[2, 7], "price"] = np.nan
    _, fit = fit_table(frame[["size", "price"]], "price", settings=Settings(hidden=(4,), steps=2, draws=4))
    assert not {2, 7} & {*fit.train_rows, *fit.test_rows}
    assert any("2 rows have no target" in note for note in fit.notes)


def test_all_rows_can_be_trained_on() -> None:
    model, fit = fit_table(
        table(20)[["size", "price"]], "price", settings=Settings(hidden=(4,), steps=2, draws=4), test_fraction=0
    )
    assert len(fit.train_rows) == 20
    assert fit.metrics == model.info["metrics"] == {}


def test_the_task_can_be_asked_for() -> None:
    frame = pd.DataFrame({"x": np.arange(40.0), "y": np.arange(40) % 3})
    settings = Settings(hidden=(4,), steps=2, draws=4)
    assert fit_table(frame, "y", settings=settings)[1].task == "classification"
    model, fit = fit_table(frame, "y", task="regression", settings=settings)
    assert (model.task, fit.reason) == ("regression", "it was asked for")


@pytest.mark.parametrize(
    ("frame", "target", "options", "said"),
    [
        (table(9), "price", {}, "at least 10 rows"),
        (table(), "prise", {}, "price"),
        (table().assign(price=3.0), "price", {"task": "regression"}, "constant"),
        (table().assign(kind="a"), "kind", {}, "one class"),
        (table(), "kind", {"task": "regression"}, "kind"),
        (table()[["constant", "price"]], "price", {}, "No column can be used"),
        (pd.concat([table(), table()[["size"]]], axis=1), "price", {}, "same name"),
        (table().assign(size=np.inf), "price", {}, "finite"),
    ],
    ids=["rows", "name", "constant", "class", "text", "features", "names", "infinite"],
)
def test_tables_that_cannot_be_used(frame: pd.DataFrame, target: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(BadTable, match=said):
        fit_table(frame, target, settings=SETTINGS, **options)


def test_arguments_that_cannot_be_used() -> None:
    with pytest.raises(InvalidArgument, match="two tasks"):
        fit_table(table(), "price", task="ranking")
    with pytest.raises(InvalidArgument, match="test_fraction"):
        fit_table(table(), "price", test_fraction=1.0)

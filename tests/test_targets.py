"""The target's task is recognised, its values go to numbers and back, and splits are stratified by it."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.preprocessing import LabelEncoder, StandardScaler

from bayesrule.data import (
    BadConfig,
    BadTable,
    ClassTarget,
    NumberTarget,
    fit_target,
    recognise_target,
    separate_target,
    split,
    target_from_config,
)
from bayesrule.data.splits import FEWEST_ROWS
from bayesrule.errors import InvalidArgument, ShapeMismatch

RNG = np.random.default_rng(0)


def column(values: object, dtype: str | None = None) -> pd.Series:
    return pd.Series(values, name="y", dtype=dtype)


TASKS = {
    "words": (column(["a", "b", "a"]), "classification", "text with 2"),
    "booleans": (column([True, False, True]), "classification", "text with 2"),
    "categories": (column(pd.Categorical(range(50))), "classification", "text with 50"),
    "two whole numbers": (column([0, 1, 1]), "classification", "2 different whole numbers in 3 rows"),
    "few whole numbers": (column([*range(10)] * 5), "classification", "10 different whole numbers in 50 rows"),
    "twenty": (column([*range(20)] * 5), "classification", "20 different"),
    "whole numbers with a hole": (column([0.0, 1.0, None, 2.0] * 5), "classification", "3 different whole"),
    "few rows for each": (column([*range(10)] * 4), "regression", "10 different whole numbers in 40 rows"),
    "many whole numbers": (column([*range(21)] * 50), "regression", "21 different whole numbers"),
    "fractions": (column([0.5, 1.5] * 50), "regression", "with fractions"),
    "an infinity": (column([0.0, np.inf] * 50), "regression", "with fractions"),
}


@pytest.mark.parametrize("name", TASKS)
def test_the_task_is_recognised_with_a_reason(name: str) -> None:
    series, task, reason = TASKS[name]
    recognised = recognise_target(series)
    assert recognised.task == task
    assert reason in recognised.reason


def test_rows_without_a_target_are_left_out_and_counted() -> None:
    frame = pd.DataFrame({"x": [1, 2, 3, 4], "y": ["a", None, "?", "b"]})
    features, target, without = separate_target(frame, "y")
    assert (features["x"].tolist(), target.tolist(), without) == ([1, 4], ["a", "b"], 2)
    features, target, without = separate_target(frame.assign(y=[np.nan, 1.0, 2.0, np.nan]), "y")
    assert (features["x"].tolist(), target.tolist(), without) == ([2, 3], [1.0, 2.0], 2)
    with pytest.raises(BadTable, match="'y' has no values"):
        separate_target(frame.assign(y=np.nan), "y")


def test_a_wrong_target_name_is_answered_by_the_nearest() -> None:
    frame = pd.DataFrame({"Price": [1], "size": [2]})
    with pytest.raises(BadTable, match=r"no column 'prise'. Got: 'Price', 'size'. Did you mean 'Price'\?"):
        separate_target(frame, "prise")
    with pytest.raises(BadTable, match=r"no column 'qqq'. Got: 'Price', 'size'. Name one"):
        separate_target(frame, "qqq")


def test_classes_as_scikit_learn_numbers_them() -> None:
    labels = column(RNG.choice(["b", "a", "ü", "c"], 30))
    target = ClassTarget.fit(labels)
    assert np.array_equal(target.encode(labels), LabelEncoder().fit_transform(labels))
    assert target.decode(target.encode(labels)) == labels.tolist()


def test_classes_that_are_numbers_are_in_order_and_without_a_point() -> None:
    assert ClassTarget.fit(column([10.0, 9.0, 10.0, 2.0, 9.0, 2.0])).classes == ("2", "9", "10")
    assert ClassTarget.fit(column(["10", "9", "10", "9"])).classes == ("9", "10")
    assert ClassTarget.fit(column([True, False, True, False])).classes == ("False", "True")


def test_a_class_that_training_did_not_have() -> None:
    target = ClassTarget.fit(column(["cat", "dog"] * 3))
    with pytest.raises(BadTable, match=r"'cats' in row 1. Did you mean 'cat'\? Known: cat, dog"):
        target.encode(column(["dog", "cats"]))
    with pytest.raises(BadTable, match="no value in row 1"):
        target.encode(column(["dog", None]))


def test_numbers_as_scikit_learn_standardises_them() -> None:
    values = column(RNG.normal(50.0, 7.0, 100))
    target = NumberTarget.fit(values)
    oracle = StandardScaler().fit(values.to_frame())
    np.testing.assert_allclose([target.mean, target.std], [oracle.mean_[0], oracle.scale_[0]], rtol=1e-12)
    np.testing.assert_allclose(target.encode(values), oracle.transform(values.to_frame())[:, 0], rtol=3e-7, atol=1e-7)
    np.testing.assert_allclose(target.decode(target.encode(values)), values, rtol=1e-6)
    assert target.decode(np.float32([0.0]))[0] == target.mean


def test_a_target_that_overflows_is_refused() -> None:
    with pytest.raises(BadTable, match=r"absurdly far.*1e\+90 in row 1"):
        NumberTarget.fit(column([1.0, 2.0])).encode(column([1.5, 1e90]))


@pytest.mark.parametrize(
    ("series", "task", "message"),
    [
        (column([2.5] * 9), "regression", "'y' is constant. Got: 2.5 in all 9 rows"),
        (column([2, 2, 2]), "classification", "one class only. Got: '2'"),
        (column(["a"] * 9), "classification", "one class only. Got: 'a'"),
        (column([f"id{row}" for row in range(9)]), "classification", "too many classes.*9 classes in 9 rows"),
        (column(["low", "high"] * 4), "regression", "'y' must hold finite numbers.*'low' in row 0"),
        (column([1.0, np.inf, 2.0]), "regression", "'y' must hold finite numbers.*inf.* in row 1"),
        (column([1.0, np.nan, 2.0]), "regression", "'y' is missing for 1 rows.*row 1"),
        (column([], "float64"), "regression", "constant. Got: no rows"),
    ],
)
def test_targets_that_cannot_be_learned(series: pd.Series, task: str, message: str) -> None:
    with pytest.raises(BadTable, match=message):
        fit_target(series, task)


@pytest.mark.parametrize(
    ("values", "task"), [([0.1, 0.7, 1 / 3], "regression"), (["b", "a", "b", "a"], "classification")]
)
def test_a_saved_target_is_the_same(values: list[object], task: str) -> None:
    target = fit_target(column(values), task)
    config = json.loads(json.dumps(target.to_config()))
    assert target_from_config(config) == target
    damaged = [None, [], {}, {**config, "task": "other"}, {**config, "name": 3}]
    damaged += [{key: value for key, value in config.items() if key != lost} for lost in config]
    damaged += [{**config, "std": 0, "classes": ["a"]}, {**config, "mean": float("inf"), "classes": ["a", "a"]}]
    damaged += [{**config, "mean": "1", "classes": [1, 2]}, {**config, "mean": True, "classes": "ab"}]
    for bad in damaged:
        with pytest.raises(BadConfig):
            target_from_config(bad)


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("n", [10, 11, 57, 1000])
def test_parts_are_all_rows_each_once_and_follow_the_seed(task: str, n: int) -> None:
    y = RNG.integers(0, 3, n) if task == "classification" else RNG.normal(size=n)
    parts = split(n, y, task, seed=3)
    assert np.array_equal(np.sort(np.concatenate([parts.train, parts.valid, parts.test])), np.arange(n))
    assert (len(parts.valid), len(parts.test)) == (round(0.15 * n), round(0.15 * n))
    again, other = split(n, y, task, seed=3), split(n, y, task, seed=4)
    assert np.array_equal(parts.test, again.test)
    assert np.array_equal(parts.valid, again.valid)
    assert not (np.array_equal(parts.test, other.test) and np.array_equal(parts.valid, other.valid))


@pytest.mark.parametrize("seed", range(5))
def test_each_part_has_its_share_of_each_class(seed: int) -> None:
    y = RNG.permutation(np.repeat([0, 1, 2, 3], [600, 300, 90, 10]))
    parts = split(1000, y, "classification", seed, (0.6, 0.2, 0.2))
    for rows, share in ((parts.train, 0.6), (parts.valid, 0.2), (parts.test, 0.2)):
        assert np.abs(np.bincount(y[rows], minlength=4) - share * np.array([600, 300, 90, 10])).max() <= 2


@pytest.mark.parametrize("seed", range(5))
def test_each_part_has_its_share_of_each_tenth(seed: int) -> None:
    y = RNG.standard_cauchy(1000)
    parts = split(1000, y, "regression", seed)
    tenth = np.searchsorted(np.quantile(y, np.arange(0.1, 0.95, 0.1)), y)
    for rows, share in ((parts.train, 70), (parts.valid, 15), (parts.test, 15)):
        assert np.abs(np.bincount(tenth[rows], minlength=10) - share).max() <= 2


def test_every_row_is_as_likely_as_any_other_to_be_tested() -> None:
    y = np.arange(40) % 4
    chosen = sum(np.bincount(split(40, y, "classification", seed).test, minlength=40) for seed in range(2000))
    # Each count is close to binomial (2000, 0.15): five and a half standard deviations fail once in 10⁶ over 40 rows.
    assert np.abs(chosen - 2000 * 0.15).max() < 5.5 * np.sqrt(2000 * 0.15 * 0.85)


def test_every_class_is_trained_on_and_singletons_are_counted() -> None:
    y = np.array([0] * 20 + [1] * 20 + [2] * 2 + [3] + [4])
    for seed in range(20):
        parts = split(len(y), y, "classification", seed)
        assert set(y[parts.train]) == {0, 1, 2, 3, 4}
        assert parts.singletons == 2


def test_a_part_may_be_empty_if_that_is_asked_for() -> None:
    parts = split(20, np.arange(20.0), "regression", 0, (0.8, 0.2, 0.0))
    assert (len(parts.train), len(parts.valid), len(parts.test)) == (16, 4, 0)


def test_splits_that_cannot_be_made() -> None:
    with pytest.raises(InvalidArgument, match=f"at least {FEWEST_ROWS} rows. Got: 3"):
        split(3, np.arange(3.0), "regression", 0)
    with pytest.raises(InvalidArgument, match="too few rows for this split"):
        split(12, np.arange(12) % 9, "classification", 0, (0.4, 0.3, 0.3))
    for fractions in ((0.5, 0.2, 0.2), (0.0, 0.5, 0.5), (1.2, -0.1, -0.1)):
        with pytest.raises(InvalidArgument, match="fractions"):
            split(20, np.arange(20.0), "regression", 0, fractions)
    with pytest.raises(InvalidArgument, match="one of two tasks"):
        split(20, np.arange(20.0), "clustering", 0)
    with pytest.raises(ShapeMismatch, match="20 rows"):
        split(20, np.arange(19.0), "regression", 0)

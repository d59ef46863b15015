"""Columns become features as scikit-learn's own imputer, scaler and one-hot encoder make them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from bayesrule.data import BadConfig, BadTable, Encoder, EncodingReport
from bayesrule.data.features import FARTHEST, MOST_CATEGORIES, moments
from bayesrule.errors import BayesruleError


def table(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "plain": rng.normal(3.0, 20.0, rows),
            "holes": np.where(rng.random(rows) < 0.3, np.nan, rng.exponential(size=rows)),
            "count": rng.integers(0, 1000, rows),
            "city": rng.choice(["Rome", "Oslo", "Lima", "Ürümqi"], rows),
            "maybe": pd.Series(rng.choice(["yes", "no", None], rows), dtype="str"),
            "switch": rng.random(rows) < 0.5,
        }
    )


def one_hot(frame: pd.DataFrame) -> np.ndarray:
    return OneHotEncoder(sparse_output=False).fit_transform(frame)


def test_numbers_as_scikit_learn_scales_them() -> None:
    frame = table()[["plain", "holes", "count"]]
    features, report = Encoder.fit(frame).encode(frame)
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit_transform(frame)
    flag = frame["holes"].isna().to_numpy(dtype=float)
    expected = np.stack([scaled[:, 0], scaled[:, 1], flag, scaled[:, 2]], axis=1)
    assert features.dtype == np.float32
    np.testing.assert_allclose(features, expected, rtol=3e-7, atol=1e-7)
    assert report == EncodingReport(60, {"holes": int(flag.sum())})


def test_new_numbers_are_scaled_by_the_statistics_of_training() -> None:
    train, new = table()[["plain", "holes"]], table(20, seed=1)[["plain", "holes"]]
    oracle = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit(train)
    features = Encoder.fit(train).encode(new).features
    np.testing.assert_allclose(features[:, :2], oracle.transform(new), rtol=3e-7, atol=1e-7)


def test_categories_as_scikit_learn_encodes_them() -> None:
    frame = table()[["city", "switch"]]
    encoder = Encoder.fit(frame)
    assert np.array_equal(encoder.encode(frame).features, one_hot(frame.astype(str)))
    assert encoder.feature_names == (
        *("city=Lima", "city=Oslo", "city=Rome", "city=Ürümqi"),
        *("switch=False", "switch=True"),
    )


def test_a_missing_category_is_a_category() -> None:
    frame = table()[["maybe"]]
    encoder = Encoder.fit(frame)
    assert encoder.feature_names == ("maybe=no", "maybe=yes", "maybe (missing)")
    assert np.array_equal(encoder.encode(frame).features, one_hot(frame.fillna("zzz")))


def test_unseen_categories_and_newly_missing_values_are_counted() -> None:
    encoder = Encoder.fit(table()[["plain", "city"]])
    new = pd.DataFrame(
        {"city": ["Rome", "Bonn", None, "Paris"], "plain": [np.nan, 3.0, None, 4.0], "extra": [1, 2, 3, 4]}
    )
    features, report = encoder.encode(new)
    assert features[:, 1:].sum(axis=1).tolist() == [1, 0, 0, 0]
    column = encoder.columns[0]
    assert features[0, 0] == features[2, 0] == np.float32((column.median - column.mean) / column.std)
    assert report == EncodingReport(4, {"plain": 2, "city": 1}, {"city": 2}, {}, ("extra",))
    doubled = report + report
    assert doubled == EncodingReport(8, {"plain": 4, "city": 2}, {"city": 4}, {}, ("extra",))
    assert "city: 2 of 4 values of categories" in " ".join(report.lines())
    assert report.lines()[-1] == "Ignored columns: extra."


def test_many_categories_share_a_feature_beyond_the_most_frequent() -> None:
    counts = {f"c{place:03d}": 2 + place % 5 for place in range(150)}
    cells = [name for name, count in counts.items() for _ in range(count)]
    encoder = Encoder.fit(pd.DataFrame({"c": cells}))
    kept = pd.Series(counts).sort_index().sort_values(ascending=False, kind="stable").index[:MOST_CATEGORIES]
    assert encoder.feature_names == (*(f"c={name}" for name in sorted(kept)), "c (other)")
    features = encoder.encode(pd.DataFrame({"c": [kept[0], "c000", "never seen"]})).features
    assert features[:, -1].tolist() == [0, 1, 1]
    assert features.sum(axis=1).tolist() == [1, 1, 1]
    assert "100 most frequent" in encoder.notes()[0]


def test_columns_that_say_nothing_are_dropped_with_a_reason() -> None:
    rows = 40
    frame = pd.DataFrame(
        {
            "x": np.arange(rows) % 7,
            "id": [f"user-{row}" for row in range(rows)],
            "one": 1.0,
            "word": "same",
            "gone": np.nan,
            "empty": pd.Series([None] * rows, dtype="str"),
            "Unnamed: 0": np.arange(rows),
            "year": np.arange(rows) + 1980,
            "cabin": [f"C{row}" if row % 2 else None for row in range(rows)],
        }
    )
    encoder = Encoder.fit(frame)
    assert encoder.feature_names == ("x", "year", "cabin (missing)")
    assert {name: why[:20] for name, why in encoder.dropped.items()} == {
        "id": "nearly every value i",
        "one": "it is constant",
        "word": "it is constant",
        "gone": "it has no values",
        "empty": "it has no values",
        "Unnamed: 0": "it has no name and c",
    }
    assert len(encoder.notes()) == 7
    assert encoder.encode(frame[["cabin", "year", "x"]]).features[:, 2].tolist() == [1, 0] * (rows // 2)
    with pytest.raises(BadTable, match="No column can be used"):
        Encoder.fit(frame[["id", "one"]])


def test_a_value_that_is_present_or_missing_keeps_its_flag() -> None:
    features = (
        Encoder.fit(pd.DataFrame({"x": [5.0, np.nan, 5.0, np.nan]})).encode(pd.DataFrame({"x": [5.0, np.nan]})).features
    )
    assert features.tolist() == [[0, 0], [0, 1]]


def test_absurd_numbers_are_clipped_and_counted() -> None:
    encoder = Encoder.fit(pd.DataFrame({"x": [0.0, 1.0, 2.0], "tiny": [0.0, 1e-300, 2e-300]}))
    features, report = encoder.encode(pd.DataFrame({"x": [1e50, -1e50, 1.0], "tiny": [1e90, 1.0, 1e-300]}))
    assert features[:2, 0].tolist() == [FARTHEST, -FARTHEST]
    assert features[2].tolist() == [0, 0]
    assert report.clipped == {"x": 2, "tiny": 2}


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1.0, 1e90])
def test_spreads_neither_over_nor_underflow(scale: float) -> None:
    values = np.random.default_rng(0).normal(2.0, 1.0, 1000)
    mean, std = moments(values * scale)
    np.testing.assert_allclose([mean / scale, std / scale], [values.mean(), values.std()], rtol=1e-12)


def test_text_where_numbers_were_names_column_row_and_value() -> None:
    encoder = Encoder.fit(table()[["plain"]])
    new = pd.DataFrame({"plain": ["1.5", "?", "about two"]}, index=["a", "b", "c"])
    with pytest.raises(BadTable, match=r"Column 'plain' .* as it did in training.*'about two' in row c"):
        encoder.encode(new)
    assert encoder.encode(new[:2]).report.imputed == {"plain": 1}
    for bad in (np.inf, -np.inf, 1e200):
        with pytest.raises(BadTable, match=r"Column 'plain' must hold finite numbers.*in row 1"):
            encoder.encode(pd.DataFrame({"plain": [0.0, bad]}))
        with pytest.raises(BadTable, match=r"Column 'plain' must hold finite numbers.*in row 1"):
            Encoder.fit(pd.DataFrame({"plain": [0.0, bad]}))


def test_missing_and_repeated_columns() -> None:
    encoder = Encoder.fit(table())
    with pytest.raises(BadTable, match=r"lacks 2 of the columns.*'plain', 'city'.*Did you mean 'Plains'\?"):
        encoder.encode(table().rename(columns={"plain": "Plains"}).drop(columns="city"))
    with pytest.raises(BadTable, match="same name"):
        Encoder.fit(pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]))
    with pytest.raises(BadTable, match="same name"):
        Encoder.fit(pd.DataFrame([[1, 2], [3, 4]], columns=[1, "1"]))


def test_a_number_where_text_was_is_the_category_it_spells() -> None:
    encoder = Encoder.fit(pd.DataFrame({"code": pd.Categorical([1, 2, 2, 1, 3, 3])}))
    assert encoder.kinds == {"code": "text"}
    assert encoder.encode(pd.DataFrame({"code": [2.0, 3.0]})).features.tolist() == [[0, 1, 0], [0, 0, 1]]
    assert encoder.encode(pd.DataFrame({"code": ["2", " 3 "]})).features.tolist() == [[0, 1, 0], [0, 0, 1]]


def test_objects_are_numbers_when_each_of_them_is_one() -> None:
    frame = pd.DataFrame(
        {"n": pd.Series([1, 2.5, None, np.int8(3)], dtype=object), "m": pd.Series([1, "a", 1, "a"], dtype=object)}
    )
    assert Encoder.fit(frame).kinds == {"n": "number", "m": "text"}


def test_the_saved_encoder_encodes_bit_for_bit_alike() -> None:
    encoder = Encoder.fit(table().assign(id=[str(row) for row in range(60)]))
    again = Encoder.from_config(json.loads(json.dumps(encoder.to_config())))
    assert again == encoder
    assert np.array_equal(again.encode(table(seed=5)).features, encoder.encode(table(seed=5)).features)


def damaged(value: Any) -> list[Any]:
    """The value with each of its parts, at any depth, removed or replaced by what does not belong there."""
    if isinstance(value, dict):
        without = [{k: v for k, v in value.items() if k != key} for key in value]
        return without + [{**value, key: bad} for key in value for bad in damaged(value[key])]
    if isinstance(value, list):
        return [None, "text", 3, value + value] + [
            [*value[:i], bad, *value[i + 1 :]] for i in range(len(value)) for bad in damaged(value[i])
        ]
    return [None, [], {}, float("nan"), 10**400] + ([] if isinstance(value, str) else ["text"])


def test_a_damaged_encoder_is_an_error_that_says_so() -> None:
    config = json.loads(json.dumps(Encoder.fit(table()).to_config()))
    broken = [None, [], "text", {}, *damaged({"columns": config["columns"]})]
    broken += [{**config, "columns": columns} for columns in damaged(config["columns"])] + [{**config, "columns": []}]
    broken += [{**config, "dropped": bad} for bad in (None, [], "x", {"a": 3})]
    assert len(broken) > 150
    for bad in broken:
        with pytest.raises(BadConfig):
            Encoder.from_config(bad)
    flipped = {**config, "columns": [{**config["columns"][0], "std": 0.0}]}
    with pytest.raises(BayesruleError, match="positive"):
        Encoder.from_config(flipped)

"""The scikit-learn estimators: its own checks, and what its tools do with them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_iris
from sklearn.exceptions import SkipTestWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

import bayesrule as br
from bayesrule.errors import InvalidArgument
from bayesrule.train.member_loop import MemberLoop

Estimator = br.BayesianClassifier | br.BayesianRegressor
FEW: dict[str, Any] = {"hidden": (16,), "temperatures": (0.01,), "folds": 2, "draws": 10}


class Hasty:
    """Mixed into an estimator that trains for too few steps to be any good, and says so to scikit-learn."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        for kind in (tags.classifier_tags, tags.regressor_tags):
            if kind is not None:
                kind.poor_score = True
        return tags


class HastyClassifier(Hasty, br.BayesianClassifier):
    pass


class HastyRegressor(Hasty, br.BayesianRegressor):
    pass


HASTY = [HastyClassifier(steps=2, **FEW), HastyRegressor(steps=2, **FEW)]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")  # array API checks, where scipy has it off
@parametrize_with_checks(HASTY)
def test_scikit_learns_checks(estimator: Estimator, check: Callable[[Estimator], None]) -> None:
    check(estimator)


@pytest.mark.slow
@pytest.mark.parametrize("estimator", [br.BayesianClassifier(), br.BayesianRegressor()], ids=repr)
def test_scikit_learns_checks_with_the_defaults(estimator: Estimator) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SkipTestWarning)
        check_estimator(estimator)


@pytest.fixture(scope="module")
def iris() -> tuple[np.ndarray, np.ndarray]:
    x, y = load_iris(return_X_y=True)
    return x, np.array(["setosa", "versicolor", "virginica"])[y]


@pytest.fixture(scope="module")
def diabetes() -> tuple[np.ndarray, np.ndarray]:
    return load_diabetes(return_X_y=True, scaled=False)


@pytest.fixture(scope="module")
def regressor(diabetes: tuple[np.ndarray, np.ndarray]) -> br.BayesianRegressor:
    return br.BayesianRegressor(steps=100, **FEW).fit(*diabetes)


def test_a_pipeline_searched_over(iris: tuple[np.ndarray, np.ndarray]) -> None:
    pipeline = make_pipeline(PolynomialFeatures(2), br.BayesianClassifier(steps=30, **FEW))
    grid = {"bayesianclassifier__posterior": [br.Diagonal(0.05), br.MatrixNormal(0.05)]}
    search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss", error_score="raise").fit(*iris)
    assert search.score(*iris) > -0.7
    assert set(search.predict(iris[0])) <= set(iris[1])
    posteriors = search.best_estimator_[-1].members_.members[0].conversion.recipe.posterior
    assert set(posteriors.values()) == {search.best_params_["bayesianclassifier__posterior"]}


def test_cross_validation_of_a_regression(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    assert cross_val_score(br.BayesianRegressor(steps=100, **FEW), *diabetes, cv=2).mean() > 0.25


def test_clones_fit_alike(iris: tuple[np.ndarray, np.ndarray]) -> None:
    first = br.BayesianClassifier(steps=5, prior=br.LearnedNormal(), **FEW)
    second = clone(first)
    probs = [model.fit(*iris).predict_proba(iris[0]) for model in (first, second)]
    assert np.array_equal(*probs)
    other = clone(first).set_params(random_state=1).fit(*iris).predict_proba(iris[0])
    assert not np.array_equal(probs[0], other)


def test_probabilities_belong_to_the_classes_in_order(iris: tuple[np.ndarray, np.ndarray]) -> None:
    model = br.BayesianClassifier(steps=120, **FEW).fit(*iris)
    probs = model.predict_proba(iris[0])
    assert list(model.classes_) == ["setosa", "versicolor", "virginica"]
    np.testing.assert_allclose(probs.sum(1), 1, atol=1e-12)
    assert (model.predict(iris[0]) == model.classes_[probs.argmax(1)]).all()
    np.testing.assert_allclose(probs, model.predictive(iris[0]).probs, atol=1e-12)
    assert model.score(*iris) > 0.85


def test_predictions_of_numbers_are_in_their_own_units(
    regressor: br.BayesianRegressor, diabetes: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = diabetes
    mean, std = regressor.predict(x, return_std=True)
    standardised = regressor.predictive(x)
    np.testing.assert_allclose(mean, y.mean() + y.std() * standardised.mean[:, 0].numpy(), rtol=1e-9)
    np.testing.assert_allclose(std, y.std() * standardised.std[:, 0].numpy(), rtol=1e-9)
    np.testing.assert_array_equal(mean, regressor.predict(x))
    assert np.corrcoef(mean, y)[0, 1] > 0.5


def test_quantiles_are_those_of_the_mixture(
    regressor: br.BayesianRegressor, diabetes: tuple[np.ndarray, np.ndarray]
) -> None:
    x, y = diabetes[0][:6], diabetes[1]
    found = regressor.predict_quantiles(x, levels=(0.1, 0.6))
    assert found.shape == (6, 2)
    means, log_stds, logits = np.split(regressor.predictive(x).outputs.numpy(), 3, axis=-1)
    weights = np.exp(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)) / len(logits)
    for row in range(6):
        at = (found[row] - y.mean()) / y.std()
        parts = [weights[:, row, None] * stats.norm.cdf(level, means[:, row, None], np.exp(log_stds[:, row, None]))
                 for level in at]  # fmt: skip
        np.testing.assert_allclose([part.sum() for part in parts], [0.1, 0.6], atol=1e-9)


def test_data_frames_keep_their_names(diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    frame = pd.DataFrame(diabetes[0], columns=[f"column {number}" for number in range(10)])
    model = br.BayesianRegressor(steps=3, **FEW).fit(frame, diabetes[1])
    assert list(model.feature_names_in_) == list(frame.columns)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame.rename(columns={"column 0": "another"}))


@pytest.mark.parametrize("scale", [1e-200, 1e-9, 1.0, 1e200])
def test_units_do_not_matter(scale: float, diabetes: tuple[np.ndarray, np.ndarray]) -> None:
    x, y = diabetes[0][:50], diabetes[1][:50]
    plain = br.BayesianRegressor(steps=5, **FEW).fit(x, y).predict(x)
    scaled = br.BayesianRegressor(steps=5, **FEW).fit(scale * x, scale * y).predict(scale * x)
    np.testing.assert_allclose(scaled / scale, plain, rtol=1e-4)


def test_constant_columns_and_targets_are_no_trouble() -> None:
    x = np.c_[np.arange(12.0), np.full(12, 3.7)]
    model = br.BayesianRegressor(steps=5, **FEW).fit(x, np.full(12, 1e6))
    mean, std = model.predict([[1e300, -1e300]], return_std=True)
    assert np.isfinite(mean).all()
    assert np.isfinite(std).all()


def test_settings_reach_the_networks(iris: tuple[np.ndarray, np.ndarray]) -> None:
    options = {"hidden": [5], "temperatures": [0.5, 0.1, 0.01], "folds": 3, "steps": 2, "draws": 9}
    model = br.BayesianClassifier(**options, random_state=np.random.RandomState(3)).fit(*iris)
    settings = model.members_.settings
    assert (settings.hidden, settings.temperatures, settings.folds) == ((5,), (0.5, 0.1, 0.01), 3)
    assert len(model.members_.members) == 9
    assert len(model.predictive(iris[0]).outputs) == pytest.approx(9, abs=5)


@pytest.mark.parametrize("wrong", [{"hidden": 5}, {"folds": "two"}, {"draws": 0}, {"steps": -1}, {"hidden": (0,)}])
def test_parameters_are_looked_at_in_fit(wrong: dict[str, Any], iris: tuple[np.ndarray, np.ndarray]) -> None:
    model = br.BayesianClassifier(**wrong)
    with pytest.raises(InvalidArgument):
        model.fit(*iris)


def test_ctrl_c_ends_a_search_too(iris: tuple[np.ndarray, np.ndarray], monkeypatch: pytest.MonkeyPatch) -> None:
    step = MemberLoop._train_step

    def interrupted(loop: MemberLoop) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return step(loop)

    monkeypatch.setattr(MemberLoop, "_train_step", interrupted)
    search = GridSearchCV(br.BayesianClassifier(steps=5, **FEW), {"draws": [1, 2]}, cv=2)
    with pytest.raises(KeyboardInterrupt):
        search.fit(*iris)


@pytest.mark.parametrize("missing", ["sklearn", "pandas"])
def test_the_package_is_imported_without_scikit_learn(missing: str) -> None:
    code = f"""
import sys
sys.modules[{missing!r}] = None
import bayesrule as br
br.KTied(2)
try:
    br.BayesianClassifier
    print("there")
except br.errors.Unsupported as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    expected = "there" if missing == "pandas" else "pip install 'bayesrule[tabular]'"
    assert expected in done.stdout


def test_import_alone_brings_no_scikit_learn() -> None:
    code = "import sys, bayesrule; print('sklearn' in sys.modules, 'pandas' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]

"""The charts of a report show what the data say: bins, coverage, spectra, pixels, axes."""

from __future__ import annotations

import base64
import math
import zlib
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import scipy.stats

from bayesrule.report import Classification, Regression, png, render
from bayesrule.report.axis import Axis, limits
from bayesrule.report.intervals import central_coverage
from bayesrule.report.learning_curve import best_epoch
from bayesrule.report.reliability import accuracy_when_answering, wilson
from bayesrule.report.spectrum import shrunk, spectrum
from report_samples import check, classification, history, regression, stds


def test_reliability_shows_the_share_of_every_bin() -> None:
    predictions = classification(n=300).predictions
    assert isinstance(predictions, Classification)
    sure, right = predictions.probs.max(1), predictions.probs.argmax(1) == predictions.targets
    text = render(classification(n=300)).replace("\u00a0", " ")
    for lower in range(10):
        held = (sure > lower / 10) & (sure <= (lower + 1) / 10)
        if 0 < right[held].sum() < held.sum():  # else it is written without digits
            share, claim = 100 * right[held].mean(), 100 * sure[held].mean()
            assert f"{held.sum()} examples: said {claim:.1f} %, right {share:.1f} %" in text


def test_answering_the_surest_first() -> None:
    probs = np.array([[0.6, 0.4], [0.9, 0.1], [0.2, 0.8]])
    predictions = Classification(probs, np.array([1, 0, 1]), ["a", "b"])
    np.testing.assert_allclose(accuracy_when_answering(predictions), [1, 1, 2 / 3], rtol=1e-15)


@pytest.mark.parametrize(("hits", "n"), [(0, 7), (3, 10), (97, 100), (5, 5)])
def test_whiskers_are_score_intervals(hits: int, n: int) -> None:
    exact = scipy.stats.binomtest(hits, n).proportion_ci(method="wilson")
    np.testing.assert_allclose(wilson(hits / n, n), (exact.low, exact.high), atol=1e-7)


def test_coverage_of_every_central_interval() -> None:
    predictions = regression().predictions
    assert isinstance(predictions, Regression)
    nominal, observed = np.array(central_coverage(predictions)).T
    np.testing.assert_allclose(nominal, np.arange(1, 10) / 10, atol=1e-12)
    rank = scipy.stats.norm.cdf(
        predictions.targets, predictions.mean, np.hypot(predictions.epistemic_std, predictions.aleatoric_std)
    )
    expected = [np.mean(np.abs(rank - 0.5) <= level / 2) for level in nominal]
    np.testing.assert_allclose(observed, expected, atol=1e-12)


def test_the_spectrum_is_that_of_the_matrix() -> None:
    matrix = stds(20, 30)
    values = scipy.linalg.svdvals(matrix)
    found = spectrum(matrix)
    np.testing.assert_allclose(found.shares, (values**2 / (values**2).sum())[:8], rtol=1e-10)
    np.testing.assert_allclose(
        np.linalg.norm(matrix - found.approximation(2)), np.sqrt((values[2:] ** 2).sum()), rtol=1e-10
    )
    shown = [f"{100 * (values[:rank] ** 2).sum() / (values**2).sum():.2f} %" for rank in (1, 2, 3)]
    assert all(words in check(classification()).text.replace("\u00a0", " ") for words in shown)


def test_a_large_matrix_has_its_spectrum_too(monkeypatch: pytest.MonkeyPatch) -> None:
    decaying = stds(60, 1) @ stds(1, 50) + 0.05 * np.diag(0.5 ** np.arange(60))[:, :50]
    exact = spectrum(decaying)
    monkeypatch.setattr("bayesrule.report.spectrum.EXACT_BELOW", 0)
    np.testing.assert_allclose(spectrum(decaying).shares, exact.shares, rtol=1e-8)


def test_large_matrices_are_drawn_small() -> None:
    matrix = stds(200, 3)
    small = shrunk(matrix, most=50)
    np.testing.assert_allclose(small, matrix.reshape(50, 4, 3).mean(1), rtol=1e-12)
    assert len(render(replace(classification(), posterior_stds={"w": stds(3000, 400)}))) < 300_000


def test_pictures_hold_their_pixels() -> None:
    shares = np.array([[0.0, 1.0, 0.2], [np.nan, -1.0, 9.0]])
    content = base64.b64decode(png.ink(shares).partition(",")[2])
    start = content.index(b"IDAT") + 4
    lines = np.frombuffer(zlib.decompress(content[start:]), np.uint8).reshape(2, 7)
    np.testing.assert_array_equal(lines[:, 2::2], [[0, 255, 51], [0, 0, 255]])


def test_the_best_epoch_is_marked() -> None:
    points = history(40)
    lowest = min(points, key=lambda point: point.valid_nll or math.inf)
    assert best_epoch(points) == lowest
    page = check(replace(classification(), history=points))
    assert f"Lowest validation NLL: {lowest.valid_nll:.3f}, at epoch {lowest.epoch} (circle)" in page.text
    assert 1 < lowest.epoch < 40
    assert best_epoch(history(valid=False)) is None


@pytest.mark.parametrize(
    ("low", "high", "log"),
    [(0.0, 1.0, False), (-3e7, 12.0, False), (1e-5, 4.0, True), (3.0, 4.0, True), (0, 1e-9, False)],
)
def test_ticks_lie_on_the_axis(low: float, high: float, log: bool) -> None:
    axis = Axis(low, high, 0, 100, log)
    ticks = axis.ticks()
    assert 1 <= len(ticks) <= 12
    assert all(low - 1e-9 * (high - low) <= tick <= high + 1e-9 * (high - low) for tick in ticks)
    places = [axis.place(tick) for tick in ticks]
    assert places == sorted(places)


def test_limits_are_never_equal() -> None:
    for values in ([], [3.0], [0.0, 0.0], [math.nan, math.inf], [1e12, 1e12 + 1e-4]):
        low, high = limits(values)
        assert low < high

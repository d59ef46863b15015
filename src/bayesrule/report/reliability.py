"""Is it right as often as it says? The reliability diagram, and what is gained by declining to answer."""

from __future__ import annotations

import math

import numpy as np
import torch

from bayesrule.metrics import ReliabilityBins, reliability_bins
from bayesrule.report.axis import thinned
from bayesrule.report.numbers import percent, plural, short_count, tick_percent
from bayesrule.report.plot import BELOW, LEFT, RIGHT, TOP, WIDTH, Figure, Plot, standard_plot
from bayesrule.report.predictions import Classification
from bayesrule.report.svg import circle, drawing, element, line, rectangle, text

BINS = 10
HISTOGRAM_TOP, HISTOGRAM_BOTTOM = 276.0, 334.0


def calibration_bins(predictions: Classification) -> ReliabilityBins:
    """Ten bins of equal width."""
    probs, targets = torch.from_numpy(predictions.probs), torch.from_numpy(predictions.targets.astype(np.int64))
    return reliability_bins(probs, targets, bins=BINS)


def reliability_figure(predictions: Classification) -> Figure:
    """Accuracy against confidence, with 95 % Wilson intervals, above how many examples each bin holds."""
    bins = calibration_bins(predictions)
    plot = standard_plot((0, 1), (0, 1))
    held = [index for index in range(BINS) if bins.count[index] > 0]
    parts = [
        _frame(plot),
        *(_bin(plot, bins, index) for index in held),
        line(plot.x.start, plot.y.start, plot.x.end, plot.y.end, "ideal"),
        *(_histogram_bar(plot, bins, index) for index in held),
        text((LEFT + RIGHT) / 2, HISTOGRAM_BOTTOM + 40, "how sure it was of its answer", "label"),
    ]
    caption = (
        "Bars should end at their dots, on the dashed line. Whiskers: where the true rate may lie (95 %). "
        "Below: how many examples each bar stands for."
    )
    words = "; ".join(_bin_words(bins, index) for index in held)
    legend = [("bar", "was right"), ("claim", "how sure it said it was")]
    return Figure(
        "Is it right as often as it says?",
        drawing(WIDTH, HISTOGRAM_BOTTOM + BELOW, f"Reliability. {words}", *parts),
        caption,
        legend,
    )


def _frame(plot: Plot) -> str:
    rows = [
        line(plot.x.start, plot.y.place(tick), plot.x.end, plot.y.place(tick), "grid")
        + text(plot.x.start - 7, plot.y.place(tick) + 4, tick_percent(tick), "tick", "end")
        for tick in (0, 0.25, 0.5, 0.75, 1)
    ]
    columns = [
        text(plot.x.place(tick), HISTOGRAM_BOTTOM + 18, tick_percent(tick), "tick")
        for tick in (0, 0.2, 0.4, 0.6, 0.8, 1)
    ]
    base = line(LEFT, HISTOGRAM_BOTTOM, RIGHT, HISTOGRAM_BOTTOM, "axis")
    label = text(0, TOP - 18, "share that was right", "label", "start")
    return element("g", *rows, *columns, base, label)


def _edges(plot: Plot, bins: ReliabilityBins, index: int) -> tuple[float, float]:
    left, right = (plot.x.place(float(edge)) for edge in bins.edges[index : index + 2])
    return left + 2, right - left - 4


def _bin(plot: Plot, bins: ReliabilityBins, index: int) -> str:
    left, width = _edges(plot, bins, index)
    accuracy, confidence = float(bins.accuracy[index]), float(bins.confidence[index])
    top = plot.y.place(accuracy)
    low, high = wilson(accuracy, int(bins.count[index]))
    middle = left + width / 2
    return element(
        "g",
        rectangle(left, top, width, plot.y.start - top, "bar", _bin_words(bins, index)),
        line(middle, plot.y.place(low), middle, plot.y.place(high), "whisker"),
        line(middle - 4, plot.y.place(low), middle + 4, plot.y.place(low), "whisker"),
        line(middle - 4, plot.y.place(high), middle + 4, plot.y.place(high), "whisker"),
        circle(middle, plot.y.place(confidence), 3, "claim", f"mean confidence {percent(confidence)}"),
    )


def _bin_words(bins: ReliabilityBins, index: int) -> str:
    confidence, accuracy = percent(float(bins.confidence[index])), percent(float(bins.accuracy[index]))
    return f"{plural(int(bins.count[index]), 'example')}: said {confidence}, right {accuracy}"


def _histogram_bar(plot: Plot, bins: ReliabilityBins, index: int) -> str:
    left, width = _edges(plot, bins, index)
    share = int(bins.count[index]) / int(bins.count.max())
    height = max(1.0, share * (HISTOGRAM_BOTTOM - HISTOGRAM_TOP - 14))
    top = HISTOGRAM_BOTTOM - height
    return rectangle(left, top, width, height, "count") + text(
        left + width / 2, top - 4, short_count(int(bins.count[index])), "tick small"
    )


def wilson(share: float, examples: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % score interval ``(p + z²/2n ± z√(p(1−p)/n + z²/4n²)) / (1 + z²/n)``   [Wilson 1927]."""
    centre = (share + z * z / (2 * examples)) / (1 + z * z / examples)
    half = z * math.sqrt(share * (1 - share) / examples + (z / (2 * examples)) ** 2) / (1 + z * z / examples)
    return max(0.0, centre - half), min(1.0, centre + half)


def accuracy_when_answering(predictions: Classification) -> np.ndarray:
    """Entry k: the share that is right among the k + 1 answers it is surest of."""
    order = np.argsort(-predictions.confidence, kind="stable")
    return np.cumsum(predictions.correct[order]) / np.arange(1, len(order) + 1)


def declining_figure(predictions: Classification) -> Figure:
    """Accuracy on the answered share, from the surest answers to all of them."""
    accuracy = accuracy_when_answering(predictions)
    # The share over the first few answers is mostly chance: the curve begins where a twentieth is answered.
    first = max(0, math.ceil(len(accuracy) / 20) - 1)
    chosen = first + thinned(len(accuracy) - first, 300)
    low = min(float(accuracy[chosen].min()), 0.999)
    floor = math.floor(20 * (low - 0.01)) / 20
    plot = standard_plot((0, 1), (max(0.0, floor), 1.0), bottom=HISTOGRAM_BOTTOM)
    points = [((index + 1) / len(accuracy), float(accuracy[index])) for index in chosen]
    parts = [
        plot.frame(
            "share of examples it answers, surest first", "right among those it answers", tick_percent, tick_percent
        ),
        plot.curve(points, "stroke-1"),
    ]
    half = accuracy[max(0, math.ceil(len(accuracy) / 2) - 1)]
    caption = f"Answering all: {percent(float(accuracy[-1]))} right. Answering the surest half: {percent(float(half))}."
    return Figure(
        "What declining to answer would gain", plot.draw(f"Accuracy by share answered. {caption}", *parts), caption
    )

"""Do the predictive intervals hold the truth? Predictions with intervals, and coverage at every level."""

from __future__ import annotations

import numpy as np

from bayesrule.report.axis import limits, thinned
from bayesrule.report.numbers import number, percent, plural, shortened, tick_percent
from bayesrule.report.plot import Figure, standard_plot
from bayesrule.report.predictions import HIGH, LOW, Regression
from bayesrule.report.reliability import wilson
from bayesrule.report.svg import circle, line

MOST_INTERVALS = 160


def interval_figure(predictions: Regression) -> Figure:
    """The truth against the prediction, each on its 90 % interval."""
    order = np.argsort(predictions.mean, kind="stable")
    shown = predictions.only(order[thinned(len(order), MOST_INTERVALS)])
    low, high, inside = shown.quantile(LOW), shown.quantile(HIGH), shown.inside
    every = limits(np.concatenate([shown.targets, low, high]))
    plot = standard_plot(limits(shown.mean), every)
    name = shortened(predictions.target_name, 30)
    first, last = max(plot.x.low, every[0]), min(plot.x.high, every[1])
    parts = [plot.frame(f"predicted {name}", f"actual {name}")]
    for mean, bottom, top in zip(shown.mean, low, high, strict=True):
        x = plot.x.place(mean)
        parts.append(line(x, plot.y.place(bottom), x, plot.y.place(top), "interval"))
    if first < last:
        parts.append(line(plot.x.place(first), plot.y.place(first), plot.x.place(last), plot.y.place(last), "ideal"))
    for mean, bottom, top, target, held in zip(shown.mean, low, high, shown.targets, inside, strict=True):
        words = f"predicted {number(mean)}, 90 % from {number(bottom)} to {number(top)}, was {number(target)}"
        parts.append(circle(plot.x.place(mean), plot.y.place(target), 2.6, "held" if held else "missed", words))
    covered = f"{int(predictions.inside.sum())} of {plural(len(predictions), 'value')} lie in their interval."
    sample = "" if len(shown) == len(predictions) else f" Shown: {len(shown)}, evenly along the predictions."
    legend = [("interval", "90 % interval"), ("held", "actual value inside"), ("missed", "outside")]
    return Figure(
        "Predictions and what came",
        plot.draw(f"Predicted and actual values. {covered}", *parts),
        covered + sample,
        legend,
    )


def central_coverage(predictions: Regression) -> list[tuple[float, float]]:
    """(nominal, observed) coverage of every central interval whose two ends are among the quantile levels."""
    levels = [float(level) for level in predictions.quantile_levels]
    curve = []
    for lower, level in enumerate(levels):
        partner = [upper for upper, other in enumerate(levels) if level < 0.5 and abs(level + other - 1) < 1e-6]
        for upper in partner:
            below, above = predictions.quantiles[lower], predictions.quantiles[upper]
            held = (below <= predictions.targets) & (predictions.targets <= above)
            curve.append((levels[upper] - level, float(held.mean())))
    return sorted(curve)


def coverage_figure(predictions: Regression) -> Figure:
    """Observed against nominal coverage."""
    plot = standard_plot((0, 1), (0, 1))
    curve = central_coverage(predictions)
    parts = [
        plot.frame(
            "how often an interval should hold the truth", "how often it did hold it", tick_percent, tick_percent
        ),
        line(plot.x.start, plot.y.start, plot.x.end, plot.y.end, "ideal"),
        plot.curve([(0.0, 0.0), *curve, (1.0, 1.0)], "stroke-1"),
    ]
    for nominal, observed in curve:
        x = plot.x.place(nominal)
        low, high = wilson(observed, len(predictions))
        tip = f"{percent(nominal, 0)} intervals held {percent(observed)}"
        parts.append(line(x, plot.y.place(low), x, plot.y.place(high), "whisker"))
        parts.append(circle(x, plot.y.place(observed), 3.2, "mark-1", tip))
    caption = (
        "On the dashed line intervals are as wide as they should be; below it they are too narrow. "
        "Whiskers: where the true rate may lie (95 %)."
    )
    spoken = "; ".join(f"{percent(nominal, 0)}: {percent(observed)}" for nominal, observed in curve)
    return Figure("Coverage at every level", plot.draw(f"Coverage of central intervals. {spoken}", *parts), caption)

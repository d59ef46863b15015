"""Learning curves: likelihood of training and validation data, and the cost of the posterior."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayesrule.report.axis import finite, limits, thinned
from bayesrule.report.content import EpochPoint
from bayesrule.report.numbers import count, number
from bayesrule.report.plot import BOTTOM, TOP, Figure, Plot, standard_plot
from bayesrule.report.svg import circle, line, rectangle, text

MOST_POINTS = 400


def learning_figures(history: Sequence[EpochPoint]) -> list[Figure]:
    """Both charts, or none without a history."""
    if not history:
        return []
    shown = [history[index] for index in thinned(len(history), MOST_POINTS)]
    return [_likelihood(history, shown), _complexity(history, shown)]


def best_epoch(history: Sequence[EpochPoint]) -> EpochPoint | None:
    """The epoch of lowest validation NLL, the first of equals; None where none was measured."""
    measured = [point for point in history if point.valid_nll is not None and np.isfinite(point.valid_nll)]
    return min(measured, key=lambda point: point.valid_nll or 0.0, default=None)


def _likelihood(history: Sequence[EpochPoint], shown: Sequence[EpochPoint]) -> Figure:
    training = [(point.epoch, point.nll) for point in shown]
    validation = [(point.epoch, point.valid_nll) for point in shown if point.valid_nll is not None]
    plot = _plot(shown, [value for _, value in training + validation])
    parts = [plot.frame("epoch", "NLL per example", count_words), plot.curve(training, "stroke-2")]
    legend = [("stroke-2", "training batches")]
    caption = f"Training ended after epoch {count(history[-1].epoch)}."
    if validation:
        parts.append(plot.curve(validation, "stroke-1"))
        legend.append(("stroke-1", "validation"))
    best = best_epoch(history)
    if best is not None and best.valid_nll is not None:
        parts.append(circle(plot.x.place(best.epoch), plot.y.place(best.valid_nll), 5, "marker"))
        caption = f"Lowest validation NLL: {number(best.valid_nll)}, at epoch {count(best.epoch)} (circle). {caption}"
    return Figure("Fit", plot.draw(f"Learning curves. {caption}", *parts), caption, legend)


def _complexity(history: Sequence[EpochPoint], shown: Sequence[EpochPoint]) -> Figure:
    plot = _plot(shown, [point.kl_per_example for point in shown])
    parts = []
    warm_up = [point.epoch for point in history if point.kl_weight < history[-1].kl_weight]
    caption = (
        f"The distance of the posterior from the prior, shared among the training examples: "
        f"{number(history[-1].kl_per_example)} nats each at the end."
    )
    if warm_up:
        end = plot.x.place(max(warm_up))
        parts.append(rectangle(plot.x.start, TOP, end - plot.x.start, BOTTOM - TOP, "shade"))
        if end - plot.x.start > 90:
            parts.append(text((plot.x.start + end) / 2, TOP + 15, "KL weight rising", "tick"))
        parts.append(line(end, TOP, end, BOTTOM, "grid"))
        caption += (
            f" Its weight in the loss rose from {number(history[0].kl_weight)} to {number(history[-1].kl_weight)} "
            f"by epoch {count(max(warm_up) + 1)}."
        )
    parts += [
        plot.frame("epoch", "KL per example", count_words),
        plot.curve([(point.epoch, point.kl_per_example) for point in shown], "stroke-3"),
    ]
    return Figure("Complexity", plot.draw(f"KL divergence by epoch. {caption}", *parts), caption)


def _plot(shown: Sequence[EpochPoint], values: Sequence[float]) -> Plot:
    first, last = shown[0].epoch, shown[-1].epoch
    known = finite(values)
    spans_decades = known.size > 0 and known.min() > 0 and known.max() > 8 * known.min()
    if spans_decades:
        y = (float(known.min()) / 1.15, float(known.max()) * 1.15)
    else:
        y = limits(np.minimum(known, _crown(known)))
    return standard_plot((first - 0.5, last + 0.5) if first == last else (first, last), y, log_y=bool(spans_decades))


def _crown(known: np.ndarray) -> float:
    """Where a linear axis ends although a few early values lie above: they would flatten all that matters."""
    if known.size == 0:
        return 0.0
    usual = float(np.quantile(known, 0.9))
    return usual + max(3 * (usual - float(known.min())), 1e-12)


def count_words(epoch: float) -> str:
    """A tick between two epochs has no name."""
    return count(round(epoch)) if abs(epoch - round(epoch)) < 1e-6 else ""

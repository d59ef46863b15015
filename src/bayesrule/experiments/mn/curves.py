"""The learning curves of Figs. 1–5."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Curve = Sequence[Mapping[str, float]]
PANELS = {
    "accuracy": "test accuracy, pruned (%)",
    "weights_left": "weights left",
    "negative_elbo": "−ELBO per example",
}
LABELS = {"diag": "DIAG", "mn": "MN", "mn-free": "MN + diagonal (bound)", "mn-kronecker": "MN + diagonal (exact)"}
COLOURS = {"diag": "#0072B2", "mn": "#D55E00", "mn-free": "#009E73", "mn-kronecker": "#CC79A7"}
MARKED = 5
"""Curves with at most so many points show them: of a single one there is no line to see."""


def draw_curves(curves: Mapping[str, Sequence[Curve]]) -> Figure:
    """A panel for each quantity: a thin line for every seed, a thick one for their mean."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6))
    axes = figure.subplots(1, len(PANELS))
    for axis, (quantity, label) in zip(axes, PANELS.items(), strict=True):
        for method, runs in curves.items():
            epochs = [point["epoch"] for point in runs[0]]
            for run in runs:
                axis.plot(epochs, [point[quantity] for point in run], color=COLOURS[method], alpha=0.3, linewidth=0.8)
            mean = [fmean(values) for values in zip(*([point[quantity] for point in run] for run in runs), strict=True)]
            marker = "o" if len(epochs) <= MARKED else ""
            axis.plot(epochs, mean, color=COLOURS[method], label=LABELS[method], marker=marker)
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.set_title(label)
        axis.grid(alpha=0.3)
    axes[0].legend()
    figure.tight_layout()
    return figure

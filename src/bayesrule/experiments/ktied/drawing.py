"""The three kinds of figures: spectra, heat maps, curves with their spread."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

COLOURS = {
    "mean-field": "#444444", "1-tied": "#e07b39", "2-tied": "#2a78b5", "3-tied": "#3a9d5d", "means": "#b0b0b0",
    "stds": "#2a78b5",
}  # fmt: skip
MARKERS = {"1-tied": "o", "2-tied": "s", "3-tied": "^"}
"""At every third place, each from another on: curves that coincide can still be told apart."""
LOCAL = "-local"
"""Ends the name of a posterior trained by local noise: the same colour, dashed."""
MOST_ROWS = 512
"""Of a matrix in a heat map: more would not be seen."""


def panels(count: int, *, width: float = 3.4, height: float = 2.8, columns: int = 4) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels."""
    from matplotlib.figure import Figure

    across = min(count, columns)
    down = -(-count // across)
    figure = Figure(figsize=(width * across, height * down), layout="constrained")
    axes = figure.subplots(down, across, squeeze=False).flatten().tolist()
    for unused in axes[count:]:
        unused.set_axis_off()
    return figure, axes[:count]


def draw_spectra(by_layer: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """For each layer the variance explained by each singular value, of means and standard deviations   [Fig. 3]."""
    figure, axes = panels(len(by_layer))
    for axis, (layer, parts) in zip(axes, by_layer.items(), strict=True):
        for part, values in parts.items():
            axis.plot(range(1, len(values) + 1), values, marker="o", ms=3, lw=1, color=COLOURS[part], label=part)
        axis.set(title=layer, xlabel="singular value", ylabel="explained variance", yscale="log")
    axes[0].legend(frameon=False)
    return figure


def draw_heat_maps(matrices: Mapping[str, Mapping[str, Tensor]]) -> Figure:
    """For each layer (a line) its standard deviations and their low-rank approximations, on one scale   [Fig. 4]."""
    names = [(layer, kind) for layer, kinds in matrices.items() for kind in kinds]
    figure, axes = panels(len(names), columns=len(next(iter(matrices.values()))))
    for axis, (layer, kind) in zip(axes, names, strict=True):
        free = matrices[layer]["mean-field"]
        low, high = torch.quantile(_thinned(free).flatten().float(), torch.tensor([0.01, 0.99])).tolist()
        shown = axis.imshow(
            _thinned(matrices[layer][kind]).numpy(), aspect="auto", vmin=low, vmax=high, interpolation="nearest"
        )
        axis.set(title=f"{layer}, {kind}", xlabel="fan-out", ylabel="fan-in")
        figure.colorbar(shown, ax=axis)
    return figure


def _thinned(matrix: Tensor) -> Tensor:
    """Every so many rows."""
    return matrix[:: -(-len(matrix) // MOST_ROWS)]


def draw_curves(
    curves: Mapping[str, Mapping[str, Sequence[Mapping[float, float]]]],
    *,
    x: str,
    y: str,
    logarithmic: bool = False,
) -> Figure:
    """A panel for each title; for each name its runs' mean, and between their extremes a band   [Fig. 7]."""
    figure, axes = panels(len(curves))
    for axis, (title, by_name) in zip(axes, curves.items(), strict=True):
        for name, runs in by_name.items():
            _draw_band(axis, name, runs)
        axis.set(title=title, xlabel=x, ylabel=y, yscale="log" if logarithmic else "linear")
        if logarithmic:
            plain_ticks(axis.yaxis)
        axis.legend(frameon=False, fontsize="small")
    return figure


def plain_ticks(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis: 1, 2, 5, 10, …, or even steps where it spans less than a decade."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    low, high = sorted(axis.get_view_interval())
    axis.set_major_locator(MaxNLocator(5) if high < 10 * low else LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, place: f"{value:g}"))
    axis.set_minor_locator(NullLocator())


def _draw_band(axis: Axes, name: str, runs: Sequence[Mapping[float, float]]) -> None:
    places = sorted(set.intersection(*(set(run) for run in runs)))
    values = torch.tensor([[run[place] for place in places] for run in runs], dtype=torch.float64)
    (line,) = axis.plot(
        places, values.mean(0).tolist(), "--" if name.endswith(LOCAL) else "-", label=name, lw=1.3,
        color=COLOURS.get(name.removesuffix(LOCAL)), marker=MARKERS.get(name), ms=4,
        markevery=(list(MARKERS).index(name), len(MARKERS)) if name in MARKERS else None,
    )  # fmt: skip
    low, high = values.amin(0).tolist(), values.amax(0).tolist()
    axis.fill_between(places, low, high, color=line.get_color(), alpha=0.2, lw=0)

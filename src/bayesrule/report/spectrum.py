"""Posterior standard deviations: their singular values, and how they look beside low-rank approximations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from bayesrule.report import png
from bayesrule.report.content import Table
from bayesrule.report.numbers import number, percent, shortened, tick_percent
from bayesrule.report.plot import Figure, standard_plot
from bayesrule.report.svg import circle

COMPONENTS, MOST_LAYERS, MOST_PIXELS = 8, 5, 96
FAINTEST = 1e-6
EXACT_BELOW = 1e9  # multiplications of a full decomposition, about a second


@dataclass(frozen=True)
class Spectrum:
    """The leading singular triples of a matrix.

    Attributes:
        shape: Of the matrix.
        left: Vectors, by column.
        values: Largest first.
        right: Vectors, by row.
        shares: ``s_i² / Σ s²``, the share of the sum of squares that each component explains.
    """

    shape: tuple[int, int]
    left: Float[np.ndarray, "fan_in k"]
    values: Float[np.ndarray, " k"]
    right: Float[np.ndarray, "k fan_out"]
    shares: Float[np.ndarray, " k"]

    def approximation(self, rank: int) -> Float[np.ndarray, "fan_in fan_out"]:
        """The nearest matrix of that rank."""
        return (self.left[:, :rank] * self.values[:rank]) @ self.right[:rank]


def spectrum(matrix: Float[np.ndarray, "fan_in fan_out"], components: int = COMPONENTS) -> Spectrum:
    """Singular values and vectors; of a very large matrix by subspace iteration from a fixed start."""
    matrix = matrix.astype(np.float64)
    if float(matrix.size) * min(matrix.shape) <= EXACT_BELOW:
        left, values, right = np.linalg.svd(matrix, full_matrices=False)
    else:
        basis = np.random.default_rng(0).standard_normal((matrix.shape[1], 4 * components))
        for _ in range(6):
            basis = np.linalg.qr(matrix.T @ np.linalg.qr(matrix @ basis)[0])[0]
        left, values, within = np.linalg.svd(matrix @ basis, full_matrices=False)
        right = within @ basis.T
    kept = min(components, len(values))
    total = max(float((matrix * matrix).sum()), np.finfo(np.float64).tiny)
    return Spectrum(matrix.shape, left[:, :kept], values[:kept], right[:kept], values[:kept] ** 2 / total)


def usable_spectra(stds: Mapping[str, np.ndarray]) -> dict[str, Spectrum]:
    """Of every layer whose standard deviations are matrices of finite numbers."""
    known = {name: matrix for name, matrix in stds.items() if matrix.size and np.isfinite(matrix).all()}
    return {name: spectrum(matrix) for name, matrix in known.items()}


def spectrum_figure(spectra: Mapping[str, Spectrum]) -> Figure:
    """Explained share by component, on a logarithmic axis, for the largest layers."""
    largest = sorted(spectra, key=lambda name: -np.prod(spectra[name].shape))[:MOST_LAYERS]
    shown = [name for name in spectra if name in largest]
    lowest = min(float(share) for name in shown for share in spectra[name].shares)
    plot = standard_plot((0.5, COMPONENTS + 0.5), (max(lowest / 2, FAINTEST), 1.3), log_y=True)
    parts = [
        plot.frame(
            "component", "share explained, logarithmic", lambda tick: f"{tick:.0f}" if tick >= 1 else "", tick_percent
        )
    ]
    for colour, name in enumerate(shown, 1):
        points = [(rank, float(share)) for rank, share in enumerate(spectra[name].shares, 1) if share >= FAINTEST]
        parts.append(plot.curve(points, f"stroke-{colour}"))
        parts += [
            circle(
                plot.x.place(rank), plot.y.place(share), 3.2, f"mark-{colour}", f"{name}, {rank}: {percent(share, 2)}"
            )
            for rank, share in points
        ]
    legend = [(f"stroke-{colour}", shortened(name)) for colour, name in enumerate(shown, 1)]
    caption = (
        "Squared singular values of each layer's matrix of standard deviations, as shares of their sum. A steep fall "
        "means that few numbers tell them all."
    )
    if len(shown) < len(spectra):
        caption += f" Shown: the {len(shown)} largest layers of {len(spectra)}."
    return Figure("Spectrum of the posterior stds", plot.draw(f"Explained shares. {caption}", *parts), caption, legend)


def spectrum_table(spectra: Mapping[str, Spectrum], most: int = 60) -> Table:
    """Explained shares of the approximations of rank 1, 2 and 3."""
    rows = [
        [
            name,
            "×".join(map(str, layer.shape)),
            *(percent(min(1.0, float(layer.shares[:rank].sum())), 2) for rank in (1, 2, 3)),
        ]
        for name, layer in list(spectra.items())[:most]
    ]
    return Table(("layer", "shape", "rank 1 explains", "rank 2", "rank 3"), rows)


@dataclass(frozen=True)
class HeatMap:
    """One picture of the row."""

    title: str
    source: str
    description: str
    ratio: str


@dataclass(frozen=True)
class HeatMaps:
    """A layer's standard deviations beside their approximations, on one scale of colours."""

    layer: str
    shape: str
    maps: Sequence[HeatMap]
    colour_bar: str
    low: str
    high: str


def heat_maps(stds: Mapping[str, np.ndarray], spectra: Mapping[str, Spectrum]) -> HeatMaps:
    """Of the largest layer; the colours run between its 1 % and 99 % quantiles."""
    name = max(spectra, key=lambda layer: np.prod(spectra[layer].shape))
    exact, layer = stds[name].astype(np.float64), spectra[name]
    pictures = {"as trained": shrunk(exact)}
    pictures |= {f"rank {rank}": shrunk(layer.approximation(rank)) for rank in (1, 2) if rank <= len(layer.values)}
    low, high = (float(value) for value in np.quantile(pictures["as trained"], (0.01, 0.99)))
    ratio = f"{min(max(exact.shape[1] / exact.shape[0], 0.6), 1.7):.3g}"
    scale = max(high - low, 1e-12 * max(abs(high), 1e-300))
    maps = [
        HeatMap(title, png.heat((picture - low) / scale), f"Standard deviations of {name}, {title}", ratio)
        for title, picture in pictures.items()
    ]
    return HeatMaps(name, " × ".join(map(str, layer.shape)), maps, png.colour_bar(), number(low), number(high))


def shrunk(matrix: Float[np.ndarray, "fan_in fan_out"], most: int = MOST_PIXELS) -> Float[np.ndarray, "height width"]:
    """Means over blocks, so that neither side has more pixels than a screen shows."""
    for side in (0, 1):
        length = matrix.shape[side]
        if length > most:
            starts = np.linspace(0, length, most, endpoint=False).astype(int)
            sizes = np.diff([*starts, length])
            shape = [1, 1]
            shape[side] = most
            matrix = np.add.reduceat(matrix, starts, axis=side) / sizes.reshape(shape)
    return matrix

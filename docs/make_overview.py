"""Draws docs/assets/overview.svg: what each posterior family can express, on parameters drawn at random."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import torch
from torch import Tensor

from bayesrule.posteriors import Diagonal, Family, Full, GaussianPosterior, KTied, MatrixNormal, MatrixNormalDiagonal

mpl.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

TARGET = Path(__file__).parent / "assets" / "overview.svg"
PICTURED, SMALL, LAYER = (24, 16), (4, 3), 400

FAMILIES: dict[str, Family] = {
    "diagonal": Diagonal(),
    "1-tied": KTied(rank=1),
    "2-tied": KTied(rank=2),
    "matrix normal": MatrixNormal(),
    "matrix normal\n+ diagonal": MatrixNormalDiagonal(),
    "full": Full(),
}


def beside_the_mean(m: int, n: int) -> dict[str, int]:
    """How many numbers each family needs for an m × n weight, its mean apart."""
    triangles = m * (m + 1) // 2 + n * (n + 1) // 2
    counts = (m * n, m + n, 2 * (m + n), triangles, triangles + m + n, m * n * (m * n + 1) // 2)
    return dict(zip(FAMILIES, counts, strict=True))


def example(family: Family, shape: tuple[int, int], generator: torch.Generator) -> GaussianPosterior:
    """A member of the family with random parameters."""
    parameters = family.init(torch.zeros(shape), generator=generator)
    moved = {}
    for name, value in parameters.items():
        step = 0.5 * torch.randn(value.shape, generator=generator)
        if "cholesky" in name:  # below the diagonal stand plain numbers, on it logarithms
            size, scale = value.shape[-1], value.diagonal().exp().mean()
            step = 2.4 * scale / size**0.5 * step.tril(-1) + torch.diag_embed(step.diagonal())
        moved[name] = value + step
    return family.build(moved, event_dim=2)


def correlation(posterior: GaussianPosterior) -> Tensor:
    """Correlations of all entries, flattened row by row."""
    covariance = posterior.covariance.dense()
    std = covariance.diagonal().sqrt()
    return covariance / torch.outer(std, std)


def bare(axes: Axes) -> None:
    """An image needs no ticks and no frame."""
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_linewidth(0.4)


def draw() -> None:
    """The two rows: standard deviations of one weight, correlations of a smaller one."""
    generator = torch.Generator().manual_seed(4)
    figure, grid = plt.subplots(2, len(FAMILIES), figsize=(11, 5.4), height_ratios=(1.35, 1), layout="constrained")
    counts = beside_the_mean(LAYER, LAYER)
    for (name, family), (top, bottom) in zip(FAMILIES.items(), grid.T, strict=True):
        std = example(family, PICTURED, generator).stddev
        top.imshow(std / std.mean(), cmap="magma", vmin=0, vmax=2.5)
        top.set_title(name, fontsize=11)
        bottom.imshow(correlation(example(family, SMALL, generator)), cmap="RdBu_r", vmin=-1, vmax=1)
        bottom.set_xlabel(f"{counts[name]:,}".replace(",", "\u2009"), fontsize=10)
        bare(top)
        bare(bottom)
    grid[0, 0].set_ylabel("standard deviations\nof a 24 × 16 weight", fontsize=10)
    grid[1, 0].set_ylabel("correlations of the 12\nentries of a 4 × 3 weight", fontsize=10)
    figure.supxlabel(f"numbers beside the mean, for a {LAYER} × {LAYER} layer", fontsize=10)
    TARGET.parent.mkdir(exist_ok=True)
    figure.savefig(TARGET, metadata={"Date": None})


if __name__ == "__main__":
    mpl.rcParams["svg.hashsalt"] = "bayesrule"  # the same drawing is the same file
    draw()

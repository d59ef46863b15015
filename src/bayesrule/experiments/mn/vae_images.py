"""Images and what auto-encoders make of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from bayesrule.experiments.mn.vae import VAE
from bayesrule.random import draw, keyed_generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COUNT = 10
SIDE = 28
GAP = 4
"""White columns between two images."""


@torch.no_grad()
def image_rows(models: Mapping[str, VAE], x: Tensor, seed: int) -> dict[str, Tensor]:
    """Rows of images: originals, each family's reconstructions through the mean code, and samples from the prior."""
    originals = x[torch.linspace(0, len(x) - 1, COUNT).long()].float()  # the set is sorted by digit
    rows = {"test images": originals}
    for name, vae in models.items():
        posterior = vae.encode(originals.expand(vae.models, *originals.shape))
        noise = draw(tuple(posterior.mean.shape), "normal", originals, keyed_generator(x.device, "samples", seed))
        rows[f"{name.upper()}: reconstructions"] = vae.logits(posterior.mean)[0].sigmoid()
        rows[f"{name.upper()}: samples"] = vae.logits(noise)[0].sigmoid()
    return rows


def strip(pixels: Tensor) -> Tensor:
    """Images side by side, with gaps between them."""
    apart = F.pad(pixels.view(-1, SIDE, SIDE), (0, GAP))
    return apart.transpose(0, 1).flatten(1)[:, :-GAP]


def draw_images(models: Mapping[str, VAE], x: Tensor, seed: int) -> Figure:
    """A row of images for each of `image_rows`, pixel probabilities as grey."""
    from matplotlib.figure import Figure

    rows = image_rows(models, x, seed)
    figure = Figure(figsize=(COUNT * 0.9, len(rows) * 1.05))
    for axis, (label, pixels) in zip(figure.subplots(len(rows), 1), rows.items(), strict=True):
        axis.imshow(strip(pixels).cpu().numpy(), cmap="gray_r", vmin=0, vmax=1)
        axis.set_title(label, fontsize=8, loc="left")
        axis.set_axis_off()
    figure.tight_layout()
    return figure

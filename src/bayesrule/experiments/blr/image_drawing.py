"""Methods side by side: a panel for each score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from bayesrule.experiments.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELS = {
    "accuracy": "test accuracy (%)", "nll": "test NLL", "ece": "ECE", "ood_auroc": "AUROC, images from elsewhere",
    "accuracy_mode": "accuracy at one network (%)", "packed_bytes": "bytes, packed",
}  # fmt: skip
REFERENCE = "adam", "adamw", "full-precision"


def draw_methods(rows: Sequence[Row], metrics: Sequence[str]) -> Figure:
    """A point for each method with its standard error over seeds; a line where the reference lies."""
    from matplotlib.figure import Figure

    methods = list(dict.fromkeys(row.method for row in rows))
    figure = Figure(figsize=(3.1 * len(metrics), 0.9 + 0.32 * len(methods)), layout="constrained")
    for number, (axis, metric) in enumerate(
        zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True)
    ):
        found = {row.method: row for row in rows if row.metric == metric}
        places = [methods.index(method) for method in found]
        axis.errorbar(
            [row.value for row in found.values()], places, xerr=[row.sem or 0.0 for row in found.values()],
            fmt="o", color="#0072B2", capsize=2,
        )  # fmt: skip
        for method in set(REFERENCE) & set(found):
            axis.axvline(found[method].value, color="grey", linewidth=0.8, linestyle=":")
        axis.set_yticks(range(len(methods)), methods if number == 0 else [""] * len(methods))
        axis.set_title(LABELS[metric])
        axis.invert_yaxis()
        axis.grid(axis="x", alpha=0.3)
    return figure

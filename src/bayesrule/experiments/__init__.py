"""Experiments: one file for each table or figure, which states the claims it checks."""

from __future__ import annotations

from bayesrule.data.names import nearest
from bayesrule.errors import InvalidArgument
from bayesrule.experiments.blr import BLR
from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import PRESETS, Claim, Experiment, Preset, PresetName, Verdict
from bayesrule.experiments.exploration import FIGURE2
from bayesrule.experiments.ktied import KTIED
from bayesrule.experiments.mn import MATRIX_NORMAL
from bayesrule.experiments.nng import NOISY_NATURAL_GRADIENT
from bayesrule.experiments.rows import Row
from bayesrule.experiments.running import Request, reproduce
from bayesrule.experiments.tabular import TABULAR
from bayesrule.experiments.tabular_ablation import TABULAR_DEFAULTS

EXPERIMENTS: dict[str, Experiment] = {
    known.id: known
    for known in (
        TABULAR,
        TABULAR_DEFAULTS,
        *MATRIX_NORMAL,
        *BLR,
        *KTIED,
        *NOISY_NATURAL_GRADIENT,
        FIGURE2,
    )
}  # fmt: skip
"""All of them, by id; a new one is one file and one line here."""


def beginning(name: str) -> list[str]:
    """The ids of a group: ``mn`` and ``mn/`` stand for all that begin with ``mn/``."""
    return [known for known in EXPERIMENTS if known.startswith(f"{name.rstrip('/')}/")]


def experiment(name: str) -> Experiment:
    """One of them by its id."""
    if name in EXPERIMENTS:
        return EXPERIMENTS[name]
    if group := beginning(name):
        raise InvalidArgument(f"{name!r} is not one experiment", remedy=f"Name one of them: {', '.join(group)}.")
    known = beginning(name.partition("/")[0]) or EXPERIMENTS
    raise InvalidArgument(
        f"There is no experiment {name!r}", remedy=f"{nearest(name, EXPERIMENTS)}Known: {', '.join(known)}."
    )


__all__ = [
    "EXPERIMENTS",
    "PRESETS",
    "Claim",
    "Context",
    "Experiment",
    "Preset",
    "PresetName",
    "Request",
    "Row",
    "Verdict",
    "beginning",
    "experiment",
    "reproduce",
]

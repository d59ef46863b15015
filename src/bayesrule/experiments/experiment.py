"""What an experiment is: presets, a run that yields rows, and claims that are reported as held or not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bayesrule.data.names import nearest
from bayesrule.errors import InvalidArgument
from bayesrule.experiments.rows import Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from bayesrule.experiments.context import Context

PresetName = Literal["smoke", "quick", "paper"]
PRESETS: tuple[PresetName, ...] = ("smoke", "quick", "paper")
Standing = Literal["held", "not held", "not measured"]


@dataclass(frozen=True)
class Verdict:
    """How a claim stands, and the numbers that say so."""

    standing: Standing
    detail: str

    @classmethod
    def of(cls, held: bool, detail: str) -> Verdict:
        """Held or not."""
        return cls("held" if held else "not held", detail)


@dataclass(frozen=True)
class Claim:
    """A named check over the rows; reported, never asserted."""

    name: str
    check: Callable[[Sequence[Row]], Verdict]


@dataclass(frozen=True)
class Preset:
    """A size of the experiment.

    Attributes:
        datasets: The default selection.
        methods: Likewise.
        settings: What else the run needs; plain data, part of what a kept cell is recognised by.
        synthetic: Whether its data are made up: such numbers say only that everything runs.
    """

    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    synthetic: bool = False


@dataclass(frozen=True)
class Experiment:
    """A table or figure.

    Attributes:
        id: Its name on the command line.
        title: In a line.
        presets: By name, all of `PRESETS`.
        methods: Every method it knows.
        datasets: Every data set it knows, given the data folder.
        metrics: Given a data set's name, the metrics each of its methods yields.
        run: Measures; rows come without published numbers.
        claims: Checked over the rows.
        published: File with the published numbers.
        devices: Kinds of device it can use, the preferred one first.
        packages: Distributions whose versions belong to the result, if installed.
        figures: Draws figures from the run, by name; each becomes a PNG file beside the result.
        drawn: Whether its data are drawn from a known model by design: also those of the smoke preset are then the real
            thing, and claims are judged by them.
    """

    id: str
    title: str
    presets: Mapping[PresetName, Preset]
    methods: tuple[str, ...]
    datasets: Callable[[Path | None], Sequence[str]]
    metrics: Callable[[str], tuple[str, ...]]
    run: Callable[[Context], list[Row]]
    claims: tuple[Claim, ...]
    published: Path
    devices: tuple[str, ...] = ("cpu",)
    packages: tuple[str, ...] = ()
    figures: Callable[[Context, Sequence[Row]], Mapping[str, Figure]] | None = None
    drawn: bool = False

    def select(
        self, preset: PresetName, data: Path | None, datasets: Sequence[str] | None, methods: Sequence[str] | None
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The data sets and methods to run: those asked for, else the preset's."""
        chosen = self.presets[preset]
        return (
            chosen.datasets if datasets is None else _known("data set", datasets, self.datasets(data)),
            chosen.methods if methods is None else _known("method", methods, self.methods),
        )


def _known(kind: str, names: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    if not names:
        raise InvalidArgument(f"No {kind} is named", remedy=f"Known: {', '.join(known)}.")
    for name in names:
        if name not in known:
            raise InvalidArgument(
                f"There is no {kind} {name!r} here", remedy=f"{nearest(name, known)}Known: {', '.join(known)}."
            )
    return tuple(dict.fromkeys(names))

"""What a report is made of: plain values, checked when they are put together."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from bayesrule.report.predictions import Classification, Regression, require_length

_NUMBER = re.compile(r"[<>−-]?[\d.,]+(×10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?(\s%)?|[–∞]|−∞")


@dataclass(frozen=True)
class Images:
    """The test inputs as grey pictures, ink where the numbers are large."""

    pixels: Shaped[np.ndarray, "examples height width"]

    def __len__(self) -> int:
        return len(self.pixels)


@dataclass(frozen=True)
class FeatureRows:
    """The test inputs as rows of a table; cells are numbers or text."""

    names: Sequence[str]
    rows: Sequence[Sequence[Any]] | np.ndarray

    def __post_init__(self) -> None:
        if len(self.rows):
            require_length("feature names", len(self.names), len(self.rows[0]))

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class Method:
    """One row of the comparison.

    Attributes:
        name: As the reader should call it.
        metrics: ``test_nll``, ``test_accuracy`` and the like; missing ones are shown as missing.
        parameters: Trainable numbers.
        seconds: Of training.
        ours: Whether this is the model the report is about.
    """

    name: str
    metrics: Mapping[str, float]
    parameters: int | None = None
    seconds: float | None = None
    ours: bool = False


@dataclass(frozen=True)
class EpochPoint:
    """Means over one epoch of training, as its history has them."""

    epoch: int
    nll: float
    kl_per_example: float
    kl_weight: float = 1.0
    valid_nll: float | None = None


@dataclass(frozen=True)
class Table:
    """Text in rows and columns."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def __post_init__(self) -> None:
        for row in self.rows:
            require_length("cells of a row", len(row), len(self.header))

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers only, and are read best when flush right."""
        columns = list(zip(*self.rows, strict=True)) or [()] * len(self.header)
        return [any(column) and all(_NUMBER.fullmatch(cell) for cell in column if cell) for column in columns]


@dataclass(frozen=True)
class Usage:
    """How to load and use the model: a Python snippet and command lines."""

    python: str = ""
    commands: Sequence[str] = ()


@dataclass(frozen=True)
class Provenance:
    """Where the model came from."""

    command: str = ""
    seed: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """Everything on the page. Only the first four are needed; a section without content is left out.

    Attributes:
        title: Of the model, in a few words.
        data_name: What it was trained on.
        sizes: Examples by purpose, in order of telling: ``{"training": 1150, "validation": 287, "test": 360}``.
        predictions: On the test examples; their type tells the task.
        metrics: Of the model, as in ``metrics.json``.
        methods: The comparison, ours among them.
        history: Of training.
        inputs: Of the test examples, in the order of the predictions.
        posterior_stds: Standard deviations of weights, fan-in × fan-out, by layer.
        conversion: What became Bayesian, parameter by parameter.
        notes: Plain sentences on what was done to the data or should be known.
        usage: How to use the model.
        provenance: How it was made.
    """

    title: str
    data_name: str
    sizes: Mapping[str, int]
    predictions: Classification | Regression
    metrics: Mapping[str, float] = field(default_factory=dict)
    methods: Sequence[Method] = ()
    history: Sequence[EpochPoint] = ()
    inputs: Images | FeatureRows | None = None
    posterior_stds: Mapping[str, Float[np.ndarray, "fan_in fan_out"]] = field(default_factory=dict)
    conversion: Table | None = None
    notes: Sequence[str] = ()
    usage: Usage = field(default_factory=Usage)
    provenance: Provenance = field(default_factory=Provenance)

    def __post_init__(self) -> None:
        if self.inputs is not None:
            require_length("test inputs", len(self.inputs), len(self.predictions))

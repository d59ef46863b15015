"""The most and the least certain test examples, as pictures or as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bayesrule.report import png
from bayesrule.report.content import FeatureRows, Images, Table
from bayesrule.report.numbers import number, percent, shortened
from bayesrule.report.predictions import HIGH, LOW, Classification, Regression

MOST_FEATURES, EACH = 10, 8
YES, NO = "✓", "✗"


@dataclass(frozen=True)
class Tile:
    """One picture with its prediction."""

    source: str
    predicted: str
    confidence: str
    truth: str
    right: bool
    runner_up: str

    @property
    def description(self) -> str:
        """In words."""
        return f"Predicted {self.predicted} with {self.confidence}, is {self.truth}"


@dataclass(frozen=True)
class ExampleGroup:
    """Examples that have something in common: tiles or a table."""

    title: str
    explanation: str
    tiles: Sequence[Tile] = ()
    table: Table | None = None


def example_groups(predictions: Classification | Regression, inputs: Images | FeatureRows | None) -> list[ExampleGroup]:
    """The groups, each without the examples of those before it."""
    seen: set[int] = set()
    each = min(EACH, max(1, len(predictions) // 2))  # of few examples, half are more certain than the rest
    groups = []
    for title, explanation, order in _orders(predictions):
        chosen = [int(index) for index in order if int(index) not in seen][:each]
        seen |= set(chosen)
        if not chosen:
            continue
        if isinstance(inputs, Images) and isinstance(predictions, Classification):
            tiles = _tiles(predictions.only(np.asarray(chosen)), inputs.pixels[chosen])
            groups.append(ExampleGroup(title, explanation, tiles=tiles))
        else:
            features = inputs if isinstance(inputs, FeatureRows) else None
            groups.append(ExampleGroup(title, explanation, table=_table(predictions, features, chosen)))
    return groups


def _orders(predictions: Classification | Regression) -> list[tuple[str, str, np.ndarray]]:
    if isinstance(predictions, Regression):
        order = np.argsort(predictions.std, kind="stable")
        missed = np.abs(predictions.targets - predictions.mean) / np.maximum(predictions.std, 1e-300)
        surprises = np.argsort(-missed, kind="stable")
        return [
            ("Least certain", "The widest predictions: a person might look at these first.", order[::-1]),
            ("Most certain", "The narrowest predictions.", order),
            ("Biggest surprises", "Furthest from the prediction, in its own standard deviations.",
             surprises[~predictions.inside[surprises]]),
        ]  # fmt: skip
    by_entropy = np.argsort(predictions.entropy, kind="stable")
    by_confidence = np.argsort(-predictions.confidence, kind="stable")
    return [
        (
            "Least certain",
            "Where its probability is spread most: a person might look at these first.",
            by_entropy[::-1],
        ),
        ("Most certain", "Where its probability is spread least.", by_entropy),
        ("Surest mistakes", "Wrong, and surest of it.", by_confidence[~predictions.correct[by_confidence]]),
    ]


def _pixel_range(pixels: np.ndarray) -> tuple[float, float]:
    known = pixels[np.isfinite(pixels)] if pixels.dtype.kind == "f" else pixels
    return (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)


def _tiles(predictions: Classification, pixels: np.ndarray) -> list[Tile]:
    low, high = _pixel_range(pixels)
    names = predictions.class_names
    tiles = []
    for picture, probs, target in zip(pixels, predictions.probs, predictions.targets, strict=True):
        first, second = np.argsort(-probs, kind="stable")[:2]
        possible = float(probs[second])
        tile = Tile(
            source=png.ink((picture.astype(np.float64) - low) / max(high - low, 1e-300)),
            predicted=shortened(names[first], 24), confidence=percent(float(probs[first])),
            truth=shortened(names[target], 24), right=bool(first == target),
            runner_up=f"or {shortened(names[second], 16)} ({percent(possible, 0)})" if possible >= 0.005 else "",
        )  # fmt: skip
        tiles.append(tile)
    return tiles


def _table(predictions: Classification | Regression, inputs: FeatureRows | None, chosen: Sequence[int]) -> Table:
    shown = predictions.only(np.asarray(chosen))
    header, cells = _class_cells(shown) if isinstance(shown, Classification) else _number_cells(shown)
    if inputs is None:
        return Table(header, cells)
    names = [shortened(name, 24) for name in inputs.names[:MOST_FEATURES]]
    features = [[_cell(value) for value in inputs.rows[index][:MOST_FEATURES]] for index in chosen]
    return Table([*header, *names], [[*row, *extra] for row, extra in zip(cells, features, strict=True)])


def _class_cells(shown: Classification) -> tuple[list[str], list[list[str]]]:
    columns = {
        "predicted": [shortened(shown.class_names[index]) for index in shown.predicted],
        "confidence": [percent(float(share)) for share in shown.confidence],
        "truth": [shortened(shown.class_names[index]) for index in shown.targets],
        "right": _ticks(shown.correct),
        "entropy": _numbers(shown.entropy),
    }
    if shown.mutual_information is not None:
        columns["mutual information"] = _numbers(shown.mutual_information)
    return list(columns), [list(row) for row in zip(*columns.values(), strict=True)]


def _number_cells(shown: Regression) -> tuple[list[str], list[list[str]]]:
    ends = zip(_numbers(shown.quantile(LOW)), _numbers(shown.quantile(HIGH)), strict=True)
    columns = {
        "predicted": _numbers(shown.mean),
        "± std": _numbers(shown.std),
        "of it epistemic": _numbers(shown.epistemic_std),
        "90 % interval": [f"{low} to {high}" for low, high in ends],
        "truth": _numbers(shown.targets),
        "inside": _ticks(shown.inside),
    }
    return list(columns), [list(row) for row in zip(*columns.values(), strict=True)]


def _numbers(values: np.ndarray) -> list[str]:
    return [number(float(value)) for value in values]


def _ticks(values: np.ndarray) -> list[str]:
    return [YES if value else NO for value in values]


def _cell(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return shortened(str(value))
    size = float(value)
    return str(int(size)) if abs(size) < 1e7 and size == int(size) else number(size)

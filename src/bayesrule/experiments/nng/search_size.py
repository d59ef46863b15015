"""How large a measurement of the search is."""

from __future__ import annotations

from dataclasses import dataclass

from bayesrule.experiments.context import Context


@dataclass(frozen=True)
class Size:
    """Of a measurement: each split is trained on with so many seeds, and its score is their mean.

    Attributes:
        splits: How many.
        epochs: Of a run.
        samples: Draws for a prediction.
        seeds: Of a split.
    """

    splits: int
    epochs: int
    samples: int
    seeds: int = 1

    @classmethod
    def of_search(cls, context: Context, dataset: str) -> Size:
        """The preset's, or the set's own."""
        settings = context.preset.settings
        common = {name: settings[name] for name in ("splits", "epochs", "samples")}
        return cls(**common | settings["sizes"].get(dataset, {}))

    @classmethod
    def of_finals(cls, context: Context, dataset: str) -> Size:
        """As long as in the tables, with as many draws."""
        settings = context.preset.settings
        common = {name: settings["finals"][name] for name in ("splits", "epochs", "samples", "seeds")}
        epochs = settings["deviations"].get(dataset, {}).get("epochs", common["epochs"])
        return cls(**common | {"epochs": epochs} | settings["finals"]["sizes"].get(dataset, {}))

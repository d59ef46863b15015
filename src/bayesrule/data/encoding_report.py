"""What an encoder noticed: values that were filled in, new, or absurd."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class EncodingReport:
    """What was not as in training, by column; reports of pieces add up to that of the whole.

    Attributes:
        rows: How many were encoded.
        imputed: Missing values that were filled in.
        unseen: Categories without a feature of their own.
        clipped: Numbers more than a million standard deviations from the training mean.
        ignored: Columns that the encoder does not use.
    """

    rows: int = 0
    imputed: Mapping[str, int] = field(default_factory=dict)
    unseen: Mapping[str, int] = field(default_factory=dict)
    clipped: Mapping[str, int] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def __add__(self, other: EncodingReport) -> EncodingReport:
        return EncodingReport(
            self.rows + other.rows,
            dict(Counter(self.imputed) + Counter(other.imputed)),
            dict(Counter(self.unseen) + Counter(other.unseen)),
            dict(Counter(self.clipped) + Counter(other.clipped)),
            tuple(dict.fromkeys(self.ignored + other.ignored)),
        )

    def lines(self) -> list[str]:
        """One sentence for each thing worth saying."""
        said = []
        for counts, what in (
            (self.imputed, "missing values, filled in"),
            (self.unseen, "values of categories that training did not have or were rare there"),
            (self.clipped, "values absurdly far from those of training, clipped"),
        ):
            said += [f"{name}: {count} of {self.rows} {what}." for name, count in counts.items()]
        if self.ignored:
            said.append(f"Ignored columns: {', '.join(self.ignored)}.")
        return said

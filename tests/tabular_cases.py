"""A small table, and the models fitted to it."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd

from bayesrule.train.members import Settings
from bayesrule.train.tabular import TableFit, TabularModel, fit_table

SETTINGS = Settings(hidden=(8,), folds=2, steps=40, draws=12)
Fitted = tuple[TabularModel, TableFit]


def table(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    generator = np.random.default_rng(seed)
    size, colour = generator.standard_normal(rows), generator.choice(["red", "green"], rows)
    price = 1000 + 50 * size + 20 * (colour == "red") + generator.standard_normal(rows)
    frame = pd.DataFrame({"size": size, "colour": colour, "constant": 1.0, "price": price})
    frame.loc[frame.index[:3], "size"] = np.nan
    frame["kind"] = np.where(price > 1000, "high", "low")
    return frame


@cache
def regression() -> Fitted:
    return fit_table(table().drop(columns="kind"), "price", settings=SETTINGS)


@cache
def classification() -> Fitted:
    return fit_table(table().drop(columns="price"), "kind", settings=SETTINGS)

"""The settings that `nng/search` and `nng/deep-search` chose on validation rows, kept in `settings.json`.

`keep_choices` writes that file anew.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

FILE = Path(__file__).with_name("settings.json")
HOW = "by the log-likelihood of validation rows, and by RMSE between points within a hundredth of it"
EVERY = "*"
"""The entry for a data set nobody searched on: the point with the least mean loss to each set's best."""
FIELDS = {"λ": "kl_weight", "lr": "lr", "prior": "prior_std", "β": "beta"}
NOISE = "noise"
PLAIN_NOISE, WEAK_NOISE = (6.0, 6.0), (1.0, 0.01)
"""Shape and rate of the Gamma prior on the noise's precision."""
KEYS = {PLAIN_NOISE: "chosen", WEAK_NOISE: "chosen, weak noise prior"}
CONVENTIONS, OWN_CONVENTIONS = "conventions", "conventions of a method"
ONE_LAYER_SEARCH, DEEP_SEARCH, DEEP = "nng/search", "nng/deep-search", "two hidden layers"
"""Both searches, and what the choices of that with two hidden layers are kept under."""
WITHOUT = {"bbb": ("beta", "warm_up", "max_kl", "quiet_steps", "T_inv"), "noisy-adam": ("warm_up", "T_inv")}
"""Fields of a setting that a method does not have; noisy Adam starts at the prior, as printed."""
SEARCHED_AS = dict.fromkeys(
    ("noisy-ekfac", "noisy-kfac-exact", "noisy-block-tridiagonal", "noisy-full"), "noisy-kfac"
)  # fmt: skip
"""Methods that take the choices of another, whose posterior differs from theirs in little; they are not searched."""
CHOSEN, FOR_ALL = "chosen", "chosen_for_all"
"""The metrics that are 1 of the point chosen for a data set, and for every data set."""
TIE = 0.01
"""Nats between log-likelihoods that count as equal."""

Point = Mapping[str, Any]
Choices = dict[str, dict[str, dict[str, float]]]
"""By data set and method."""
Means = dict[str, tuple[float, float]]
"""Log-likelihood and RMSE, by point."""
Scores = dict[str, Means]
"""By data set."""


@lru_cache(maxsize=4)
def chosen(weak_noise: bool = False, deep: bool = False) -> Choices:
    """By data set and method, for either noise prior; for two hidden layers those of one, if nobody searched there."""
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    stored = stored.get(DEEP, stored) if deep else stored
    return stored.get(KEYS[WEAK_NOISE if weak_noise else PLAIN_NOISE]) or stored[KEYS[PLAIN_NOISE]]


def choice(dataset: str, method: str, weak_noise: bool = False, deep: bool = False) -> Mapping[str, float]:
    """What was chosen for a method on a data set, or for every data set."""
    found, searched = chosen(weak_noise, deep), SEARCHED_AS.get(method, method)
    return found.get(dataset, {}).get(searched) or found[EVERY][searched]


def conventions(method: str) -> dict[str, Any]:
    """What the paper leaves open and validation rows decided, the same for all data sets; as far as a method has it."""
    stored = json.loads(FILE.read_text(encoding="utf-8"))
    common, own = stored.get(CONVENTIONS, {}), stored.get(OWN_CONVENTIONS, {}).get(method, {})
    return {name: value for name, value in common.items() if name not in WITHOUT.get(method, ())} | own


def words(point: Point) -> str:
    """A point of the grid, as the variant of a row."""
    parts = [f"{name} {point[field]:g}" for name, field in FIELDS.items() if field in point]
    return ", ".join([*parts, f"{NOISE} {'/'.join(f'{each:g}' for each in point['noise_prior'])}"])


def point_of(variant: str) -> tuple[dict[str, float], tuple[float, float]]:
    """The way back: what is chosen, and the noise prior it is chosen for."""
    parts = dict(part.split(" ") for part in variant.split(", "))
    shape, rate = parts[NOISE].split("/")
    return {f: float(parts[name]) for name, f in FIELDS.items() if name in parts}, (float(shape), float(rate))


def best(points: Mapping[str, tuple[float, float]]) -> str:
    """The least RMSE among the points whose log-likelihood is highest, but for `TIE`."""
    highest = max(density for density, _ in points.values())
    return min((p for p, (density, _) in points.items() if density >= highest - TIE), key=lambda p: points[p][1])


def losses_of_all(found: Scores) -> dict[str, list[float]]:
    """What a point that all sets have loses to each set's highest log-likelihood; those that lose least come first."""
    shared = sorted(set.intersection(*(set(points) for points in found.values())))
    highest = {name: max(density for density, _ in points.values()) for name, points in found.items()}
    losses = {p: [highest[name] - points[p][0] for name, points in found.items()] for p in shared}
    return dict(sorted(losses.items(), key=lambda item: fmean(item[1])))


def best_for_all(found: Scores) -> str:
    """The least mean loss to each set's highest log-likelihood; among points within `TIE`, the least greatest loss."""
    losses = losses_of_all(found)
    least = fmean(next(iter(losses.values())))
    return min((p for p in losses if fmean(losses[p]) <= least + TIE), key=lambda p: max(losses[p]))


def with_choices(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What `settings.json` keeps of a search, given the rows of its result: the points that it marks."""
    result: dict[str, Any] = {}
    for row in rows:
        if row["metric"] in (CHOSEN, FOR_ALL) and row["value"]:
            point, noise = point_of(row["variant"])
            dataset = EVERY if row["metric"] == FOR_ALL else row["dataset"]
            result.setdefault(KEYS[noise], {EVERY: {}}).setdefault(dataset, {})[row["method"]] = point
    return result


def merged(stored: Mapping[str, Any], read: Mapping[str, Any]) -> dict[str, Any]:
    """What the file has after a search's result is taken into it: what was not searched keeps what it had."""
    found = {"source": f"{read['experiment']}: {HOW}", **with_choices(read["rows"])}
    deep = read["experiment"] == DEEP_SEARCH
    before = stored.get(DEEP, {}) if deep else stored
    for key in KEYS.values():
        for dataset, points in before.get(key, {}).items():
            here = found.setdefault(key, {EVERY: {}}).setdefault(dataset, {})
            here |= {method: point for method, point in points.items() if method not in here}
    kept = {name: stored[name] for name in (CONVENTIONS, OWN_CONVENTIONS, DEEP) if name in stored}
    return {**stored, DEEP: found} if deep else {**found, **kept}

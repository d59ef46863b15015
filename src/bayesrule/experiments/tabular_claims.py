"""What is claimed of the default model of a table, beside the best of what people would pick instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from bayesrule.experiments.experiment import Claim, Verdict
from bayesrule.experiments.rows import Row
from bayesrule.experiments.tabular_data import CLASSES, UCI

OURS = "bayesrule"
WITHOUT_NAVAL = tuple(name for name in UCI if name != "naval")
NLL_BOUNDS = {"digits": 0.09, "breast-cancer": 0.08, "wine": 0.04}
ECE_BOUND = 0.03
COVERED = (0.87, 0.93)
COVERED_SETS = 5
SECONDS = {
    20.0: ("boston", "concrete", "energy", "yacht", *CLASSES),
    120.0: ("kin8nm", "naval", "protein"),
}
"""Up to about 1,500 and 40,000 training rows."""


def _values(rows: Iterable[Row], metric: str, method: str = OURS) -> dict[str, Row]:
    return {row.dataset: row for row in rows if row.metric == metric and row.method == method}


def _needing(found: Mapping[str, object], sets: Iterable[str], verdict: Callable[[], Verdict]) -> Verdict:
    """The verdict, if all sets were measured."""
    missing = [name for name in sets if name not in found]
    return Verdict("not measured", f"needs {', '.join(missing)}") if missing else verdict()


def _shortfalls(rows: Sequence[Row]) -> dict[str, float]:
    """Log-likelihood per point that the default model lacks to the published best."""
    found = _values(rows, "log_likelihood")
    return {name: row.paper - row.value for name, row in found.items() if row.paper is not None}


def _mean_shortfall(most: float) -> Callable[[Sequence[Row]], Verdict]:
    def check(rows: Sequence[Row]) -> Verdict:
        found = _shortfalls(rows)

        def verdict() -> Verdict:
            mean = fmean(found[name] for name in WITHOUT_NAVAL)
            return Verdict.of(mean <= most, f"{mean:.3f}")

        return _needing(found, WITHOUT_NAVAL, verdict)

    return check


def _largest_shortfall(rows: Sequence[Row]) -> Verdict:
    found = _shortfalls(rows)

    def verdict() -> Verdict:
        worst = max(UCI, key=found.__getitem__)
        return Verdict.of(found[worst] <= 0.5, f"{worst} {found[worst]:.2f}")

    return _needing(found, UCI, verdict)


def _ahead_of_measured(metric: str, sets: Sequence[str], sign: int) -> Callable[[Sequence[Row]], Verdict]:
    """Over those of the sets that both were measured on; a rival with fewer than all of them says so."""

    def check(rows: Sequence[Row]) -> Verdict:
        ours = _values(rows, metric)

        def verdict() -> Verdict:
            margins = {}
            for rival in sorted({row.method for row in rows} - {OURS}):
                theirs = _values(rows, metric, rival)
                shared = [name for name in sets if name in theirs]
                if shared:
                    margin = fmean(sign * (ours[name].value - theirs[name].value) for name in shared)
                    margins[f"{rival} on {len(shared)}"] = margin
            if not margins:
                return Verdict("not measured", "needs rivals")
            told = ", ".join(f"{rival}: {margin:+.3f}" for rival, margin in margins.items())
            return Verdict.of(min(margins.values()) > 0, told)

        return _needing(ours, sets, verdict)

    return check


def _coverage(rows: Sequence[Row]) -> Verdict:
    found = _values(rows, "coverage_90")

    def verdict() -> Verdict:
        inside = [name for name in UCI if COVERED[0] <= found[name].value <= COVERED[1]]
        told = ", ".join(f"{name} {found[name].value:.3f}" for name in UCI)
        return Verdict.of(len(inside) >= COVERED_SETS, f"{len(inside)} of {len(UCI)}: {told}")

    return _needing(found, UCI, verdict)


def _at_most(metric: str, bounds: Mapping[str, float]) -> Callable[[Sequence[Row]], Verdict]:
    def check(rows: Sequence[Row]) -> Verdict:
        found = _values(rows, metric)

        def verdict() -> Verdict:
            told = ", ".join(f"{name} {found[name].value:.3g}" for name in bounds)
            return Verdict.of(all(found[name].value <= bound for name, bound in bounds.items()), told)

        return _needing(found, bounds, verdict)

    return check


def _seconds(bound: float) -> Claim:
    sets = SECONDS[bound]
    size = "1,500" if bound == min(SECONDS) else "40,000"
    return Claim(
        f"under {bound:.0f} s of processor time on one thread to about {size} rows",
        _at_most("seconds", dict.fromkeys(sets, bound)),
    )


CLAIMS = (
    Claim("mean shortfall in log-likelihood to the best rivals at most 0.15, without Naval", _mean_shortfall(0.15)),
    Claim("the goal beyond: at most 0.08", _mean_shortfall(0.08)),
    Claim("no regression set worse by more than 0.5", _largest_shortfall),
    Claim(
        "higher mean log-likelihood than every rival measured here, without Naval",
        _ahead_of_measured("log_likelihood", WITHOUT_NAVAL, 1),
    ),
    Claim(f"90 % intervals cover 87–93 % on at least {COVERED_SETS} of 7 sets, test rows pooled", _coverage),
    Claim("test NLL: digits ≤ 0.09, breast-cancer ≤ 0.08, wine ≤ 0.04", _at_most("nll", NLL_BOUNDS)),
    Claim("ECE ≤ 0.03 on all three, test rows pooled", _at_most("ece_pooled", dict.fromkeys(NLL_BOUNDS, ECE_BOUND))),
    Claim("ECE ≤ 0.03 on all three, mean over splits", _at_most("ece", dict.fromkeys(NLL_BOUNDS, ECE_BOUND))),
    Claim("lower mean NLL of classes than every rival measured here", _ahead_of_measured("nll", tuple(CLASSES), -1)),
    *map(_seconds, SECONDS),
)

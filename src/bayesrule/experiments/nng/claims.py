"""What is claimed of the regressions, each claim checked over the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bayesrule.experiments.experiment import Claim, Verdict
from bayesrule.experiments.rows import Row

Key = tuple[str, str, str, str]
"""Data set, method, variant, metric."""
FAR = 3.0
"""Times the mean RMSE."""


def values(rows: Sequence[Row]) -> dict[Key, float]:
    """By key."""
    return {(row.dataset, row.method, row.variant, row.metric): row.value for row in rows}


def needing(
    rows: Sequence[Row], keys: Sequence[Key], verdict: Callable[[Mapping[Key, float]], Verdict], splits: int = 0
) -> Verdict:
    """The verdict, if all of these were measured, over as many splits at least."""
    found = values(rows)
    missing = sorted({f"{method} on {dataset} ({variant})" for dataset, method, variant, metric in keys
                      if (dataset, method, variant, metric) not in found})  # fmt: skip
    if missing:
        return Verdict("not measured", f"needs {', '.join(missing)}")
    fewest = min((row.n for row in rows if (row.dataset, row.method, row.variant, row.metric) in set(keys)), default=0)
    if fewest < splits:
        return Verdict("not measured", f"needs {splits} splits, has {fewest}")
    return verdict(found)


def reaches(
    name: str, method: str, variant: str, bounds: Mapping[str, tuple[float | None, float | None]], splits: int
) -> Claim:
    """RMSE at most and log-likelihood at least, set by set; None where nothing is claimed."""

    def check(rows: Sequence[Row]) -> Verdict:
        keys = [(dataset, method, variant, metric) for dataset in bounds for metric in ("rmse", "log_likelihood")]

        def verdict(found: Mapping[Key, float]) -> Verdict:
            held, told = True, []
            for dataset, (most, least) in bounds.items():
                rmse, density = (found[dataset, method, variant, metric] for metric in ("rmse", "log_likelihood"))
                held &= (most is None or rmse <= most) and (least is None or density >= least)
                told.append(f"{dataset} {rmse:.4g} / {density:.4g}")
            return Verdict.of(held, ", ".join(told))

        return needing(rows, keys, verdict, splits)

    limits = ", ".join(
        f"{dataset} {'–' if most is None else f'{most:g}'} / {'–' if least is None else f'{least:g}'}"
        for dataset, (most, least) in bounds.items()
    )
    return Claim(f"{name}: RMSE at most / log-likelihood at least {limits}", check)


def wins(variant: str, others: Sequence[str], datasets: Sequence[str], least: int, splits: int) -> Claim:
    """Noisy K-FAC is better on at least so many splits, in both scores."""
    metrics = ("rmse_behind_kfac", "log_likelihood_behind_kfac")

    def check(rows: Sequence[Row]) -> Verdict:
        keys = [(dataset, other, variant, metric) for dataset in datasets for other in others for metric in metrics]

        def verdict(found: Mapping[Key, float]) -> Verdict:
            worst = min(keys, key=found.__getitem__)
            told = "; ".join(
                f"{dataset} " + ", ".join(
                    f"{other} {'/'.join(f'{found[dataset, other, variant, metric]:.0f}' for metric in metrics)}"
                    for other in others)
                for dataset in datasets
            )  # fmt: skip
            return Verdict.of(found[worst] >= least, f"splits by RMSE/log-likelihood: {told}")

        return needing(rows, keys, verdict, splits)

    names, sets = " and ".join(others), ", ".join(datasets)
    return Claim(f"noisy-kfac better than {names} on at least {least} of {splits} splits ({variant}): {sets}", check)


def no_split_above(dataset: str, method: str, variant: str, most: float) -> Claim:
    """No split's RMSE is above a bound."""

    def check(rows: Sequence[Row]) -> Verdict:
        key = (dataset, method, variant, "rmse_worst")
        return needing(rows, [key], lambda found: Verdict.of(found[key] <= most, f"worst {found[key]:.4g}"))

    return Claim(f"no split of {dataset} above an RMSE of {most:g} ({method}, {variant})", check)


def stands_out(worst: float, mean: float) -> bool:
    """Whether the RMSE of a run's worst split is above a multiple of the mean over its splits."""
    return worst > FAR * mean


def none_diverges() -> Claim:
    """Every split of every run ends better than at a constant prediction."""

    def check(rows: Sequence[Row]) -> Verdict:
        shares = {key[:3]: value for key, value in values(rows).items() if key[3] == "rmse_of_constant"}
        if not shares:
            return Verdict("not measured", "needs a run")
        worst = max(shares, key=shares.__getitem__)
        return Verdict.of(shares[worst] < 1, f"{' '.join(worst)}: {shares[worst]:.2f} of a constant's RMSE")

    return Claim("no split of any run diverges: none ends with the RMSE of a constant prediction", check)


def none_stands_out() -> Claim:
    """No split of any run does."""

    def check(rows: Sequence[Row]) -> Verdict:
        found = values(rows)
        runs = {key[:3]: (value, found[*key[:3], "rmse"]) for key, value in found.items() if key[3] == "rmse_worst"}
        if not runs:
            return Verdict("not measured", "needs a run")
        name, (worst, mean) = max(runs.items(), key=lambda run: run[1][0] / run[1][1])
        return Verdict.of(not stands_out(worst, mean), f"{' '.join(name)}: {worst / mean:.2f} times the mean")

    return Claim(f"no split of any run stands out: none above {FAR:g} times its run's mean RMSE", check)

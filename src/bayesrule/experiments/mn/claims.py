"""What is claimed of matrix normal posteriors, each claim checked over the rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from bayesrule.experiments.experiment import Claim, Verdict
from bayesrule.experiments.rows import Row

RESOLVED = 2.0
"""Standard errors that a difference must exceed; below it, it is told as not resolved."""
HIGHER_IS_BETTER = {"accuracy": True, "accuracy_pruned": True, "negative_elbo": False, "weights_left": False}


def by_method(rows: Iterable[Row], metric: str) -> dict[str, Row]:
    """The rows of a metric."""
    return {row.method: row for row in rows if row.metric == metric}


def told(row: Row) -> str:
    """Its mean and standard error."""
    return f"{row.method} {row.value:.6g}" + ("" if row.sem is None else f" ± {row.sem:.2g}")


def ahead(metric: str, better: str = "mn", worse: str = "diag", margin: float = 0.0) -> Claim:
    """One method is better than another, by at least a margin, beyond the spread of seeds."""
    sign = 1 if HIGHER_IS_BETTER.get(metric, True) else -1

    def check(rows: Sequence[Row]) -> Verdict:
        found = by_method(rows, metric)
        if better not in found or worse not in found:
            return Verdict("not measured", f"needs {better} and {worse}")
        return judged(found[better], found[worse], sign, margin)

    least = f" by at least {margin:g}" if margin else ""
    return Claim(f"{better} is better than {worse} in {metric}{least}", check)


def judged(better: Row, worse: Row, sign: int, margin: float) -> Verdict:
    """Whether the first is ahead, in the direction of the sign."""
    gain = sign * (better.value - worse.value)
    numbers = f"{told(better)}, {told(worse)}"
    if better.sem is None or worse.sem is None:
        return Verdict.of(gain > margin, f"{numbers}; one seed")
    spread = (better.sem**2 + worse.sem**2) ** 0.5
    if abs(gain) <= RESOLVED * spread:
        return Verdict("not held", f"{numbers}; not resolved")
    return Verdict.of(gain > margin, numbers)


def sparse(method: str, accuracy: float, *, share: float | None = None, count: int | None = None) -> Claim:
    """Accuracy after pruning, and at most a share (or a number) of the weights left."""

    def check(rows: Sequence[Row]) -> Verdict:
        found = {row.metric: row.value for row in rows if row.method == method}
        if not found:
            return Verdict("not measured", f"needs {method}")
        reached, left = found["accuracy_pruned"], found["weights_left"]
        most = share * found["weights_total"] if share is not None else float(count or 0)
        percent = 100 * left / found["weights_total"]
        return Verdict.of(
            reached >= accuracy and left <= most, f"{reached:.2f} % with {left:,.0f} left ({percent:.2f} %)"
        )

    bound = f"{share:.0%} of the weights" if share is not None else f"{count:,} weights"
    return Claim(f"{method}: at least {accuracy:g} % test accuracy after pruning with at most {bound} left", check)


def exactly(counts: Mapping[str, int]) -> Claim:
    """Totals of the network, in every row."""

    def check(rows: Sequence[Row]) -> Verdict:
        found = {metric: {row.value for row in rows if row.metric == metric} for metric in counts}
        held = all(found[metric] == {float(count)} for metric, count in counts.items())
        return Verdict.of(held, ", ".join(f"{metric} {sorted(values)}" for metric, values in found.items()))

    return Claim("the paper's totals: " + ", ".join(f"{metric} {count:,}" for metric, count in counts.items()), check)


def untrainable(method: str, most: float) -> Claim:
    """A method stays below an accuracy."""

    def check(rows: Sequence[Row]) -> Verdict:
        found = by_method(rows, "accuracy")
        if method not in found:
            return Verdict("not measured", f"needs {method}")
        return Verdict.of(found[method].value < most, told(found[method]))

    return Claim(f"{method} cannot be trained on this network: test accuracy below {most:g} %", check)


MN_AHEAD = (ahead("accuracy"), ahead("accuracy_pruned"), ahead("weights_left"), ahead("negative_elbo"))
"""The paper's claims for every sparse network: a better bound, higher accuracy, fewer weights left."""

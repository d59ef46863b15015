"""What the library claims about its cost, checked against what a run has measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bayesrule.bench.methods import METHODS, REFERENCE
from bayesrule.bench.peers import PEERS

STEP, STEP_HIGH = "step ratio", "step ratio high"
MEMORY, PREDICT = "memory ratio", "predict ratio"
EAGER, CAPTURED, CAPTURED_BF16 = "eager, float32", "captured, float32", "captured, bf16"
TIED = ("ktied", "ktied-local", "ktied-sample")
"""Whichever is cheaper: a user may choose."""
BAYESIAN = tuple(name for name in METHODS if name != REFERENCE)


@dataclass(frozen=True)
class Bound:
    """A cost, as a multiple of the point estimate's.

    Attributes:
        device: Of the claim.
        dataset: The model and the batch.
        variant: The mode.
        methods: Of which the cheapest counts.
        metric: What is bounded.
        most: By what.
    """

    device: str
    dataset: str
    variant: str
    methods: tuple[str, ...]
    metric: str
    most: float


BOUNDS = (
    Bound("cpu", "dense-4096, batch 256", EAGER, TIED, STEP_HIGH, 1.4),
    Bound("cpu", "mlp, batch 128", EAGER, TIED, STEP_HIGH, 2.2),
    Bound("cpu", "mlp, batch 1024", EAGER, TIED, STEP_HIGH, 1.6),
    Bound("cpu", "lenet, batch 128", EAGER, TIED, STEP_HIGH, 1.3),
    Bound("cpu", "lstm, batch 128", EAGER, TIED, STEP_HIGH, 1.4),
    Bound("cpu", "mlp, batch 1024", EAGER, ("vogn",), STEP, 1.8),
    Bound("cpu", "mlp, batch 1024", EAGER, ("ivon",), STEP, 1.35),
    Bound("cpu", "mlp, 10000 inputs at 100 draws", EAGER, ("ktied",), PREDICT, 1.05),
    Bound("cuda", "dense-4096x4, batch 8192", CAPTURED_BF16, TIED, STEP, 1.25),
    Bound("cuda", "dense-4096x4, batch 1024", CAPTURED_BF16, TIED, STEP, 1.35),
    Bound("cuda", "dense-4096x4, batch 8192", CAPTURED_BF16, TIED, MEMORY, 1.05),
    Bound("cuda", "mlp, batch 1024", CAPTURED_BF16, TIED, STEP, 1.2),
    Bound("cuda", "mlp, batch 1024", CAPTURED, TIED, STEP, 1.2),
    Bound("cuda", "mlp, batch 1024", EAGER, ("vogn",), STEP, 1.7),
    Bound("cuda", "mlp, batch 1024", EAGER, ("ivon",), STEP, 1.15),
    Bound("cuda", "mlp, 10000 inputs at 100 draws", EAGER, ("ktied",), PREDICT, 1.05),
)


def claims_of(rows: Sequence[Mapping[str, Any]], device: str) -> list[dict[str, str]]:
    """Those that the run says something about, each held or not."""
    found = {(row["dataset"], row["variant"], row["method"], row["metric"]): row["value"] for row in rows}
    claims = []
    for bound in BOUNDS:
        places = ((bound.dataset, bound.variant, method, bound.metric) for method in bound.methods)
        values = [found[place] for place in places if place in found]
        if values and bound.device == device:
            words = (
                f"{bound.dataset}, {bound.variant}, {' or '.join(bound.methods)}: {bound.metric} at most {bound.most:g}"
            )
            claims.append(claim(words, min(values) <= bound.most, f"{min(values):.4g}"))
    for dataset, variant in dict.fromkeys((row["dataset"], row["variant"]) for row in rows):
        steps = {method: value for method in (*METHODS, *PEERS)
                 if (value := found.get((dataset, variant, method, STEP))) is not None}  # fmt: skip
        theirs = {name: steps[name] for name in PEERS if name in steps}
        for told, names in (("a 2-tied step", TIED), ("the fastest Bayesian step here", BAYESIAN)):
            ours = {name: steps[name] for name in names if name in steps}
            if ours and theirs:
                (own, least), (fastest, bound) = (min(e.items(), key=lambda item: item[1]) for e in (ours, theirs))
                words = f"{dataset}, {variant}: {told} is no slower than any peer's"
                claims.append(claim(words, least <= bound, f"{own} {least:.4g}, {fastest} {bound:.4g}"))
    return claims


def claim(words: str, held: bool, detail: str) -> dict[str, str]:
    """As results keep them."""
    return {"claim": words, "standing": "held" if held else "not held", "detail": detail}

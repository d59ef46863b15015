"""Reports for the tests, of made-up data, and a reader of pages that checks what must hold of every one."""

from __future__ import annotations

import math
import re
from html.parser import HTMLParser

import numpy as np
import scipy.stats

from bayesrule.report import (
    Classification,
    EpochPoint,
    FeatureRows,
    Images,
    Method,
    Provenance,
    Regression,
    Report,
    Table,
    Usage,
    render,
)  # fmt: skip

LEVELS = [round(0.05 * step, 2) for step in range(1, 20)]
VOID = {"meta", "img", "br", "link"}


def history(epochs: int = 30, valid: bool = True) -> list[EpochPoint]:
    return [
        EpochPoint(epoch, 2 * math.exp(-epoch / 8) + 0.1, 2 - math.exp(-epoch / 9), min(1.0, epoch / 10),
                   2 * math.exp(-epoch / 8) + 0.2 + 0.002 * epoch if valid else None)
        for epoch in range(1, epochs + 1)
    ]  # fmt: skip


def stds(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).uniform(0.01, 0.2, shape)


def classification(n: int = 120, classes: int = 4, names: list[str] | None = None, sharpness: float = 2.0) -> Report:
    rng = np.random.default_rng(0)
    targets = rng.integers(0, classes, n)
    logits = sharpness * rng.standard_normal((n, classes)) + 3 * np.eye(classes)[targets]
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    predictions = Classification(probs, targets, names or [f"class {k}" for k in range(classes)], rng.random(n))
    metrics = {"test_nll": 0.4321, "test_accuracy": 0.9123, "test_ece": 0.0345}
    return Report(
        "A model", "some data", {"training": 1000, "validation": 100, "test": n}, predictions, metrics,
        methods=[
            Method("Bayesian network", metrics, 12345, 8.24, ours=True),
            Method("Point estimate", {"test_nll": 0.55, "test_accuracy": 0.95, "test_ece": 0.09}, 1234, 3.1),
        ],
        history=history(), inputs=Images(rng.random((n, 8, 6))),
        posterior_stds={"0.weight": stds(20, 30), "2.weight": stds(30, 4)},
        conversion=Table(("parameter", "numbers"), [("0.weight", "600"), ("0.bias", "30")]),
        notes=["12 missing values were imputed."],
        usage=Usage("import bayesrule as br", ("bayesrule predict m d.csv",)),
        provenance=Provenance("bayesrule fit", 7, {"bayesrule": "0.1.0"}),
    )  # fmt: skip


def regression(n: int = 90, scale: float = 1.0, stated: float = 1.0) -> Report:
    rng = np.random.default_rng(0)
    mean = scale * 5 * rng.standard_normal(n)
    epistemic, aleatoric = scale * rng.uniform(0.1, 0.4, n), scale * rng.uniform(0.5, 1.5, n)
    total = np.hypot(epistemic, aleatoric)
    targets = mean + total * rng.standard_normal(n)
    quantiles = np.stack([scipy.stats.norm.ppf(level, mean, stated * total) for level in LEVELS])
    predictions = Regression(mean, stated * epistemic, stated * aleatoric, LEVELS, quantiles, targets, "price")
    metrics = {"test_nll": 1.5, "test_rmse": 0.987, "test_coverage_90": 0.9111}
    rows = [[float(value), "red" if value > 0 else "blue"] for value in mean]
    return Report(
        "A model", "some data", {"training": 300, "test": n}, predictions, metrics,
        methods=[Method("Our network", metrics, ours=True), Method("Point estimate", {**metrics, "test_nll": 1.4})],
        history=history(valid=False), inputs=FeatureRows(["size", "colour"], rows), posterior_stds={"w": stds(3, 1)},
    )  # fmt: skip


class Page(HTMLParser):
    """Reads a page, checking that every tag is closed in order; keeps tags, attributes and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def check(report: Report) -> Page:
    """Everything that holds of every page."""
    text = render(report)
    page = Page(text)
    assert not page.named("script")
    assert "://" not in text
    assert not re.search(r"url\((?!data:)|@import|javascript:", text)
    assert all(attributes["src"].startswith("data:image/png;base64,") for attributes in page.named("img"))
    assert all(attributes["alt"] for attributes in page.named("img"))
    pictures = [attributes for attributes in page.named("svg") if "role" in attributes]
    assert all(attributes["aria-label"] for attributes in pictures)
    assert len(page.named("h1")) == 1
    places = re.findall(r'\b(?:x|y|x1|x2|y1|y2|cx|cy|r|width|height)="([^"]*)"', text)
    places += [value for path in re.findall(r'\bd="([^"]*)"', text) for value in re.findall(r"[^ML ]+", path)]
    assert all(math.isfinite(float(place)) and abs(float(place)) < 2000 for place in places)
    assert not [name for name in page.tags if name[1].get("onload") or name[1].get("onclick")]
    return page

"""From a report's content to one self-contained HTML file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bayesrule.nn.model_folder import write_atomically
from bayesrule.report.comparison import cards, comparison_rows, metrics_of, verdict
from bayesrule.report.content import FeatureRows, Images, Report
from bayesrule.report.examples import MOST_FEATURES, NO, YES, example_groups
from bayesrule.report.headline import headline
from bayesrule.report.intervals import coverage_figure, interval_figure
from bayesrule.report.learning_curve import learning_figures
from bayesrule.report.numbers import count, plural
from bayesrule.report.plot import Figure
from bayesrule.report.predictions import Classification
from bayesrule.report.reliability import declining_figure, reliability_figure
from bayesrule.report.spectrum import heat_maps, spectrum_figure, spectrum_table, usable_spectra


def write_report(report: Report, path: Path | str) -> None:
    """Write one HTML file that needs no network. The same report gives the same bytes."""
    # Text that came from a file in another encoding can hold characters UTF-8 has no bytes for.
    write_atomically(Path(path), render(report).encode("utf-8", errors="replace"))


def render(report: Report) -> str:
    """The page as text."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    loader = PackageLoader("bayesrule.report", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("page.html").render(_values(report))


def _values(report: Report) -> dict[str, Any]:
    left_out, report = _without_broken_predictions(report)
    columns = metrics_of(report.predictions)
    spectra = usable_spectra(report.posterior_stds)
    return {
        "report": report,
        "sizes": [(name, count(size)) for name, size in report.sizes.items()],
        "sentences": [] if left_out.all_of_them else headline(report.predictions),
        "cards": cards(report.metrics, columns),
        "columns": columns,
        "methods": comparison_rows(report.methods, columns),
        "verdict": verdict(report.methods),
        "calibration": [] if left_out.all_of_them else _calibration(report),
        "examples": [] if left_out.all_of_them else example_groups(report.predictions, report.inputs),
        "features": _features_note(report.inputs),
        "learning": learning_figures(report.history),
        "spectrum": spectrum_figure(spectra) if spectra else None,
        "spectrum_table": spectrum_table(spectra) if spectra else None,
        "heat": heat_maps(report.posterior_stds, spectra) if spectra else None,
        "notes": [*report.notes, *left_out.notes],
        "yes": YES,
        "no": NO,
    }


@dataclass(frozen=True)
class _LeftOut:
    """What could not be shown."""

    all_of_them: bool
    notes: tuple[str, ...]


def _without_broken_predictions(report: Report) -> tuple[_LeftOut, Report]:
    good = report.predictions.finite()
    if good.all():
        return _LeftOut(False, ()), report
    broken = f"Left out of this page, being no finite numbers: {plural(int((~good).sum()), 'test prediction')}."
    if not good.any():
        return _LeftOut(True, (broken,)), report
    chosen = np.flatnonzero(good)
    inputs = report.inputs
    if isinstance(inputs, Images):
        inputs = Images(inputs.pixels[chosen])
    elif isinstance(inputs, FeatureRows):
        inputs = FeatureRows(inputs.names, [inputs.rows[int(index)] for index in chosen])
    return _LeftOut(False, (broken,)), replace(report, predictions=report.predictions.only(chosen), inputs=inputs)


def _calibration(report: Report) -> list[Figure]:
    predictions = report.predictions
    if isinstance(predictions, Classification):
        return [reliability_figure(predictions), declining_figure(predictions)]
    return [interval_figure(predictions), coverage_figure(predictions)]


def _features_note(inputs: Images | FeatureRows | None) -> str:
    if not isinstance(inputs, FeatureRows) or len(inputs.names) <= MOST_FEATURES:
        return ""
    return f"The first {MOST_FEATURES} of {len(inputs.names)} features are shown."

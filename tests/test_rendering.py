"""Tables of results: metrics of single layers below each other, counts as whole numbers, times only where known."""

from __future__ import annotations

from typing import Any

from bayesrule.experiments.rendering import markdown_result, tables, text_result


def row(method: str, metric: str, value: float, paper: float | None = None, sem: float | None = None) -> dict[str, Any]:
    place = {"dataset": "d", "method": method, "variant": "", "metric": metric}
    return {**place, "value": value, "sem": sem, "n": 1, "paper": paper, "paper_sem": None}


ROWS = [
    row("mn", "weights_left", 30.0, 40.0),
    row("mn", "conv01_weights_left", 10.0, 15.0),
    row("mn", "conv01_rows_left", 2.5, sem=0.5),
    row("mn", "conv02_weights_left", 20.0, 25.0),
    row("mn", "conv02_rows_left", 4.0, sem=0.0),
    row("diag", "weights_left", 3.25),
    row("diag", "conv01_weights_left", 3.25),
]


def test_layers_stand_below_each_other_for_each_method() -> None:
    whole, mn, diag = tables(ROWS)
    assert whole.header == ["dataset", "method", "weights_left", "published"]
    assert whole.lines == [["d", "mn", "30", "40"], ["d", "diag", "3.250", "–"]]
    assert mn.header == ["layer", "weights left", "published", "rows left"]
    assert mn.lines == [["conv01", "10", "15", "2.500 ± 0.50"], ["conv02", "20", "25", "4 ± 0"]]
    assert (mn.caption, diag.caption) == ("Layer by layer: d, mn", "Layer by layer: d, diag")
    assert (diag.header, diag.lines) == (["layer", "weights left"], [["conv01", "3.250"]])


def test_numbers_that_end_a_name_or_have_one_digit_are_no_layers() -> None:
    rows = [row("m", name, 1.0) for name in ("log_likelihood_z40", "hidden1_left", "snr_median_1000", "coverage_90")]
    (table,) = tables(rows)
    assert table.header[2:] == [each["metric"] for each in rows]


def test_captions_and_times_are_told_in_both_forms() -> None:
    result = {"command": "c", "commit": "abc", "seed": 0, "wall_seconds": 2.3, "rows": ROWS}
    for written in (text_result, markdown_result):
        assert "2.3" not in written(result, "A title")
        told = written({**result, "compute_seconds": 125.0}, "A title")
        assert "computed in 2\u00a0min 5\u00a0s, seed 0" in told
        assert "\n\nLayer by layer: d, mn\n\n" in told

"""The report in a real browser: it fits the screen, both themes are legible, and it asks for nothing from outside."""

from __future__ import annotations

import importlib.util
import struct
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from bayesrule.report import FeatureRows, Report, Table, write_report
from report_samples import classification, regression

SCRIPT = Path(__file__).parents[1] / "docs" / "make_screenshots.py"


def load_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_screenshots", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


screenshots = load_script()
CHROMIUM = screenshots.find_chromium()
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]

LONG = "averylongnamewithoutanyplacetobreakit" * 4


def wide() -> Report:
    """Everything that could push the page wider than the screen."""
    report = regression()
    assert isinstance(report.inputs, FeatureRows)
    features = FeatureRows([f"feature {LONG[:20]} {k}" for k in range(30)], [[LONG] * 30] * len(report.predictions))
    return replace(
        report, title=LONG, data_name=LONG, inputs=features, notes=[LONG], sizes={LONG: 10**15},
        metrics={"test_nll": -1.23456e205, "test_rmse": 9.87e-300, "test_coverage_90": 0.5},
        methods=[replace(method, name=LONG + method.name, parameters=10**15) for method in report.methods],
        posterior_stds={LONG: next(iter(classification().posterior_stds.values()))},
        conversion=Table([f"column {k}" for k in range(12)], [[LONG] * 12] * 3),
    )  # fmt: skip


REPORTS = {
    "classes": classification(),
    "numbers": regression(),
    "wide": wide(),
    "many classes": classification(80, 200),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with screenshots.browser(CHROMIUM) as running:
        yield running


# Text whose contrast with what is painted behind it is below 4.5   [WCAG 2, 1.4.3].
FAINT = """(() => {
  const channels = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => channels(colour).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = node => {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if ((channels(colour)[3] ?? 1) > 0) return colour;
    }
  };
  const faint = [];
  for (const node of document.body.querySelectorAll('*')) {
    if (node.closest('title') || ![...node.childNodes].some(c => c.nodeType === 3 && c.data.trim())) continue;
    const style = getComputedStyle(node);
    const [a, b] = [light(node.closest('svg') ? style.fill : style.color), light(behind(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) faint.push(node.tagName + ' ' + node.className + ' ' + ratio.toFixed(2));
  }
  return faint;
})()"""


@pytest.mark.parametrize("name", REPORTS)
def test_the_page_fits_the_screen_and_is_legible(name: str, browser: Any, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    write_report(REPORTS[name], page)
    backgrounds = {}
    for width in (1280, 701, 390, 320):
        for scheme in ("light", "dark"):
            browser.complaints.clear()
            browser.requests.clear()
            browser.show(page, width, scheme)
            assert browser.evaluate("innerWidth") == width
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            assert browser.evaluate(FAINT) == []
            assert not browser.complaints
            assert [address for address in browser.requests if not address.startswith("data:")] == [page.as_uri()]
            backgrounds[scheme] = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert backgrounds["light"] != backgrounds["dark"]


@pytest.mark.parametrize(("width", "columns"), [(1280, 2), (390, 1)])
def test_charts_stand_in_one_column_on_a_phone(width: int, columns: int, browser: Any, tmp_path: Path) -> None:
    write_report(classification(), tmp_path / "report.html")
    browser.show(tmp_path / "report.html", width, "light")
    places = browser.evaluate("[...document.querySelectorAll('.pair > *')].map(x => x.getBoundingClientRect().left)")
    assert len(places) == 6
    assert len(set(places)) == columns
    sizes = "[...document.querySelectorAll('figure svg text')].map(t => t.getBoundingClientRect().height)"
    assert min(browser.evaluate(sizes)) >= 9


def test_wide_tables_scroll_inside_their_box(browser: Any, tmp_path: Path) -> None:
    write_report(wide(), tmp_path / "report.html")
    browser.show(tmp_path / "report.html", 390, "light")
    boxes = browser.evaluate("[...document.querySelectorAll('.scroll')].map(x => [x.scrollWidth, x.clientWidth])")
    assert max(inner for inner, _ in boxes) > 1000
    assert max(outer for _, outer in boxes) < 390


def test_hostile_names_run_nothing(browser: Any, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>"
    write_report(replace(classification(names=[hostile] * 4), title=hostile), tmp_path / "report.html")
    browser.complaints.clear()
    browser.show(tmp_path / "report.html", 390, "light")
    assert browser.evaluate("document.title").startswith(hostile)
    assert browser.evaluate("document.scripts.length") == 0
    assert not browser.complaints


def test_the_screenshots_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_report(classification(), tmp_path / "report.html")
    arguments = ["make_screenshots.py", str(tmp_path / "report.html"), "--out", str(tmp_path / "pictures")]
    monkeypatch.setattr(sys, "argv", arguments)
    screenshots.main()
    pictures = {path.stem: path.read_bytes() for path in (tmp_path / "pictures").iterdir()}
    sizes = {name: struct.unpack(">II", content[16:24]) for name, content in pictures.items()}
    assert {name: width for name, (width, _) in sizes.items()} == {
        "report-desktop-light": 1280, "report-desktop-dark": 1280, "report-phone-light": 780, "report-phone-dark": 780,
    }  # fmt: skip
    assert all(height > 2000 for _, height in sizes.values())
    assert len(set(pictures.values())) == 4

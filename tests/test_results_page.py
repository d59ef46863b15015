"""The results page shows every figure, each with its experiment; published counts are the exact ones."""

from __future__ import annotations

import importlib.util
import json
import math
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[1]
IMAGE = re.compile(r"^!\[(?P<alt>[^\]]+)\]\((?P<target>[^)]+)\)$", re.M)
FROM_THE_PAPER = {
    "mnist": [956_820, 481_614, 484_008, 486_402],
    "cifar-100": [4_405_320, 2_262_188, 2_267_408, 2_272_628],
    "imdb": [2_822_785, 2_692_993, 2_694_273, 2_695_553],
}
"""Behind the thousands of the k-tied paper's Fig. 6: mean-field, k = 1, 2, 3."""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_results_with_figures", ROOT / "docs" / "make_results.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def result_files(folder: Path, *experiments: str) -> Path:
    for experiment in experiments:
        path = folder / "results" / experiment / "result.json"
        path.parent.mkdir(parents=True)
        row = {"dataset": "d", "method": "m", "variant": "", "metric": "nll", "value": 1.0, "sem": None, "paper": None}
        result = {"experiment": experiment, "command": "do it", "commit": "abc", "seed": 0, "rows": [row]}
        path.write_text(json.dumps(result))
    return folder / "results"


def pictures(folder: Path, *names: str) -> Path:
    for name in names:
        path = folder / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    return folder / "pictures"


def test_every_figure_is_on_the_page_once() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    shown = [image["target"] for image in IMAGE.finditer(page)]
    files = [path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs/assets/results").rglob("*.png")]
    assert sorted(shown) == sorted(files)
    assert len({image["alt"] for image in IMAGE.finditer(page)}) == len(shown)


def test_a_figure_stands_in_the_section_of_its_experiment(script: ModuleType, tmp_path: Path) -> None:
    results = result_files(tmp_path, "a/figure6", "a/figure6-snr", "b/one")
    drawn = pictures(tmp_path, "a/figure6-snr-x.png", "a/figure6-curves.png", "b/one.png")
    sections = script.page(results, drawn).split("\n### ")[1:]
    assert {section.splitlines()[0]: IMAGE.findall(section) for section in sections} == {
        "a/figure6": [("a/figure6 (curves)", "assets/results/a/figure6-curves.png")],
        "a/figure6-snr": [("a/figure6-snr (x)", "assets/results/a/figure6-snr-x.png")],
        "b/one": [("b/one", "assets/results/b/one.png")],
    }


def test_a_figure_of_no_result_is_noticed(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a/figure61\.png belongs to no result"):
        script.page(result_files(tmp_path, "a/figure6"), pictures(tmp_path, "a/figure61.png"))


def test_the_results_of_a_paper_stand_together_in_its_order(script: ModuleType, tmp_path: Path) -> None:
    measured = ("elbo-audit", "blr/table1", "mn/table2", "mn/figure1", "mn/section4.1", "ktied/table1")
    page = script.page(result_files(tmp_path, *measured), pictures(tmp_path, "mn/table2.png"))
    in_order = ["ktied/table1", "mn/section4.1", "mn/figure1", "mn/table2", "blr/table1", "elbo-audit"]
    assert re.findall(r'^<a id="(.*)"></a>\n\n### \1 — .', page, re.M) == in_order
    assert re.findall(r"^- \[(.*)\]\(#\1\): .", page, re.M) == in_order
    headings = [*list(script.PAPERS.values())[:2], script.PAPERS["blr"], script.BEYOND]
    assert re.findall(r"^## (.*)$", page, re.M) == re.findall(r"^\*\*(.*)\*\*$", page, re.M) == headings


def test_results_lie_in_the_folder_of_their_experiment(script: ModuleType) -> None:
    for name, result in script.measured(ROOT / "results").items():
        assert name == result["experiment"] or name.startswith(f"{result['experiment']}/")


@pytest.mark.parametrize(
    ("asked", "dataset", "shown"),
    [
        ("reproduce x --out o --datasets yacht", "yacht", "reproduce x --data DIR --out o --datasets yacht"),
        ("example.py --data ../here --seed 0", "mnist", "example.py --data DIR --seed 0"),
        ("reproduce x --out o", "drawn", "reproduce x --out o"),
    ],
)
def test_commands_name_a_folder_where_files_are_read(script: ModuleType, asked: str, dataset: str, shown: str) -> None:
    assert script.command({"experiment": "x", "command": asked, "rows": [{"dataset": dataset}]}) == shown


def test_a_trial_is_never_published(script: ModuleType, tmp_path: Path) -> None:
    path = result_files(tmp_path, "mn/section4.1") / "mn/section4.1/result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "preset": "smoke", "synthetic": False}))
    with pytest.raises(ValueError, match="never published"):
        script.page(tmp_path / "results", pictures(tmp_path))


@pytest.mark.parametrize("name", ["table1", "figure6-predictive"])
def test_published_counts_are_exact(name: str) -> None:
    rows = json.loads((ROOT / "results" / "ktied" / name / "result.json").read_text())["rows"]
    counts = {(row["dataset"], row["method"]): row["value"] for row in rows if row["metric"] == "parameters"}
    methods = ["mean-field", "1-tied", "2-tied", "3-tied"]
    assert {dataset: [counts[dataset, method] for method in methods] for dataset in FROM_THE_PAPER} == FROM_THE_PAPER


@pytest.mark.parametrize(("method", "factors"), [("mean-field", 1), ("2-tied", 2)])
@pytest.mark.parametrize("step", [1000, 5000])
def test_early_bounds_are_those_of_deviations_that_grow_at_the_learning_rate(
    method: str, factors: int, step: int
) -> None:
    """What docs/ktied.md says of Fig. 6: Adam adds lr a step to each log-factor, and the rest of the −ELBO is small."""
    rows = json.loads((ROOT / "results/ktied/figure6-convergence/result.json").read_text())["rows"]
    (row,) = [row for row in rows if (row["method"], row["metric"]) == (method, f"negative_elbo_{step}")]
    assert row["variant"] == "σ₀ 0.001, prior 0.2, lr 0.0003"
    ratio = 0.001 * math.exp(factors * 0.0003 * step) / 0.2
    divergence = 956_820 / 2 * (-math.log(ratio) + ratio**2 / 2 - 0.5) / 50_000
    assert divergence < row["value"] < divergence + 0.5

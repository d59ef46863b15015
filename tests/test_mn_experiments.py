"""The experiments on matrix normal posteriors: totals, choices, claims, batches, and the conjugate check."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from scipy import stats
from torch import Tensor

from bayesrule.experiments import EXPERIMENTS, Context, Preset, Request, Row, reproduce
from bayesrule.experiments.mn import comparison, section41
from bayesrule.experiments.mn.claims import ahead, exactly, sparse, untrainable
from bayesrule.experiments.mn.comparison import Task, candidates, chosen, over_seeds
from bayesrule.experiments.mn.curves import draw_curves
from bayesrule.experiments.mn.recipe import Recipe
from bayesrule.experiments.mn.table3 import TABLE3
from bayesrule.experiments.mn.training import Flipped, accuracy, examples
from bayesrule.nn.annealing import Exponential, LinearOverEpochs
from bayesrule.train import TensorBatches


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("name", "totals"),
    [
        ("mn/table1", {"weights_total": 62_270}),
        ("mn/table2", {"weights_total": 246_940, "rows_total": 4_527, "columns_total": 540}),
    ],
)
def test_the_paper_s_totals_are_rows_of_the_tables(name: str, totals: dict[str, int], tmp_path: Path) -> None:
    result = reproduce(EXPERIMENTS[name], Request("smoke", tmp_path / "out", methods=("mn",)))
    values = {row["metric"]: row["value"] for row in result["rows"]}
    assert {metric: values[metric] for metric in totals} == totals
    assert exactly(totals).check([Row(**row) for row in result["rows"]]).standing == "held"
    layers = [values[f"conv{number:02}_weights_left"] for number in range(1, 13)]
    assert sum(layers) <= values["weights_left"] <= values["weights_total"]
    assert sum(values[f"conv{number:02}_rows_left"] for number in range(1, 13)) == values["rows_left"]


def context(tmp_path: Path, settings: dict[str, object], seed: int = 0) -> Context:
    preset = Preset(("mnist",), ("diag", "mn"), settings)
    return Context(preset, preset.datasets, preset.methods, None, tmp_path, torch.device("cpu"), seed)


SETTINGS: dict[str, object] = {
    "epochs": 3, "seeds": 3, "draws": 1, "lrs": [1e-3, 3e-3], "annealings": ["linear", "exponential"], "batch_size": 8,
    "epochs_of": {"mn-kronecker": 2},
}  # fmt: skip


def test_methods_are_tuned_over_the_same_settings() -> None:
    task = Task("fc", "mnist", "ard")
    diag, mn = (
        [(recipe.lr, recipe.annealing, recipe.epochs) for recipe in candidates(task, method, SETTINGS, 0)]
        for method in ("diag", "mn")
    )
    assert diag == mn
    assert len(set(diag)) == 4
    assert {recipe.epochs for recipe in candidates(task, "mn-kronecker", SETTINGS, 0)} == {2}


def test_the_best_on_validation_is_trained_with_every_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = {(1e-3, "linear"): 3.0, (1e-3, "exponential"): 1.0, (3e-3, "linear"): 2.0, (3e-3, "exponential"): 4.0}
    monkeypatch.setattr(comparison, "_score", lambda _, recipe: scores[recipe.lr, recipe.annealing])
    found = over_seeds(context(tmp_path, SETTINGS, seed=7), Task("fc", "mnist", "ard"), "mn")
    assert {(recipe.lr, recipe.annealing) for recipe in found} == {(1e-3, "exponential")}
    assert [recipe.seed for recipe in found] == [7, 8, 9]


def test_a_single_setting_is_not_scored(tmp_path: Path) -> None:
    settings = {**SETTINGS, "lrs": [2e-3], "annealings": ["linear"]}
    assert chosen(context(tmp_path, settings), Task("fc", "mnist", "ard"), "mn").lr == 2e-3


def test_annealing_reaches_full_weight_in_its_share() -> None:
    linear = Recipe("fc", "mnist", "mn", "ard", 10, annealing="linear").kl_weight(30)
    exponential = Recipe("fc", "mnist", "mn", "ard", 10, annealing="exponential").kl_weight(30)
    assert linear == LinearOverEpochs(5.0, 30)
    assert exponential == Exponential(150)
    assert linear(150) == exponential(150) == 1.0
    assert linear(149) < 1
    assert exponential(149) < 1


def test_flips_mirror_about_half_of_the_images() -> None:
    x = torch.arange(400 * 2 * 3.0).reshape(400, 1, 2, 3)
    flipped, seen = 0, []
    batches = Flipped(TensorBatches(x, torch.arange(400), batch_size=50))
    assert len(batches) == 8
    for images, index in batches:
        for image, number in zip(images, index, strict=True):
            mirrored = bool(torch.equal(image, x[number].flip(-1)))
            assert mirrored or bool(torch.equal(image, x[number]))
            flipped += mirrored
            seen.append(int(number))
    assert sorted(seen) == list(range(400))
    # A fair coin leaves this range with probability 1e-6.
    assert stats.binom.ppf(5e-7, 400, 0.5) <= flipped <= stats.binom.isf(5e-7, 400, 0.5)


def test_grey_images_lie_in_the_unit_interval() -> None:
    found = examples(Recipe("fc", "mnist", "mn", "ard", 1, synthetic=64), None, torch.device("cpu"))
    assert found.train_x.min() >= 0
    assert 0.8 < found.train_x.max() <= 1


def test_accuracy_counts_all_parts() -> None:
    def network(x: Tensor) -> Tensor:
        return torch.stack([-x[:, 0], x[:, 0]], 1)

    x = torch.linspace(-1, 1, 4001)[:, None]
    y = (x[:, 0] > 0.5).long()
    assert accuracy(network, x, y) == pytest.approx(100 * (4001 - 1000) / 4001)


def rows(metric: str, **values: tuple[float, float | None]) -> list[Row]:
    return [Row("d", method, "", metric, value, sem, 3) for method, (value, sem) in values.items()]


@pytest.mark.parametrize(
    ("found", "standing", "told"),
    [
        (rows("accuracy", mn=(99.0, 0.1), diag=(98.0, 0.1)), "held", "mn 99"),
        (rows("accuracy", mn=(98.1, 0.1), diag=(98.0, 0.1)), "not held", "not resolved"),
        (rows("accuracy", mn=(97.0, 0.1), diag=(98.0, 0.1)), "not held", "diag 98"),
        (rows("accuracy", mn=(99.0, None), diag=(98.0, None)), "held", "one seed"),
        (rows("accuracy", mn=(99.0, 0.1)), "not measured", "needs"),
    ],
)
def test_ahead(found: Sequence[Row], standing: str, told: str) -> None:
    verdict = ahead("accuracy").check(found)
    assert verdict.standing == standing
    assert told in verdict.detail


def test_fewer_weights_and_a_lower_bound_are_better() -> None:
    for metric in ("weights_left", "negative_elbo"):
        assert ahead(metric).check(rows(metric, mn=(1.0, 0.01), diag=(2.0, 0.01))).standing == "held"
        assert ahead(metric).check(rows(metric, mn=(2.0, 0.01), diag=(1.0, 0.01))).standing == "not held"
    assert ahead("accuracy", margin=2).check(rows("accuracy", mn=(3.0, 0.1), diag=(2.0, 0.1))).standing == "not held"


def test_claims_on_sparsity() -> None:
    def found(accuracy: float, left: float) -> list[Row]:
        values = {"accuracy_pruned": accuracy, "weights_left": left, "weights_total": 1000.0}
        return [Row("d", "mn", "", metric, value, None, 1) for metric, value in values.items()]

    claim = sparse("mn", 98.0, share=0.05)
    assert claim.check(found(98.0, 50)).standing == "held"
    assert claim.check(found(97.9, 50)).standing == "not held"
    assert claim.check(found(98.0, 51)).standing == "not held"
    assert sparse("mn", 98.0, count=60).check(found(98.5, 60)).standing == "held"
    assert sparse("diag", 98.0, count=60).check(found(98.5, 60)).standing == "not measured"
    assert untrainable("diag", 50).check(rows("accuracy", diag=(10.0, 0.1))).standing == "held"
    assert untrainable("diag", 50).check(rows("accuracy", diag=(80.0, 0.1))).standing == "not held"


def test_the_auto_encoders_claims() -> None:
    def found(**values: tuple[float, float]) -> list[Row]:
        return [
            Row("binarized-mnist", method, "", f"log_likelihood_z{size}", value, sem, 3, -89.0)
            for size in (40, 9)
            for method, (value, sem) in values.items()
        ]

    close, ordered, *_ = TABLE3.claims
    good = found(diag=(-90.4, 0.05), mn=(-90.0, 0.05), mv=(-89.0, 0.05))
    assert close.check(good).standing == ordered.check(good).standing == "held"
    far = found(diag=(-90.6, 0.05), mn=(-90.0, 0.05), mv=(-90.1, 0.05))
    assert close.check(far).standing == ordered.check(far).standing == "not held"
    assert "not resolved" in ordered.check(far).detail
    assert close.check(found(diag=(-90.0, 0.1))).standing == "not measured"


def test_the_conjugate_check_recovers_the_posterior() -> None:
    problem = section41.Regression.drawn(4, 3, 60, seed=1)
    covariance = torch.eye(60, dtype=torch.float64) / 4 + problem.x / problem.prior_precision @ problem.x.mT
    law = stats.multivariate_normal(torch.zeros(60).numpy(), covariance.numpy())
    assert problem.log_evidence().item() == pytest.approx(law.logpdf(problem.y.mT.numpy()).sum(), rel=1e-10)
    found = {name: section41.measure(family, problem) for name, family in section41.FAMILIES.items()}
    for name in ("mn", "full"):
        assert max(found[name]["mean_error"], found[name]["covariance_error"]) < 1e-5
        assert found[name]["elbo_gap"] == pytest.approx(0, abs=1e-6)
    assert found["diag"]["mean_error"] < 1e-6
    assert found["diag"]["covariance_error"] > 0.1
    assert found["diag"]["elbo_gap"] > 0.5


def test_published_counts_add_up() -> None:
    """Layers are printed in rounded thousands: their sums are within half a unit a layer of the printed totals."""
    folder = Path(comparison.__file__).parent
    for name, method, unit, metric in (
        ("table1", "diag", 100, "weights_left"),
        ("table1", "mn-free", 100, "weights_left"),
        ("table2", "mn", 100, "weights_left"),
        ("table2", "mn", 10, "rows_left"),
        ("table2", "mn", 1, "columns_left"),
    ):
        rows = json.loads((folder / f"{name}.json").read_text())["rows"]
        values = {row["metric"]: row["value"] for row in rows if row["method"] == method}
        layers = sum(values[f"conv{number:02}_{metric}"] for number in range(1, 13))
        dense = values[metric] - layers
        assert -6 * unit <= dense <= 1600 + 6 * unit if metric == "weights_left" else abs(dense) <= 6 * unit


@pytest.mark.parametrize(("points", "marker"), [(1, "o"), (25, "")])
def test_a_curve_of_one_epoch_can_be_seen(points: int, marker: str) -> None:
    pytest.importorskip("matplotlib")
    curve = [
        {"epoch": epoch, "accuracy": 90.0, "weights_left": 5.0, "negative_elbo": 1.0} for epoch in range(1, points + 1)
    ]
    for axis in draw_curves({"mn": [curve]}).axes:
        thin, mean = axis.lines
        assert mean.get_marker() == marker
        assert list(mean.get_xdata()) == list(thin.get_xdata()) == list(range(1, points + 1))


def test_a_recipe_tells_one_epoch_from_several() -> None:
    assert Recipe("fc", "mnist", "mn", "ard", 1).told() == "lr 0.001, linear annealing, 1 epoch"
    assert Recipe("fc", "mnist", "mn", "ard", 2).told() == "lr 0.001, linear annealing, 2 epochs"

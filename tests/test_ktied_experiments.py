"""The experiments on k-tied posteriors: counts, settings, claims, and what is made of cells and records."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import bayesrule as br
from bayesrule.experiments import EXPERIMENTS, Claim, Context, Row, Verdict
from bayesrule.experiments.ktied import (
    appendix_figure3,
    convergence,
    figure6_predictive,
    measuring,
    search,
    settings,
    table1,
)
from bayesrule.experiments.ktied.counts import FORMULAS, by_formula, parameters, tied_weights
from bayesrule.experiments.ktied.evaluation import Score
from bayesrule.experiments.ktied.low_rank import compressed, rank_of, std_matrices
from bayesrule.experiments.ktied.rank_choice import ranks_by_loss
from bayesrule.experiments.ktied.recipe import Recipe
from bayesrule.experiments.ktied.settings import MODEL_OF, POSTERIORS, THREE
from bayesrule.experiments.ktied.step_times import interleaved_times, median_and_error
from bayesrule.experiments.ktied.training import examples, targets, train_recipe

EXACT = {
    "mnist": [956_820, 481_614, 484_008, 486_402],
    "cifar-100": [4_405_320, 2_262_188, 2_267_408, 2_272_628],
    "imdb": [2_822_785, 2_692_993, 2_694_273, 2_695_553],
}


@pytest.fixture
def context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    preset = settings.presets(THREE, POSTERIORS, ["annealed", "converged", "curve"], parts=["search"])["smoke"]
    return Context(preset, ("mnist",), POSTERIORS, None, tmp_path / "out", torch.device("cpu"), 0)


@pytest.mark.parametrize("dataset", THREE)
def test_parameter_counts_are_exact(dataset: str) -> None:
    assert [parameters(MODEL_OF[dataset], posterior) for posterior in POSTERIORS] == EXACT[dataset]
    assert [by_formula(MODEL_OF[dataset], posterior) for posterior in POSTERIORS] == EXACT[dataset]


def test_table1_counts_every_family() -> None:
    preset = EXPERIMENTS["ktied/table1"].presets["paper"]
    context = Context(preset, THREE, tuple(FORMULAS), None, Path(), torch.device("cpu"), 0)
    rows = {(row.dataset, row.method): row.value for row in table1.run(context)}
    assert [[rows[name, method] for method in POSTERIORS] for name in THREE] == [EXACT[name] for name in THREE]
    m, n = zip(*tied_weights("mlp"), strict=True)
    assert (m, n) == ((784, 400, 400), (400, 400, 10))
    full = sum(a * b * (a * b + 1) // 2 - a * b for a, b in zip(m, n, strict=True))
    assert rows["mnist", "multivariate-normal"] == 956_820 + full


def test_the_formulas_are_those_of_the_families() -> None:
    families = {"mean-field": br.Diagonal(), **{f"{rank}-tied": br.KTied(rank) for rank in (1, 2, 3)}}
    for name, family in families.items():
        assert sum(value.numel() for value in family.init(torch.zeros(5, 3)).values()) == FORMULAS[name](5, 3)
    triangle = {size: len(np.tril_indices(size)[0]) for size in (3, 5, 15)}
    assert FORMULAS["multivariate-normal"](5, 3) == 15 + triangle[15]
    assert FORMULAS["matrix-normal"](5, 3) == 15 + triangle[5] + triangle[3]
    assert FORMULAS["matrix-normal-diagonal"](5, 3) == FORMULAS["1-tied"](5, 3) == 15 + 5 + 3


def test_figure6_reports_the_full_networks_parameters(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = {"negative_elbo_draw_spread": 0.0, **dict.fromkeys(measuring.SCORES, 1.0)}
    monkeypatch.setattr(figure6_predictive, "measured", lambda *key: cell)
    rows = figure6_predictive.run(replace(context, datasets=THREE))
    counts = {(row.dataset, row.method): row.value for row in rows if row.metric == "parameters"}
    assert counts == {
        (name, method): count for name in THREE for method, count in zip(POSTERIORS, EXACT[name], strict=True)
    }


def row(method: str, metric: str, value: float, dataset: str = "mnist") -> Row:
    return Row(dataset, method, "", metric, value, None, 1)


def claims(name: str) -> dict[str, Claim]:
    return {stated.name: stated for stated in EXPERIMENTS[f"ktied/{name}"].claims}


HELD = {
    ("table1", "exactly"): [
        row(method, "parameters", count, name)
        for name, counts in EXACT.items() for method, count in zip(POSTERIORS, counts, strict=True)
    ],
    ("table2", "at least 97.2"): [row("mean-field", "accuracy", 97.3)],
    ("table2", "at most 0.115"): [row("mean-field", "nll", 0.11)],
    ("table2", "mnist: rank 2 changes mean-field's NLL"): [row("mean-field", "nll", 0.1), row("2-tied", "nll", 0.112)],
    ("table2", "mnist: rank 2 changes mean-field's acc"): [
        row("mean-field", "accuracy", 97.6), row("2-tied", "accuracy", 97.4),
    ],
    ("table2", "mnist: rank 1 hurts the ELBO visibly"): [
        row("mean-field", "negative_elbo", 0.43), row("1-tied", "negative_elbo", 3.4),
    ],
    ("figure3", "mnist: the top"): [row("stds", f"dense_{number}_top1", 0.96) for number in (1, 2, 3)],
    ("figure3", "imdb: and less than half"): [
        row("means", f"{layer}_top1", 0.1, "imdb") for layer in ("kernel", "recurrent_kernel")
    ],
    ("figure6-predictive", "mnist: 2- and 3-tied within"): [
        row("mean-field", "accuracy", 97.0), row("2-tied", "accuracy", 97.2), row("3-tied", "accuracy", 96.8),
    ],
    ("figure6-snr", "ratio of 2-tied"): [
        row("mean-field", "snr_median_1000", 20), row("2-tied", "snr_median_1000", 1000),
    ],
    ("figure6-convergence", "of 2-tied is at most a third"): [
        row("mean-field", "negative_elbo_9000", 20.6), row("2-tied", "negative_elbo_9000", 1.6),
    ],
    ("appendix-figure3", "mnist: the standard deviations"): [row("mean-field", "std_over_prior_min", 0.6)],
    ("table4", "a 2-tied step"): [
        row("mean-field", "step_ms", 7.0, "784-128-10"), row("2-tied", "step_ms", 6.0, "784-128-10"),
    ],
}  # fmt: skip
BROKEN = {
    "exactly": 1.0, "at least 97.2": 97.1, "at most 0.115": 0.116, "changes mean-field's NLL": 0.12,
    "changes mean-field's acc": 97.2, "hurts the ELBO visibly": 0.44, "the top": 0.94, "less than half": 0.51,
    "within": 96.6, "ratio of 2-tied": 150.0, "at most a third": 8.0, "the standard deviations": 0.4,
    "a 2-tied step": 8.0,
}  # fmt: skip
"""What the last number becomes in a result that breaks the claim."""


@pytest.mark.parametrize(("name", "words"), HELD, ids=lambda part: part[:30])
def test_claims_are_judged(name: str, words: str) -> None:
    (stated,) = [each for title, each in claims(name).items() if words in title]
    rows = HELD[name, words]
    assert stated.check(rows).standing == "held"
    (value,) = [value for part, value in BROKEN.items() if part in words]
    assert stated.check([*rows[:-1], replace(rows[-1], value=value)]).standing == "not held"
    assert stated.check(rows[:-1]).standing == "not measured"


def test_the_smaller_gain_of_a_partly_tied_model() -> None:
    (stated,) = [each for title, each in claims("figure7").items() if "cifar-100" in title]
    values = {"mnist": (5.0, 10.0), "cifar-100": (9.0, 10.0), "imdb": (4.0, 5.0)}

    def rows(found: dict[str, tuple[float, float]]) -> list[Row]:
        return [
            row(method, "negative_elbo_over_curve", value, name)
            for name, pair in found.items()
            for method, value in zip(("2-tied", "mean-field"), pair, strict=True)
        ]

    assert stated.check(rows(values)) == Verdict("held", "50.0%, 10.0%, 20.0%")
    assert stated.check(rows(values | {"cifar-100": (7.0, 10.0)})).standing == "not held"


def test_scores_over_seeds() -> None:
    cells = [{"nll": 0.1, "nll_sem": 0.02, "ece": 0.3}, {"nll": 0.3, "nll_sem": 0.04, "ece": 0.5}]
    rows = measuring.score_rows(cells, ["nll", "ece", "nll_seed_spread"], dataset="mnist", method="m")
    assert [each.metric for each in rows] == ["nll", "ece", "nll_seed_spread"]
    assert [each.value for each in rows] == pytest.approx([0.2, 0.4, np.std([0.1, 0.3], ddof=1)], rel=1e-12)
    assert rows[0].sem == pytest.approx(0.03, rel=1e-12)
    assert rows[1].sem is None
    alone = measuring.score_rows(cells[:1], ["nll", "nll_seed_spread"], dataset="mnist", method="m")
    assert [each.metric for each in alone] == ["nll"]


def test_unknown_parts_of_scores_are_left_out() -> None:
    assert measuring.plain({"ece": Score(0.1, math.nan), "nll": Score(0.2, 0.01, 0.003)}) == {
        "ece": 0.1, "nll": 0.2, "nll_sem": 0.01, "nll_draw_spread": 0.003,
    }  # fmt: skip


def test_settings_make_recipes(context: Context) -> None:
    made = settings.recipe(context, "mnist", "curve", "2-tied", 3, estimator="local")
    assert (made.model, made.posterior, made.seed, made.estimator) == ("mlp", "2-tied", 3, "local")
    assert made.slope is None
    assert made.snr_at == (10, 15, 20)
    assert settings.stated(made) == "σ₀ 0.001, prior 0.2, lr 0.003"
    contents = json.loads(settings.FILE.read_text())
    assert settings.FILE.read_text() == settings.as_text(contents)
    for preset in contents.values():
        assert isinstance(preset, str) or set(preset["runs"]) == set(MODEL_OF)


def test_the_search_writes_what_it_chose(context: Context) -> None:
    contents = json.loads(settings.FILE.read_text())
    rows = [
        {"dataset": "mnist", "method": method, "variant": str(point), "metric": "chosen", "value": float(number == 1)}
        for method in search.METHODS
        for number, point in enumerate(search.grid(context, method))
    ]
    changed = search.with_choice(contents, rows)["paper"]["runs"]["mnist"]
    chosen = {"prior_std": 0.3, "lr": 0.001, "slope": 5e-05}
    assert changed["annealed"]["mean-field"] == changed["annealed"]["tied"] == chosen
    assert changed["converged"]["recipe"]["prior_std"] == 0.3
    assert changed["converged"]["recipe"]["slope"] is None
    assert (
        changed["converged"]["recipe"]["epochs"] == contents["paper"]["runs"]["mnist"]["converged"]["recipe"]["epochs"]
    )
    assert contents == json.loads(settings.FILE.read_text())


def test_a_run_records_probes_ratios_and_stds(context: Context) -> None:
    recipe = settings.recipe(context, "mnist", "curve", "2-tied", 0)
    found = train_recipe(context, recipe)
    numbers = convergence.from_record(found.record, recipe)
    assert sorted(convergence.curve(numbers)) == [5.0, 10.0, 15.0, 20.0]
    assert numbers["negative_elbo_9000"] == numbers["step 20"]
    assert numbers["snr_median_1000"] - 1 == pytest.approx(numbers["snr_usual_median_1000"], rel=1e-12)
    stds = found.record["mean_stds"]["3.weight"]
    assert len(stds) == recipe.epochs
    assert stds[-1] == pytest.approx(found.bnn.posteriors()["3.weight"].stddev.mean().item(), rel=1e-5)
    data = examples(recipe, None, context.device)
    with torch.no_grad():
        outputs = br.predict(found.bnn, data.valid_x, 8, seed=0).outputs
        log_probs = [torch.log_softmax(each.double(), -1)[torch.arange(len(each)), data.valid_y] for each in outputs]
        expected = -torch.stack(log_probs).mean() + br.kl(found.bnn).double() / len(data.train_y)
    assert numbers["step 20"] == pytest.approx(expected.item(), rel=1e-5)


def test_reviews_have_one_number_as_target(context: Context) -> None:
    review, image = (Recipe(model, "mean-field", 1, synthetic=8) for model in ("lstm", "mlp"))
    y = torch.tensor([0, 1])
    assert targets(review, y).tolist() == [[0.0], [1.0]]
    assert torch.equal(targets(image, y), y)


def test_summary_of_standard_deviations() -> None:
    recipe = Recipe("mlp", "mean-field", 4, prior_std=0.2, anneal_epochs=2)
    found = appendix_figure3.summary({"a": [0.01, 0.02, 0.05, 0.1], "b": [0.01, 0.04, 0.1, 0.2]}, recipe)
    assert found == pytest.approx(
        {"std_end": 0.15, "std_over_prior_mean": 0.75, "std_over_prior_min": 0.5, "change_after_annealing": 5.0},
        rel=1e-12,
    )


@pytest.fixture
def bnn() -> br.nn.BayesianModule:
    model = Recipe("mlp", "mean-field", 1, synthetic=8).build()
    rough = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("log_std"):
                parameter.add_(torch.randn(parameter.shape, generator=rough))
    return model


def test_truncated_matrices_are_those_of_numpy(bnn: br.nn.BayesianModule) -> None:
    found = std_matrices(bnn, "mnist", "dense_2", [1, 2])
    free = found["mean-field"].numpy()
    u, s, v = np.linalg.svd(free)
    for rank in (1, 2):
        expected = (u[:, :rank] * s[:rank]) @ v[:rank]
        low = 0.98 * free.min()  # below this entries are raised to a floor just under the smallest
        kept = expected > 1.02 * free.min()
        assert found[f"{rank}-tied"].numpy()[kept] == pytest.approx(expected[kept], rel=1e-4)
        assert (found[f"{rank}-tied"].numpy() > low * 0.9).all() or rank == 1
    assert [rank_of(name) for name in POSTERIORS] == [None, 1, 2, 3]
    assert compressed(bnn, "mnist", "mean-field") is bnn
    lean = compressed(bnn, "mnist", "1-tied")
    assert all(row.rank == 1 for row in lean.compression)


def test_ranks_are_the_smallest_that_cost_little(bnn: br.nn.BayesianModule) -> None:
    full = {name: posterior.stddev.detach() for name, posterior in bnn.posteriors().items()}

    @torch.no_grad()
    def loss(model: br.nn.BayesianModule) -> float:
        stds = {name: posterior.stddev for name, posterior in model.posteriors().items()}
        return sum(float((stds[name] - std).square().sum()) for name, std in full.items())

    candidates = {"3": list(range(1, 20)), "5": [1, 2]}
    spectrum = np.linalg.svd(full["3.weight"].numpy(), compute_uv=False) ** 2
    # Clipping may only shrink the error, so the rank is at most that of the unclipped truncation.
    tolerance = 2 * float(spectrum[6:].sum()) * 1.0001
    found = ranks_by_loss(bnn, loss, candidates, tolerance)
    assert 4 <= found["3"] <= 6
    assert loss(br.compress(bnn, {"3": found["3"]})) <= tolerance / 2
    assert loss(br.compress(bnn, {"3": found["3"] - 1})) > tolerance / 2
    assert "5" not in ranks_by_loss(bnn, loss, {"5": [1, 2]}, 0.0)


def test_steps_take_turns() -> None:
    order: list[str] = []
    times = interleaved_times({name: (lambda name=name: order.append(name)) for name in "ab"}, 2, torch.device("cpu"))
    assert order.count("a") == order.count("b") > 2  # warming up, and two rounds
    assert [len(seconds) for seconds in times.values()] == [2, 2]
    assert median_and_error([1.0]) == (1.0, None)
    assert median_and_error([1.0, 2.0, 6.0]) == pytest.approx((2.0, np.std([1, 2, 6], ddof=1) / 3**0.5), rel=1e-6)

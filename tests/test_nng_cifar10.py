"""CIFAR-10 at equal time: the clock, the step sizes, the images, the choice, and a whole small run."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule.experiments import EXPERIMENTS, Context
from bayesrule.experiments.nng import cifar10, timed_training
from bayesrule.experiments.nng.cifar10 import CIFAR10, METHODS, METRICS, better, chosen, words
from bayesrule.experiments.nng.timed_training import (
    LOOK,
    MARGIN,
    OPTIMIZERS,
    Stopwatch,
    Trainer,
    annealed,
    crops,
    scores,
    train_for,
    vgg,
)
from bayesrule.experiments.rows import Row

CPU = torch.device("cpu")


class Ticking:
    """A clock that a step moves by a second, and a look by a hundred."""

    def __init__(self) -> None:
        self.now = 0.0
        self.rates: list[float] = []

    def __call__(self) -> float:
        return self.now


def ticking_trainer(clock: Ticking, lr: float) -> Trainer:
    class Steps(Trainer):
        def step(self, x: Tensor, y: Tensor) -> None:
            clock.now += 1
            clock.rates.append(self.optimizer.param_groups[0]["lr"])

    net = nn.Linear(1, 1)
    return Steps(net, torch.optim.SGD(net.parameters(), lr=lr))


def nothing() -> Iterator[tuple[Tensor, Tensor]]:
    return ((torch.zeros(1), torch.zeros(1)) for _ in count())


def test_a_run_ends_when_its_seconds_are_spent_and_looks_are_free() -> None:
    clock = Ticking()

    def look(trainer: Trainer) -> dict[str, float]:
        clock.now += 100
        return {"seen": clock.now}

    done = train_for(
        6 * LOOK, ticking_trainer(clock, 0.5), nothing(), CPU, look_at=[0.5, 1.0], look=look, clock=clock
    )  # fmt: skip
    assert (done.steps, done.seconds) == (6 * LOOK, 6 * LOOK)
    assert list(done.curve) == [3 * LOOK, 6 * LOOK]
    assert done.curve[6 * LOOK] == {"seen": 6 * LOOK + 200}


def test_the_step_size_follows_the_share_that_is_spent() -> None:
    clock = Ticking()
    train_for(4 * LOOK, ticking_trainer(clock, 0.5), nothing(), CPU, clock=clock)
    want = [0.5 * math.cos(math.pi * share / 2) ** 2 for share in (0, 0.25, 0.5, 0.75) for _ in range(LOOK)]
    assert clock.rates == pytest.approx(want, abs=1e-15)
    assert annealed(1.3) == pytest.approx(0.0, abs=1e-15)


def test_a_stopped_watch_does_not_run() -> None:
    clock = Ticking()
    watch = Stopwatch(CPU, clock)
    watch.start()
    clock.now += 2
    assert watch.stop() == 2
    clock.now += 50
    assert watch.stop() == 2


def test_crops_are_moved_images() -> None:
    torch.manual_seed(0)
    x = torch.randn(40, 3, 12, 9)
    padded, moved = F.pad(x, (MARGIN,) * 4), set()
    for image, around in zip(crops(x), padded, strict=True):
        fits = [(i, j) for i in range(2 * MARGIN + 1) for j in range(2 * MARGIN + 1)
                if torch.equal(image, around[:, i : i + 12, j : j + 9])]  # fmt: skip
        assert len(fits) == 1
        moved.add(fits[0])
    assert len(moved) > 20


@pytest.mark.parametrize("method", ["noisy-adam", "noisy-kfac"])
def test_normalisations_have_no_posterior(method: str) -> None:
    data = cifar10.ready_set("cifar-10", None, CPU, validation=10, synthetic=40)
    trainer = Trainer.of(method, {"lr": 0.1}, {"width": 2, "options": cifar10.OPTIONS}, data, 0)
    assert isinstance(trainer.optimizer, br.optim.PosteriorOptimizer)
    rules = {row.name: row.rule for row in trainer.optimizer.plan}
    kernels = {name for name, p in trainer.net.named_parameters() if p.ndim > 1}
    assert {name for name, rule in rules.items() if rule != "Adam"} == {*kernels, "23.bias"}
    assert len(kernels) == 7


def test_the_network_takes_images() -> None:
    assert vgg(2)(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_scores_of_known_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Identity()
    trainer = Trainer(net, torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    logits = torch.tensor([[0.75, 0.25], [0.75, 0.25]], dtype=torch.float64).log()
    found = scores(trainer, logits, torch.tensor([0, 1]), samples=1)
    assert found == pytest.approx({"accuracy": 50.0, "nll": -(math.log(0.75) + math.log(0.25)) / 2, "ece": 0.25})


def test_every_method_has_as_many_candidates() -> None:
    for preset in CIFAR10.presets.values():
        candidates = preset.settings["candidates"]
        assert set(candidates) == set(METHODS) == set(OPTIMIZERS)
        assert len({len(set(map(words, each))) for each in candidates.values()}) == 1


def test_the_candidate_with_the_least_validation_nll_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"lr 0.03": 2.0, "lr 0.1": 1.5, "lr 0.3": 1.7}

    def tried(context: Context, method: str, candidate: dict[str, float]) -> dict[str, float]:
        nll = values[f"lr {candidate['lr']:g}"] - 0.1 * (candidate["weight_decay"] == 2e-3)
        return {"nll": nll, "accuracy": 1 / nll}

    monkeypatch.setattr(cifar10, "_tried", tried)
    context = Context(CIFAR10.presets["paper"], ("cifar-10",), METHODS, None, tmp_path, CPU, 0)
    assert words(chosen(context, "sgd")) == "lr 0.1, weight decay 0.002"


def rows(metric: str, **values: float) -> list[Row]:
    return [Row("cifar-10", name.replace("_", "-"), "", metric, value, None, 1) for name, value in values.items()]


@pytest.mark.parametrize(
    ("kfac", "larger", "standing"), [(3.0, True, "held"), (1.5, True, "not held"), (0.5, False, "held")]
)
def test_ahead_of_all_rivals(kfac: float, larger: bool, standing: str) -> None:
    claim = better("nll", ("sgd", "adam"), larger=larger)
    assert claim.check(rows("nll", noisy_kfac=kfac, sgd=1.0, adam=2.0)).standing == standing
    assert claim.check(rows("nll", noisy_kfac=kfac, sgd=1.0)).standing == "not measured"


def test_a_small_run_has_every_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preset = cifar10.preset(0.02, 0.02, width=2, batch=8, samples=2, points=1, synthetic=40, candidates=1)
    monkeypatch.setattr(timed_training, "LOOK", 1)
    context = Context(preset, ("cifar-10",), METHODS, None, tmp_path, CPU, 0)
    found = CIFAR10.run(context)
    assert {(row.method, row.metric) for row in found} == {(method, metric) for method in METHODS for metric in METRICS}
    assert all(math.isfinite(row.value) for row in found)
    figure = cifar10.figures(context, found)["curves"]
    assert [len(axes.get_lines()) for axes in figure.axes] == [4, 4]
    assert EXPERIMENTS["nng/cifar10"] is CIFAR10

"""What `bayesrule bench` measures is what it says: turns, ratios, memory and work; and everything can be measured."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

import bayesrule.bench.models as models
from bayesrule.bench import METHODS, PEERS, PRESETS, Model, Request, bench, running
from bayesrule.bench.claims import claims_of
from bayesrule.bench.floor import work_of
from bayesrule.bench.job import Job, Mode
from bayesrule.bench.memory import held_bytes, peak_bytes
from bayesrule.bench.peers.peer import Peer, importing, swapped
from bayesrule.bench.results import rows_of
from bayesrule.bench.timing import bootstrap_interval, median_interval, ratio_of_medians
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.timing import Turn, interleaved, wall_clock
from command_line import bayesrule

CPU = torch.device("cpu")
SIZE = torch.float32.itemsize
TINY = {
    "mlp": Model("mlp", lambda: models.mlp(6, (5,), 3), lambda n: torch.randn(n, 6), 3),
    "lenet": Model("lenet", lambda: models.lenet(3, kernel=3, width=1), lambda n: torch.randn(n, 3, 32, 32), 3),
    "lstm": Model("lstm", lambda: models.SequenceLSTM(7, 4), models.tokens(3, 7), 2),
    "transformer": Model("transformer", lambda: models.SmallTransformer(7, 4, 2, 1, 3), models.tokens(3, 7), 3),
    "dense": models.dense(5, 2),
}
TAPPING = ("vogn", "noisy-adam", "noisy-kfac")


def test_a_ratio_of_medians_has_the_paired_bootstrap_interval() -> None:
    noise = np.random.default_rng(0).lognormal(0.0, 0.4, 60)
    times, reference = noise * np.random.default_rng(1).lognormal(0.7, 0.1, 60), noise
    found = ratio_of_medians(times, reference, np.random.default_rng(2))
    assert found.value == np.median(times) / np.median(reference)
    # Written out: each resample takes whole rounds.
    middle = slice(29, 31)
    ratios = [
        np.sort(times[rounds])[middle].mean() / np.sort(reference[rounds])[middle].mean()
        for rounds in np.random.default_rng(2).integers(60, size=(2000, 60))
    ]
    np.testing.assert_allclose((found.low, found.high), np.percentile(ratios, [2.5, 97.5]), rtol=1e-12)
    # scipy draws other resamples: 0.02 is more than five standard errors of either end.
    other = scipy.stats.bootstrap(
        (times, reference), lambda a, b, axis: np.median(a, axis=axis) / np.median(b, axis=axis),
        paired=True, method="percentile", n_resamples=20_000, rng=np.random.default_rng(3),
    ).confidence_interval  # fmt: skip
    np.testing.assert_allclose((found.low, found.high), (other.low, other.high), atol=0.02)


def test_intervals_of_a_median() -> None:
    values = np.random.default_rng(0).lognormal(1.0, 0.3, 100)
    low, high = bootstrap_interval(values, np.random.default_rng(1))
    order = np.sort(values)
    # The exact interval of a median, by order statistics: 40 and 61 of 100 (binomial), give or take two.
    assert order[37] <= low <= order[41]
    assert order[58] <= high <= order[62]
    assert median_interval(list(values)) == (np.median(values), order[39], order[60])
    outside = 2 * scipy.stats.binom.cdf(39, 100, 0.5)
    assert outside <= 0.05 < 2 * scipy.stats.binom.cdf(40, 100, 0.5)


def test_methods_take_turns() -> None:
    done: list[str] = []
    turns = {name: Turn(partial(done.append, name), repeats) for name, repeats in (("a", 1), ("b", 2), ("c", 1))}
    times = interleaved(turns, wall_clock(CPU), rounds=4, budget=0.0, least=4)
    assert [sorted(done[start : start + 4]) for start in (0, 4, 8, 12)] == 4 * [["a", "b", "b", "c"]]
    assert {name: len(each) for name, each in times.items()} == {"a": 4, "b": 4, "c": 4}
    assert len(interleaved(turns, wall_clock(CPU), rounds=50, budget=0.0, least=3)["a"]) == 3


def test_a_slow_method_is_found_slow() -> None:
    small, large = torch.randn(8, 8), torch.randn(400, 400)
    turns = {"point": Turn(lambda: small @ small), "slow": Turn(lambda: large @ large)}
    times = interleaved(turns, wall_clock(CPU), rounds=15, budget=5.0)
    assert ratio_of_medians(times["slow"], times["point"], np.random.default_rng(0)).low > 3


def test_work_is_counted() -> None:
    layer, x = nn.Linear(8, 6, bias=False), torch.randn(4, 8)

    def step() -> None:
        layer.zero_grad()
        (x @ layer.weight.mT + torch.randn(4, 6)).sum().backward()

    work = work_of(step, [layer.weight], [x])
    assert work.flops == 2 * (2 * 4 * 8 * 6)  # forward, and the gradient of the weight; none of the input
    assert work.drawn == 24
    assert work.least_bytes == SIZE * (2 * 48 + 32)
    assert work.moved_bytes >= SIZE * 2 * (32 + 48 + 24)
    with torch.no_grad():
        add = work_of(lambda: torch.add(x, x.expand(4, 8)), [], [])
        view = work_of(lambda: x.mT, [], [])
    assert (add.moved_bytes, view.moved_bytes) == (SIZE * 3 * 32, 0)


def test_the_work_of_a_fused_layer_is_that_of_its_products() -> None:
    lstm, x = nn.LSTM(6, 4, batch_first=True), torch.randn(3, 5, 6)
    weights = 16 * 6 + 16 * 4
    assert work_of(lambda: lstm(x)[0].sum().backward(), [], []).flops == 3 * 2 * (3 * 5) * weights


def test_memory_shared_is_counted_once() -> None:
    x = torch.zeros(10, 10)
    assert held_bytes([x, x.mT, x[0]]) == SIZE * 100
    assert peak_bytes([x], lambda: torch.empty(70), CPU) == SIZE * 170


@pytest.mark.parametrize("model", TINY)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_steps_and_predicts(model: str, method: str) -> None:
    known = TINY[model]
    torch.manual_seed(0)
    job = Job(known, known.network(), known.inputs(4), known.targets(4), Mode())
    if model in ("lstm", "transformer") and method in TAPPING:
        with pytest.raises(Unsupported, match="leaves weights of this network to Adam"):
            METHODS[method].build(job)
        return
    contender = METHODS[method].build(job)
    before = [tensor.clone() for tensor in contender.state()]
    for _ in range(2):
        assert contender.step is not None
        contender.step()
    after = list(contender.state())
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=False))
    assert all(bool(torch.isfinite(tensor).all()) for tensor in after)
    outputs = contender.outputs(known.inputs(3), 2)
    assert outputs.shape == (2, 3, known.outputs)
    assert torch.equal(outputs[0], outputs[1]) == (method == "point")


@pytest.mark.filterwarnings("ignore")  # the other libraries', about deprecations in theirs
@pytest.mark.parametrize("name", PEERS)
def test_peers_that_are_installed_run_and_the_others_say_so(name: str) -> None:
    reason = PEERS[name].absent()
    if reason is not None:
        assert name in reason
        assert "pip install" in reason
        return
    known = TINY["mlp"]
    job = Job(known, known.network(), known.inputs(4), known.targets(4), Mode())
    contender = PEERS[name].build(job)
    if contender.step is not None:
        contender.step()
    outputs = contender.outputs(known.inputs(3), 2)
    assert outputs.shape == (2, 3, 3)
    assert not torch.equal(outputs[0], outputs[1])


def missing() -> Peer:
    return Peer("no-such-library", "pip install no-such-library", importing("no_such_library"), METHODS["point"].build)


def failing() -> Peer:
    def build(job: Job) -> None:
        raise RuntimeError("not for this\nnetwork")

    return Peer("torch", "pip install torch", importing("torch"), build)  # type: ignore[arg-type]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict]:
    monkeypatch.setitem(models.MODELS, "tiny", replace(TINY["mlp"], name="tiny"))
    monkeypatch.setitem(PEERS, "no-such-library", missing())
    monkeypatch.setitem(PEERS, "torch", failing())

    def run(**options: object) -> dict:
        few = {"models": ("tiny",), "batches": (4,), "rounds": 2, "seconds": 0.0, "inputs": 5, "draws": 2}
        return bench(Request(**{**few, **options}), "bayesrule bench")

    return run


def test_a_run_holds_everything(tiny: Callable[..., dict]) -> None:
    result = tiny(methods=("ktied", "no-such-library", "torch"), models=("tiny", "dense-5"))
    values = {(row["dataset"], row["method"], row["metric"]): row["value"] for row in result["rows"]}
    for method in ("point", "ktied"):
        for metric in ("step ms", "step ratio", "peak MiB", "memory ratio", "GFLOP", "MiB moved", "set-up ms"):
            assert values["tiny, batch 4", method, metric] > 0
        assert values["tiny, 5 inputs at 2 draws", method, "predict ratio high"] > 0
        assert values["dense-5, batch 4", method, "step ratio low"] > 0
    assert values["tiny, batch 4", "point", "step ratio"] == values["tiny, batch 4", "point", "memory ratio"] == 1
    assert not any(dataset.startswith("dense-5, 5 inputs") for dataset, _, _ in values)
    assert {row["variant"] for row in result["rows"]} == {"eager, float32"}
    assert {row["n"] for row in result["rows"]} == {2}
    absent, *refused = result["skipped"]
    assert absent.startswith("no-such-library is not installed")
    assert refused[0] == "tiny, batch 4, eager, float32: torch (RuntimeError: not for this network)"
    assert any("Adam(lr=0.001, fused=True)" in note for note in result["notes"])


def test_claims_are_checked_where_they_were_measured() -> None:
    ktied = rows_of("mlp, batch 1024", "ktied", 9, {"step ratio": 1.5, "step ratio high": 1.55}, "eager, float32")
    peer = rows_of("mlp, batch 1024", "ivon-opt", 9, {"step ratio": 1.4, "step ratio high": 1.5}, "eager, float32")
    point = rows_of("mlp, batch 1024", "point", 9, {"step ratio": 1.0}, "eager, float32")
    ivon = rows_of("mlp, batch 1024", "ivon", 9, {"step ratio": 1.36}, "eager, float32")
    rows = point + ktied + ivon + peer
    found = {claim["claim"]: (claim["standing"], claim["detail"]) for claim in claims_of(rows, "cpu")}
    assert found == {
        "mlp, batch 1024, eager, float32, ktied or ktied-local or ktied-sample: step ratio high at most 1.6": (
            "held",
            "1.55",
        ),
        "mlp, batch 1024, eager, float32, ivon: step ratio at most 1.35": ("not held", "1.36"),
        "mlp, batch 1024, eager, float32: a 2-tied step is no slower than any peer's": (
            "not held",
            "ktied 1.5, ivon-opt 1.4",
        ),
        "mlp, batch 1024, eager, float32: the fastest Bayesian step here is no slower than any peer's": (
            "held",
            "ivon 1.36, ivon-opt 1.4",
        ),
    }
    assert claims_of(ktied, "cuda") == []


def test_the_command_writes_what_it_measured(tiny: Callable[..., dict], tmp_path: Path) -> None:
    out = tmp_path / "costs"
    options = "--models tiny --methods ktied,no-such-library --batch 4 --rounds 2 --seconds 0 --inputs 5 --draws 2"
    ran = bayesrule("bench", *shlex.split(options), "--out", out)
    assert ran.code == 0, ran
    assert {path.name for path in out.iterdir()} == {"result.json", "table.txt", "steps.png"}
    result = json.loads((out / "result.json").read_text())
    assert result["experiment"] == "bench/cpu"
    assert {"commit", "versions", "device", "wall_seconds", "date"} <= result.keys()
    table = (out / "table.txt").read_text()
    assert "tiny, batch 4, eager, float32" in table
    assert "Left out: no-such-library is not installed" in table
    assert table.strip() in ran.said
    assert (out / "steps.png").read_bytes().startswith(b"\x89PNG")
    again = bayesrule("bench", *shlex.split(options), "--out", out)
    assert again.code == 2
    assert "There is a result in the output folder" in again.complaint
    assert bayesrule("bench", *shlex.split(options), "--out", out, "--force").code == 0


def test_the_list_tells_who_is_here(tiny: Callable[..., dict]) -> None:
    said = bayesrule("bench", "--list").said
    assert all(name in said for name in (*METHODS, *models.MODELS, *PEERS))
    assert "no-such-library is not installed" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--models mpl", "Did you mean 'mlp'"),
        ("--methods ktid", "Did you mean 'ktied'"),
        ("--batch ten", "--batch takes whole numbers"),
        ("--compile fast", "There is no mode 'fast'"),
        ("--compile captured", "Only steps on a CUDA device"),
        ("--preset quik", "Did you mean 'quick'"),
        ("--seconds -1", "--seconds is 0 at least"),
        ("--rounds 0", "--rounds is 1 at least"),
    ],
)
def test_mistakes_are_explained(options: str, message: str) -> None:
    ran = bayesrule("bench", *options.split())
    assert ran.code == 2
    assert message in ran.complaint


def test_presets_name_what_there_is() -> None:
    for request in PRESETS.values():
        assert request.cases()
        assert all(running.method(name).name == name for name in request.methods)


def test_a_layer_without_a_counterpart_is_refused() -> None:
    with pytest.raises(Unsupported, match="no counterpart"):
        swapped(TINY["transformer"].network(), {nn.Linear: lambda layer: layer})
    with pytest.raises(InvalidArgument, match="Only steps on a CUDA device"):
        Request(modes=("captured",)).cases()


def test_the_example_of_the_help_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"Example: bayesrule (.+)", bayesrule("bench", "--help").said)
    ran = bayesrule(*shlex.split(example))
    assert ran.code == 0, ran
    assert (tmp_path / "costs" / "result.json").is_file()

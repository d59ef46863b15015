"""Models that several threads use: a server that predicts, a prediction while a model trains."""

from __future__ import annotations

import copy
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bayesrule as br
from bayesrule import threads
from bayesrule.errors import InvalidArgument, Unsupported

X = torch.randn(60, 20, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 3
THREADS = 4


@pytest.fixture(autouse=True)
def _often() -> Iterator[None]:
    """Threads change places in the midst of everything."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 30), nn.Dropout(0.5), nn.ReLU(), nn.Linear(30, 3))


def converted() -> br.nn.BayesianModule:
    return br.bayesianize(net(), br.KTied(2, 0.2), likelihood=br.Categorical())


def ivon() -> br.optim.IVON:
    return br.optim.IVON(net(), n_data=60, lr=0.1, likelihood=br.Categorical(), seed=0)


def at_once(work: Callable[[int], Tensor]) -> list[Tensor]:
    """Everybody starts together."""
    start = threading.Barrier(THREADS)

    def one(index: int) -> Tensor:
        start.wait()
        return work(index)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, range(THREADS)))


@pytest.mark.parametrize("strategy", ["loop", "vmap"])
@pytest.mark.parametrize("model", [converted, ivon])
def test_predictions_at_once_are_those_of_one_thread(model: Callable[[], object], strategy: str) -> None:
    """In training mode, whose flags each of them sets and puts back; and nothing is left behind."""
    made = model()
    network = made if isinstance(made, nn.Module) else made.model
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    alone = [br.predict(made, X, 20, seed=seed, strategy=strategy).outputs for seed in range(THREADS)]
    for _ in range(3):
        together = at_once(lambda seed: br.predict(made, X, 20, seed=seed, strategy=strategy).outputs)
        assert all(map(torch.equal, together, alone))
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert all(module.training for module in network.modules())
    if isinstance(made, br.nn.BayesianModule):
        assert not torch.equal(made(X), made(X))


def test_passes_of_all_kinds_at_once() -> None:
    bnn = converted().eval()
    mean, given = bnn.at_mean(X), {"0.weight": torch.zeros(30, 20), "3.bias": torch.zeros(3)}
    kinds: list[Callable[[], Tensor]] = [
        lambda: bnn.at_mean(X),
        lambda: bnn.at(given, X),
        lambda: bnn(X),
        lambda: bnn(X),
    ]
    for _ in range(5):
        at_mean, at_given, *drawn = at_once(lambda index: kinds[index]())
        assert torch.equal(at_mean, mean)
        torch.testing.assert_close(at_given, at_given[:1].expand_as(at_given))  # the inputs reach nothing
        assert not torch.equal(*drawn)
        assert not any(torch.equal(each, mean) for each in drawn)


@pytest.mark.parametrize("width", [30, 400])
def test_threads_that_train_have_their_own_gradients(width: int) -> None:
    """A KL joins no node of another thread's pass; of wide weights it meets the layer's gradient otherwise."""
    torch.manual_seed(0)
    bnn = br.bayesianize(nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, width), nn.Linear(width, 3)),
                         br.KTied(2, 0.2))  # fmt: skip
    parameters = list(bnn.parameters())

    def gradients(index: int) -> Tensor:
        loss = 0.0 * F.cross_entropy(bnn(X), Y) + br.kl(bnn)
        return torch.cat([each.flatten() for each in torch.autograd.grad(loss, parameters)])

    exact = gradients(0)
    for _ in range(5):
        for found in at_once(gradients):
            torch.testing.assert_close(found, exact, rtol=1e-4, atol=1e-5)


def test_predictions_while_an_optimizer_trains() -> None:
    """Its means are those of a training that nobody watched."""

    def train(opt: br.optim.IVON) -> None:
        for _ in range(20):
            with opt.sampled_params():
                opt.zero_grad()
                F.cross_entropy(opt.model(X), Y).backward()
            opt.step()

    quiet, watched = ivon(), ivon()
    for opt in (quiet, watched):
        opt.model.eval()  # dropout draws from torch's generator, which predictions put back
    train(quiet)
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            br.predict(watched, X, 3)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        train(watched)
    finally:
        done.set()
        watcher.join()
    for name, mean in watched.means().items():
        assert torch.equal(mean, quiet.means()[name])


def test_who_has_waited_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PATIENCE", 0.05)
    bnn, inside, leave = converted(), threading.Event(), threading.Event()
    own = copy.deepcopy(bnn)

    def hold() -> None:
        with bnn.draws.root():
            inside.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()
    try:
        for use in (bnn, lambda _: copy.deepcopy(bnn)):
            with pytest.raises(Unsupported, match="Another thread has been using this model"):
                use(X)
        own(X)
    finally:
        leave.set()
        holder.join()
    assert bnn(X).shape == (60, 3)


def test_a_turn_may_be_taken_again() -> None:
    turn = threads.Turn()
    with turn, turn:
        pass
    taken: list[bool] = []
    other = threading.Thread(target=lambda: taken.append(turn._lock.acquire(blocking=False)))
    other.start()
    other.join()
    assert taken == [True]


@pytest.mark.parametrize("model", [converted, ivon])
def test_unknown_names_are_refused(model: Callable[[], object]) -> None:
    with pytest.raises(InvalidArgument, match=r"no such .*parameter\. Got: 0\.wieght\. There are 0\.weight"):
        model().at({"0.wieght": torch.zeros(30, 20)}, X)


class Paused(nn.Module):
    """Stops in the midst of another thread's pass."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.leave = threading.Event(), threading.Event()

    def forward(self, x: Tensor) -> Tensor:
        if threading.current_thread() is not threading.main_thread():
            self.inside.set()
            self.leave.wait(30)
        return x

    def __deepcopy__(self, memo: dict[int, object]) -> Paused:
        return memo.setdefault(id(self), self)  # events are shared


PASSES: dict[str, Callable[[br.nn.BayesianModule], object]] = {
    "prediction": lambda bnn: br.predict(bnn, X, 2, strategy="loop"),
    "predictions at once": lambda bnn: br.predict(bnn, X, 2, strategy="vmap"),
    "pass": lambda bnn: bnn(X),
}


@pytest.mark.parametrize("estimator", [br.LocalReparam(), br.WeightSample()], ids=["local", "drawn"])
@pytest.mark.parametrize("doing", PASSES)
def test_a_copy_made_beside_another_threads_pass_is_a_model_of_its_own(doing: str, estimator: object) -> None:
    """The copier waits for the pass, or finds nothing of it in what it copies."""
    paused = Paused()
    bnn = br.bayesianize(
        nn.Sequential(nn.Linear(20, 30), paused, nn.Linear(30, 3)), br.KTied(2, 0.2), estimator=estimator,
        likelihood=br.Categorical(),
    )  # fmt: skip
    bnn(X)
    other = threading.Thread(target=lambda: PASSES[doing](bnn))
    other.start()
    paused.inside.wait()
    threading.Timer(0.05, paused.leave.set).start()
    copied, plain = copy.deepcopy(bnn), br.mean_module(bnn)
    other.join()
    assert copied.training
    assert not torch.equal(copied(X), copied(X))
    assert copied(X).requires_grad
    rows = copied(X[:1].expand(60, 20))
    assert torch.allclose(rows, rows[:1], atol=1e-5) == isinstance(estimator, br.WeightSample)
    torch.testing.assert_close(plain(X), copied.eval().at_mean(X))


@pytest.mark.parametrize("make", [copy.deepcopy, lambda bnn: pickle.loads(pickle.dumps(bnn))], ids=["copy", "file"])
@pytest.mark.parametrize("estimator", [br.LocalReparam(), br.WeightSample()], ids=["local", "drawn"])
def test_a_copy_made_within_a_pass_is_in_none(
    estimator: object, make: Callable[[br.nn.BayesianModule], br.nn.BayesianModule]
) -> None:
    bnn = br.bayesianize(nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 3)), br.KTied(2, 0.2), estimator=estimator)
    made = []
    with bnn.draws.root():
        bnn(X)
        made.append(make(bnn))
    with bnn.draws.given({"0.weight": torch.zeros(30, 20)}), bnn.draws.at_mean():
        made.append(make(bnn))
    for copied in made:
        assert not torch.equal(copied(X), copied(X))
        assert copied(X).requires_grad
        rows = copied(X[:1].expand(60, 20))
        assert torch.allclose(rows, rows[:1], atol=1e-5) == isinstance(estimator, br.WeightSample)


def test_a_recurrent_layer_is_copied_within_a_pass() -> None:
    made: list[br.nn.BayesianModule] = []

    bnn = br.bayesianize(nn.GRU(20, 3), br.KTied(2, 0.2))
    handle = bnn.module.register_forward_hook(lambda *_: made.append(copy.deepcopy(bnn)))
    bnn(X)
    handle.remove()
    assert not torch.equal(made[0](X)[0], made[0](X)[0])


def test_conversions_at_once_and_calls_of_other_modules_meanwhile() -> None:
    plain, found = nn.Sequential(nn.Linear(20, 5), nn.ReLU()), []
    expected = plain(X)
    converting, done = threading.Event(), threading.Event()

    class Slow(nn.Module):
        """Traced for as long as others need."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            converting.set()
            done.wait(30)
            return self.layer(x)

    def serve() -> None:
        converting.wait()
        try:
            found.append(plain(X))
        finally:
            done.set()

    server = threading.Thread(target=serve)
    server.start()
    br.bayesianize(Slow(), br.KTied(1))
    server.join()
    assert torch.equal(found[0], expected)

    def convert(_: int) -> Tensor:
        for _ in range(10):
            bnn = br.bayesianize(net(), br.KTied(1), br.Normal(1.0))
        return br.kl(bnn)

    call = nn.Module.__call__
    assert all(map(torch.isfinite, at_once(convert)))
    assert nn.Module.__call__ is call
    assert torch.equal(plain(X), expected)

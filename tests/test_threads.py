"""Models that several threads use: a server that predicts, a prediction while a model trains."""

from __future__ import annotations

import copy
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

    def hold() -> None:
        with bnn.draws.root():
            inside.set()
            leave.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait()
    try:
        with pytest.raises(Unsupported, match="Another thread has been using this model"):
            bnn(X)
        copy.deepcopy(bnn)(X)  # which has its own
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

"""The library's own methods: the point estimate they are all compared with, posteriors in layers and in optimizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from bayesrule import optim
from bayesrule.bench.job import INIT_STD, N_DATA, PRIOR_STD, Contender, Job, drawn_by_calls, state_of
from bayesrule.bench.peers import PEERS
from bayesrule.data.names import nearest
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.estimators import Auto, Estimator, Flipout, LocalReparam, WeightSample
from bayesrule.nn import bayesianize, kl
from bayesrule.optim import PosteriorOptimizer
from bayesrule.posteriors import Diagonal, Family, KTied, MatrixNormal
from bayesrule.predict import predict
from bayesrule.priors import Normal
from bayesrule.typing import Drawable

REFERENCE = "point"
Build = Callable[[Job], Contender]


@dataclass(frozen=True)
class Method:
    """A way to train the network.

    Attributes:
        name: On the command line and in results.
        title: In words.
        build: Makes it ready.
    """

    name: str
    title: str
    build: Build


def point(job: Job) -> Contender:
    """The network as it is. A prediction with so many draws is as many forward passes."""
    optimizer = job.adam(job.net.parameters())
    step = job.training(lambda x, y: job.model.loss(job.net(x), y), optimizer)
    return Contender(step, drawn_by_calls(job.net), lambda: state_of(optimizer))


def converted(job: Job, posterior: Family, estimator: Estimator) -> Contender:
    """Its dense, convolutional, recurrent and attention layers made Bayesian; an embedding stays a point estimate."""
    bnn = bayesianize(
        job.net, posterior, Normal(PRIOR_STD), estimator, job.model.likelihood,
        layers=lambda _, layer: not isinstance(layer, nn.Embedding),
    )  # fmt: skip
    optimizer = job.adam(bnn.parameters())
    step = job.training(lambda x, y: job.model.loss(bnn(x), y) + kl(bnn) / N_DATA, optimizer)
    return Contender(step, lambda x, draws: predict(bnn, x, draws).outputs, lambda: state_of(optimizer))


def held_by(job: Job, optimizer_class: Callable[..., PosteriorOptimizer], period: int = 1, **options: Any) -> Contender:
    """A plain network, its posterior kept by an optimizer."""
    optimizer = optimizer_class(
        job.net, n_data=N_DATA, lr=1e-3, prior=Normal(PRIOR_STD), likelihood=job.model.likelihood,
        capturable=job.x.is_cuda, **options,
    )  # fmt: skip
    _refuse_partial(job, optimizer)
    function = job.compiled(lambda x, y: job.model.loss(job.net(x), y), whole=False)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        with job.precision():
            return function(x, y)

    def step() -> None:
        with optimizer.sampled_params():
            optimizer.zero_grad()
            loss(job.x, job.y).backward()
        optimizer.step()

    def state() -> list[Tensor]:
        return _tensors_in([list(job.net.parameters()), optimizer.state_dict()])

    drawable = cast(Drawable, optimizer)  # whose `training` is read only
    steps = partial(optimizer.captured(loss), job.x, job.y) if job.mode.captured else step
    return Contender(steps, lambda x, draws: predict(drawable, x, draws).outputs, state, period)


def _refuse_partial(job: Job, optimizer: PosteriorOptimizer) -> None:
    """A posterior over a part of the weights costs less, and would be compared with posteriors over all of them."""
    known = {part.name for posterior in optimizer.posteriors().values() for part in posterior.parts}
    known |= {f"{name}.weight" for name, module in job.net.named_modules() if isinstance(module, nn.Embedding)}
    left = [name for name, weight in job.net.named_parameters() if weight.ndim > 1 and name not in known]
    if left:
        raise Unsupported(f"{type(optimizer).__name__} leaves weights of this network to Adam", got=", ".join(left))


def _tensors_in(value: Any) -> list[Tensor]:
    """In nested lists and dictionaries."""
    if isinstance(value, Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [tensor for each in values for tensor in _tensors_in(each)]


def _layers(name: str, title: str, posterior: Family, estimator: Estimator) -> Method:
    return Method(name, title, partial(converted, posterior=posterior, estimator=estimator))


def _held(name: str, title: str, optimizer: Callable[..., PosteriorOptimizer], **options: Any) -> Method:
    return Method(name, title, partial(held_by, optimizer_class=optimizer, **options))


TIED, MEAN_FIELD = KTied(2, INIT_STD), Diagonal(INIT_STD)
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method(REFERENCE, "point estimate", point),
        _layers("ktied", "2-tied, the cheaper estimator for each layer", TIED, Auto()),
        _layers("ktied-local", "2-tied, local noise", TIED, LocalReparam()),
        _layers("ktied-sample", "2-tied, weights drawn", TIED, WeightSample()),
        _layers("meanfield-local", "mean-field, local noise", MEAN_FIELD, LocalReparam()),
        _layers("meanfield-sample", "mean-field, weights drawn", MEAN_FIELD, WeightSample()),
        _layers("flipout", "mean-field, Flipout", MEAN_FIELD, Flipout()),
        _layers("matrix-normal", "matrix normal, the cheaper estimator", MatrixNormal(INIT_STD), Auto()),
        _held("ivon", "IVON", optim.IVON),
        _held("ivon-mirrored", "IVON, every second draw the mirror image of the one before", optim.IVON,
              period=2, mirrored=True),
        _held("vogn", "VOGN", optim.VOGN),
        _held("ktied-von", "KTiedVON", optim.KTiedVON),
        _held("noisy-adam", "noisy Adam", optim.NoisyAdam),
        _held("noisy-kfac", "noisy K-FAC, curvature every 10, inverses every 20 steps", optim.NoisyKFAC,
              period=20, T_stats=10, T_inv=20),
    )
}  # fmt: skip
"""By name."""


def method(name: str) -> Method:
    """One of ours, or of the other libraries'."""
    if name in METHODS:
        return METHODS[name]
    if name in PEERS:
        return Method(name, name, PEERS[name].build)
    known = [*METHODS, *PEERS]
    raise InvalidArgument(
        f"There is no method {name!r} to measure", remedy=f"{nearest(name, known)}Known: {', '.join(known)}."
    )

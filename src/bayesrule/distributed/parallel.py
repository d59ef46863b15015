"""Data-parallel training of converted networks, and of optimizers that hold posteriors."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from bayesrule.distributed.exchange import AllReduce, all_reduced, need_alike
from bayesrule.distributed.noise import ByExample, ByRank, NoiseKey, keyed_noise
from bayesrule.distributed.rows import Rows
from bayesrule.distributed.world import World, join
from bayesrule.errors import InvalidArgument, conversion_remedy
from bayesrule.estimators import Auto
from bayesrule.nn import BayesianModule
from bayesrule.nn.layer import BayesianLayer
from bayesrule.optim import PosteriorOptimizer


class Parallel:
    """One process's part in training a model together: its rows of every batch, and their weight in the mean.

    Calling it runs the network, so that its gradients are averaged over the processes.

    Attributes:
        world: The processes.
        noise: How noise is keyed; None where the model's own serves.
        equal_parts: Whether microbatches must be of one size.
    """

    def __init__(
        self, world: World, noise: ByRank | ByExample | None, network: Callable[..., Any], *, equal_parts: bool = False
    ) -> None:
        self.world, self.noise, self.network, self.equal_parts = world, noise, network, equal_parts
        self._rows: Rows | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs."""
        return self.network(*args, **kwargs)

    def own(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """This process's rows of a batch that all processes read alike."""
        self._rows = Rows.of(_rows_of(tensors), self.world)
        self._key_by(self._rows)
        return self._rows.cut(*tensors)

    def microbatches(self, parts: int, *tensors: Tensor) -> Iterator[tuple[Any, ...]]:
        """This process's rows part by part, each led by its share of them: for gradients that are added up.

        The generator is in the same state at the beginning of each, so that noise keyed by example is that of the whole
        batch: the same weights, and every example's own noise. A loss, its KL included, is multiplied by the share; an
        optimizer that holds a posterior averages its blocks by itself, and takes parts of one size. Both passes of a
        part belong into the loop; under DDP gradients are exchanged once, with the last part.

        Args:
            parts: How many, or as many as the process with the fewest rows has.
            *tensors: Of the whole batch, as for `own`.
        """
        own = self._rows = Rows.of(_rows_of(tensors), self.world)
        if parts < 1:
            raise InvalidArgument("A batch is cut into at least 1 part", got=parts)
        parts = min(parts, own.fewest(self.world))  # the same number everywhere, as shards are exchanged in each
        if self.equal_parts and not own.even(parts, self.world):
            raise InvalidArgument(
                f"{own.total} rows of {self.world.size} processes do not make parts of one size, whose messages an "
                "optimizer that holds a posterior averages with equal weights", got=f"{parts} parts",
                remedy="Take another number of parts, or batches whose rows the number of processes and of parts "
                "divide (drop_last=True).",
            )  # fmt: skip
        generator = torch.default_generator if self.noise is None else self.noise.generator or torch.default_generator
        state = generator.get_state()
        for number, rows in enumerate(own.parts(parts), 1):
            generator.set_state(state)
            self._key_by(rows)
            with nullcontext() if number == parts else self._without_exchange():
                yield (rows.count / own.count, *rows.cut(*tensors))

    def _without_exchange(self) -> AbstractContextManager[None]:
        """Gradients stay this process's own: those of the last part are exchanged with all before."""
        return self.network.no_sync() if isinstance(self.network, DistributedDataParallel) else nullcontext()

    def _key_by(self, rows: Rows) -> None:
        if isinstance(self.noise, ByExample):
            self.noise.rows = rows

    @property
    def share(self) -> float:
        """What a mean over this process's rows counts for in the mean over processes: 1 where all have as many rows."""
        if self._rows is None or self._rows.total < self.world.size:
            return 1.0
        return self._rows.count * self.world.size / self._rows.total

    def mean(self, *values: float) -> list[float]:
        """Means over processes of a few numbers."""
        if self.world.size == 1:
            return list(values)
        (total,) = all_reduced([torch.tensor(values, dtype=torch.float64, device=_device())])
        return (total / self.world.size).tolist()

    def of_first(self, value: float) -> float:
        """The first process's number."""
        return value if self.world.size == 1 else float(from_first(torch.tensor(value, dtype=torch.float64)))

    def same_generator(self) -> None:
        """The first process's state of torch's generator for all: they then read the batches in the same order."""
        if self.world.size > 1:
            torch.set_rng_state(from_first(torch.get_rng_state()))


def data_parallel(model: BayesianModule | PosteriorOptimizer, *, noise: NoiseKey = "rank") -> Parallel:
    """Have all processes that ``torchrun`` started train this model together, each on its part of every batch.

    A converted network is wrapped for gradient averaging (DDP); the KL, the same in all processes, is added to the loss
    as always, with N the number of all examples, and so counts once. An optimizer averages its messages, gradients and
    curvatures, in one all-reduce a step, so that states stay the same everywhere. In one process it changes nothing
    but the noise, if that is keyed by example.

    Args:
        model: Made alike in all processes. Its noise is exchanged in place.
        noise: Keyed by ``"rank"``: every process draws its own. By ``"example"``: weights are drawn the same in all
            processes and noise on an example depends on its place in the batch; the number of processes then makes no
            difference but for rounding.

    Example:
        >>> import torch, bayesrule as br
        >>> bnn = br.bayesianize(torch.nn.Linear(3, 2), likelihood=br.Categorical())
        >>> parallel = data_parallel(bnn)
        >>> x, y = parallel.own(torch.randn(8, 3), torch.randint(2, (8,)))
        >>> loss = parallel.share * torch.nn.functional.cross_entropy(parallel(x), y) + br.kl(bnn) / 100
    """
    world = join()
    if isinstance(model, PosteriorOptimizer):
        return _of_optimizer(model, world, noise)
    if not isinstance(model, BayesianModule):
        raise InvalidArgument(
            "data_parallel takes a converted network, or an optimizer that holds a posterior",
            got=type(model).__name__, remedy=conversion_remedy(model, BayesianModule),
        )  # fmt: skip
    source = set_noise(model, world, noise)
    network: Callable[..., Any] = model
    if world.size > 1:
        network = DistributedDataParallel(model, **_no_broadcasts())
    return Parallel(world, source, network)


def _rows_of(tensors: Sequence[Any]) -> int:
    """Of a batch."""
    wrong = [type(each).__name__ for each in tensors if not isinstance(each, Tensor) or each.ndim == 0]
    if wrong or not tensors:
        raise InvalidArgument(
            "A batch is one or more tensors whose first dimension counts its rows", got=", ".join(wrong) or "nothing",
            remedy="Give the tensors one by one: parallel.own(x, y).",
        )  # fmt: skip
    return len(tensors[0])


def _no_broadcasts() -> dict[str, Any]:
    """Buffers are constants of priors, as large as weights where those are centred on some: no pass broadcasts them."""
    known = inspect.signature(DistributedDataParallel.__init__).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}  # torch 2.13


def set_noise(bnn: BayesianModule, world: World, noise: NoiseKey) -> ByRank | ByExample | None:
    """Key the noise of a converted network."""
    source = keyed_noise(noise, world)
    if source is not None and noise == "example":
        choosing = [module for module in bnn.modules() if isinstance(module, BayesianLayer) and module.contraction]
        if any(isinstance(layer.estimator, Auto) for layer in choosing):
            raise InvalidArgument(
                "Auto chooses by the size of a process's batch, so that the number of processes would matter",
                got='noise="example"', remedy="Convert with estimator=br.LocalReparam() or br.WeightSample().",
            )  # fmt: skip
    if source is not None:
        bnn.draws.noise = source
    return source


def _of_optimizer(optimizer: PosteriorOptimizer, world: World, noise: NoiseKey) -> Parallel:
    generator = optimizer.generator(torch.device("cpu"))
    source = keyed_noise(noise, world, generator)
    parallel = Parallel(world, source, optimizer.model, equal_parts=True)
    if source is not None:
        optimizer.source = source
    if world.size > 1:
        need_alike(optimizer.means().values(), "weights")
        generator.set_state(from_first(generator.get_state()))
        optimizer.exchange = AllReduce(optimizer, lambda: parallel.share)
    return parallel


def from_first(tensor: Tensor) -> Tensor:
    """The first process's tensor; it lies on the CPU."""
    moved = tensor.to(_device()).clone()
    dist.broadcast(moved, 0)
    return moved.cpu()


def _device() -> torch.device:
    """Where the processes can exchange small numbers."""
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")

"""Training for a number of seconds: four methods on one network, each until its time is spent."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from bayesrule.data import LabelledSet
from bayesrule.experiments.mn.training import EVALUATED_TOGETHER, Flipped
from bayesrule.likelihoods import Categorical
from bayesrule.metrics import accuracy, expected_calibration_error
from bayesrule.optim import NoisyAdam, NoisyKFAC, PosteriorOptimizer
from bayesrule.predict import predict
from bayesrule.priors import Normal
from bayesrule.train import TensorBatches

MARGIN = 4
"""Pixels by which a crop may be off the centre."""
LOOK = 10
"""Steps between two looks at the clock, each of which waits for the device."""
WARM_UP = 2

Make = Callable[..., torch.optim.Optimizer]


def vgg(width: int, classes: int = 10) -> nn.Sequential:
    """Three blocks of two 3×3 convolutions, each with batch normalisation, and a pooling; the mean over positions."""
    layers: list[nn.Module] = []
    channels = 3
    for fan_out in (width, 2 * width, 4 * width):
        for _ in range(2):
            layers += [nn.Conv2d(channels, fan_out, 3, padding=1, bias=False), nn.BatchNorm2d(fan_out), nn.ReLU()]
            channels = fan_out
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))


def crops(x: Float[Tensor, "batch channels height width"]) -> Tensor:
    """Each image moved by up to four pixels in either direction; what comes in is zero, the colour's mean."""
    batch, channels, height, width = x.shape
    padded = F.pad(x, (MARGIN,) * 4)
    down, right = torch.randint(2 * MARGIN + 1, (2, batch, 1), device=x.device)
    rows = (down + torch.arange(height, device=x.device))[:, None, :, None]
    columns = (right + torch.arange(width, device=x.device))[:, None, None, :]
    image = torch.arange(batch, device=x.device)[:, None, None, None]
    return padded[image, torch.arange(channels, device=x.device)[None, :, None, None], rows, columns]


def endless(data: LabelledSet, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches of mirrored and moved images, epoch after epoch."""
    batches = Flipped(TensorBatches(data.train_x, data.train_y, batch_size=batch_size, drop_last=True))
    while True:
        for x, y in batches:
            yield crops(x), y


@dataclass
class Stopwatch:
    """Seconds of training: it runs between `start` and `stop`, for both of which the device must have finished."""

    device: torch.device
    clock: Callable[[], float] = time.perf_counter
    spent: float = 0.0
    _since: float | None = None

    def start(self) -> None:
        """Go on."""
        self._since = self._now()

    def stop(self) -> float:
        """Pause, and say what is spent."""
        if self._since is not None:
            self.spent += self._now() - self._since
            self._since = None
        return self.spent

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.clock()


def noisy(kind: type[PosteriorOptimizer], net: nn.Module, n_data: int, *, prior_std: float, **options: Any) -> Any:
    """A posterior over convolutions and the last layer; normalisations follow Adam."""
    prior, capturable = Normal(prior_std), next(net.parameters()).is_cuda
    return kind(net, n_data=n_data, prior=prior, likelihood=Categorical(), capturable=capturable, **options)


def plain(kind: type[torch.optim.Optimizer], net: nn.Module, n_data: int, **options: Any) -> Any:
    """A point estimate."""
    return kind(net.parameters(), fused=True, **options)  # type: ignore[call-arg]


OPTIMIZERS: dict[str, Make] = {
    "sgd": partial(plain, torch.optim.SGD),
    "adam": partial(plain, torch.optim.AdamW),
    "noisy-adam": partial(noisy, NoisyAdam),
    "noisy-kfac": partial(noisy, NoisyKFAC),
}


@dataclass(frozen=True)
class Trainer:
    """A network and what trains it."""

    net: nn.Module
    optimizer: torch.optim.Optimizer

    @classmethod
    def of(
        cls, method: str, candidate: Mapping[str, Any], settings: Mapping[str, Any], data: LabelledSet, seed: int
    ) -> Trainer:
        """From a seed, with a candidate's step size and more beside the method's own options."""
        torch.manual_seed(seed)
        net = vgg(settings["width"], data.classes).to(data.train_x.device)
        return cls(net, OPTIMIZERS[method](net, len(data.train_y), **settings["options"][method], **candidate))

    def step(self, x: Tensor, y: Tensor) -> None:
        """On one batch."""
        if isinstance(self.optimizer, PosteriorOptimizer):
            with self.optimizer.sampled_params():
                self._backward(x, y)
        else:
            self._backward(x, y)
        self.optimizer.step()

    def _backward(self, x: Tensor, y: Tensor) -> None:
        self.optimizer.zero_grad()
        F.cross_entropy(self.net(x), y).backward()

    @torch.no_grad()
    def probs(self, x: Tensor, samples: int) -> Tensor:
        """Averaged over draws of the weights, where there is a posterior."""
        if isinstance(self.optimizer, PosteriorOptimizer):
            return predict(self.optimizer, x, samples, seed=0, batch_size=EVALUATED_TOGETHER).probs  # type: ignore[arg-type]
        self.net.eval()
        found = torch.cat([self.net(part).softmax(-1) for part in x.split(EVALUATED_TOGETHER)])
        self.net.train()
        return found


def scores(trainer: Trainer, x: Tensor, y: Tensor, samples: int) -> dict[str, float]:
    """Accuracy in percent, negative log-likelihood and calibration error."""
    probs = trainer.probs(x, samples).double()
    picked = probs.gather(-1, y.unsqueeze(-1)).clamp_min(torch.finfo(torch.float32).tiny)
    return {
        "accuracy": 100 * accuracy(probs, y).item(),
        "nll": -picked.log().mean().item(),
        "ece": expected_calibration_error(probs, y).item(),
    }


def annealed(share: float) -> float:
    """The step size's factor when a share of the time is spent: ``½(1 + cos πs)``."""
    return 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


@dataclass(frozen=True)
class Budgeted:
    """What a timed run left: how far it came, and what it looked like on the way, by seconds spent."""

    trainer: Trainer
    steps: int
    seconds: float
    curve: dict[float, dict[str, float]] = field(default_factory=dict)


def train_for(
    budget: float,
    trainer: Trainer,
    batches: Iterator[tuple[Tensor, Tensor]],
    device: torch.device,
    *,
    look_at: Sequence[float] = (),
    look: Callable[[Trainer], dict[str, float]] = lambda trainer: {},
    clock: Callable[[], float] = time.perf_counter,
) -> Budgeted:
    """Steps until so many seconds are spent, those of ``look`` (at given shares of them) not counted.

    The step size is a function of the share that is spent.
    """
    watch, steps, curve, waiting = Stopwatch(device, clock), 0, {}, list(look_at)
    started = [group["lr"] for group in trainer.optimizer.param_groups]
    while watch.spent < budget:
        for group, lr in zip(trainer.optimizer.param_groups, started, strict=True):
            group["lr"] = lr * annealed(watch.spent / budget)
        watch.start()
        for _ in range(LOOK):
            trainer.step(*next(batches))
        spent, steps = watch.stop(), steps + LOOK
        if waiting and spent >= waiting[0] * budget:
            waiting = [share for share in waiting if share * budget > spent]
            curve[spent] = look(trainer)
    return Budgeted(trainer, steps, watch.spent, curve)


def warmed(method: str, settings: Mapping[str, Any], data: LabelledSet) -> None:
    """Steps of a network that is thrown away: libraries load and choose their kernels in them, off the clock."""
    batches = endless(data, settings["batch"])
    trainer = Trainer.of(method, {**settings["candidates"][method][0], "lr": 0.0}, settings, data, 0)
    for _ in range(WARM_UP):
        trainer.step(*next(batches))

"""The training loop: minibatches, validation, the best state, checkpoints. It resumes bit for bit."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from bayesrule.distributed import Parallel, World
from bayesrule.errors import BayesruleError, InvalidArgument
from bayesrule.nn import BayesianModule, NegativeELBO
from bayesrule.predict import predict
from bayesrule.train.captured import CapturedStep
from bayesrule.train.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from bayesrule.train.divergence import TrainingDiverged, first_broken
from bayesrule.train.history import Epoch
from bayesrule.train.interrupt import Interrupt

Batches = Iterable[Any]
Callback = Callable[["Loop", Epoch], None]
Watcher = Callable[["Loop"], None]


class TrainingInterrupted(BayesruleError, KeyboardInterrupt):  # noqa: N818, the base says it is an error
    """Training stopped on a signal, its state saved."""


@dataclass
class Loop:
    """One run of training.

    The order of a `DataLoader`'s batches comes from torch's global generator when an epoch begins. A checkpoint holds
    that state and the present one: to resume inside an epoch the batches already seen are drawn again and dropped.
    """

    bnn: BayesianModule
    objective: NegativeELBO
    optimizer: Optimizer
    schedule: torch.optim.lr_scheduler.LRScheduler
    epochs: int
    validation: Callable[[BayesianModule], float] | None = None
    patience: int | None = None
    checkpoint: Path | None = None
    callbacks: tuple[Callback, ...] = ()
    watchers: tuple[Watcher, ...] = ()
    """Called after every step, when the step's gradients are still there."""
    captured: CapturedStep | None = None
    """Takes the steps, if given: a loss that is not finite is then seen at the epoch's end."""
    parallel: Parallel | None = None
    """The other processes that train the model, if there are any: the first writes and tells, all do the same steps."""
    identity: dict[str, Any] = field(default_factory=dict)
    """What a checkpoint must agree on to be resumed."""

    step: int = 0
    seen_batches: int = 0
    history: list[Epoch] = field(default_factory=list)
    best_epoch: int = 0
    best_nll: float = math.inf
    best_state: dict[str, Tensor] = field(default_factory=dict)
    _sum_nll: float = 0.0
    _uncounted: float | Tensor = 0.0
    _seconds: float = 0.0
    _epoch_rng: Tensor = field(default_factory=torch.get_rng_state)

    def run(self, batches: Batches) -> None:
        """Train to the last epoch, or until patience runs out; ends at the best state on validation data."""
        with Interrupt() as interrupt:
            self._started = time.perf_counter() - self._seconds
            while len(self.history) < self.epochs and not self._out_of_patience():
                self._epoch(batches, interrupt)
        if self.best_state:
            self.bnn.load_state_dict(self.best_state)

    def _epoch(self, batches: Batches, interrupt: Interrupt) -> None:
        self.bnn.train()
        for inputs, targets in self._remaining(batches):
            self._step(inputs, targets)
            if self._agreed(interrupt.requested is not None):
                self._stop()
        self._finish_epoch()
        self._save()

    def _remaining(self, batches: Batches) -> Iterator[tuple[tuple[Tensor, ...], Tensor]]:
        """The epoch's batches that have not been seen yet."""
        if self.parallel is not None:
            self.parallel.same_generator()
        skipped, present = self.seen_batches, torch.get_rng_state()
        if skipped == 0:
            self._epoch_rng = present
        torch.set_rng_state(self._epoch_rng)
        for number, (*inputs, targets) in enumerate(batches):
            if number < skipped:
                continue
            if number == skipped > 0:
                torch.set_rng_state(present)
            yield tuple(inputs), targets

    def _step(self, inputs: tuple[Tensor, ...], targets: Tensor) -> None:
        if self.parallel is not None:
            *rows, targets = self.parallel.own(*inputs, targets)
            inputs = tuple(rows)
        if self.captured is None:
            self._ordinary_step(inputs, targets)
        else:
            nll, self._last_kl = self.captured(inputs, targets, self.step)
            self._uncounted = self._uncounted + nll
            self._last_inputs = inputs
        self.schedule.step()
        self.step += 1
        self.seen_batches += 1
        for watcher in self.watchers if self.world.first else ():
            watcher(self)

    def _ordinary_step(self, inputs: tuple[Tensor, ...], targets: Tensor) -> None:
        network = self.bnn if self.parallel is None else self.parallel
        loss = self.objective(network(*inputs), targets, step=self.step)
        self.optimizer.zero_grad()
        if self.parallel is None:
            loss.total.backward()
            value = loss.nll.item()
        else:
            (loss.total + (self.parallel.share - 1) * loss.nll).backward()
            (value,) = self.parallel.mean(self.parallel.share * loss.nll.item())
        if not math.isfinite(value) or not math.isfinite(loss.kl.item()):
            self._diverged(inputs, value)
        self.optimizer.step()
        self._sum_nll += value
        self._last_kl = loss.kl.detach()

    def _count(self) -> None:
        """Take over what captured steps have summed on the device."""
        total = self._sum_nll + float(self._uncounted)
        if not math.isfinite(total):
            self._diverged(self._last_inputs, total)
        self._sum_nll, self._uncounted = total, 0.0

    def _finish_epoch(self) -> None:
        if self.seen_batches == 0:
            raise BayesruleError(
                "An epoch had no batch", remedy="The training set is smaller than a batch; use a smaller one."
            )
        self._count()
        valid = self._validated()
        self._seconds = time.perf_counter() - self._started
        epoch = Epoch(
            epoch=len(self.history) + 1,
            nll=self._sum_nll / self.seen_batches,
            kl_per_example=self._last_kl.item() / self.objective.n_data,
            kl_weight=self.objective.annealing(self.step - 1),
            valid_nll=valid,
            learning_rate=float(self.optimizer.param_groups[0]["lr"]),
            seconds=self._seconds,
        )
        self.history.append(epoch)
        self.seen_batches, self._sum_nll = 0, 0.0
        if valid is not None and valid < self.best_nll:
            self.best_nll, self.best_epoch = valid, epoch.epoch
            self.best_state = copy.deepcopy(self.bnn.state_dict())
        for callback in self.callbacks if self.world.first else ():
            callback(self, epoch)

    @property
    def world(self) -> World:
        """The processes that train."""
        return World() if self.parallel is None else self.parallel.world

    def _agreed(self, flag: bool) -> bool:
        """Whether it holds in any process: they must stop at the same step."""
        return flag if self.parallel is None else self.parallel.mean(float(flag))[0] > 0

    def _validated(self) -> float | None:
        """The first process's score, which all then judge alike."""
        if self.validation is None:
            return None
        own = self.validation(self.bnn) if self.world.first else 0.0
        return own if self.parallel is None else self.parallel.of_first(own)

    def _out_of_patience(self) -> bool:
        waited = len(self.history) - self.best_epoch
        return self.patience is not None and bool(self.best_state) and waited >= self.patience

    def _diverged(self, inputs: tuple[Tensor, ...], value: float) -> None:
        where = first_broken(self.bnn, inputs)
        if self.best_state:
            self.bnn.load_state_dict(self.best_state)
        raise TrainingDiverged(
            f"The loss is not finite at step {self.step}: {where} is not", got=f"negative log-likelihood {value}",
            remedy="Use a smaller learning rate, and look for extreme inputs. The last checkpoint is untouched.",
        )  # fmt: skip

    def _stop(self) -> None:
        self._seconds = time.perf_counter() - self._started
        self._count()
        self._save()
        where = f"A checkpoint is at {self.checkpoint}; run the same command with --resume (resume=True) to go on."
        raise TrainingInterrupted(
            f"Training was interrupted in epoch {len(self.history) + 1} of {self.epochs}", got="a signal",
            remedy=where if self.checkpoint else "Give an output folder to have a checkpoint next time.",
        )  # fmt: skip

    def _save(self) -> None:
        if self.checkpoint is not None and self.world.first:
            write_checkpoint(self.checkpoint, self.state())

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on."""
        return {
            "identity": self.identity,
            "model": self.bnn.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": {key: value for key, value in self.schedule.state_dict().items() if not callable(value)},
            "step": self.step,
            "seen_batches": self.seen_batches,
            "history": [epoch.plain() for epoch in self.history],
            "best_epoch": self.best_epoch,
            "best_nll": self.best_nll,
            "best_state": self.best_state,
            "sum_nll": self._sum_nll,
            "seconds": self._seconds,
            "shared": sorted(self.bnn.draws.shared),
            "epoch_rng": self._epoch_rng,
            "rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint of the same run."""
        state = read_checkpoint(path)
        if state["identity"] != self.identity:
            differing = {key for key in {**state["identity"], **self.identity}
                         if state["identity"].get(key) != self.identity.get(key)}  # fmt: skip
            raise CheckpointError(
                f"{path} is of a run with other settings", got=f"differing: {sorted(differing)}",
                remedy="Resume with the settings it was started with, or start anew in another folder.",
            )  # fmt: skip
        self.bnn.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.step, self.seen_batches = state["step"], state["seen_batches"]
        self.history = [Epoch(**epoch) for epoch in state["history"]]
        self.best_epoch, self.best_nll, self.best_state = state["best_epoch"], state["best_nll"], state["best_state"]
        self._sum_nll, self._seconds, self._epoch_rng = state["sum_nll"], state["seconds"], state["epoch_rng"]
        self.bnn.draws.shared = set(state["shared"])
        torch.set_rng_state(state["rng"])
        if state["cuda_rng"] and torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda_rng"])


def validation_nll(batches: Batches, samples: int, seed: int) -> Callable[[BayesianModule], float]:
    """Negative log-likelihood per example of a validation set, averaged over the same draws every time."""

    def measure(bnn: BayesianModule) -> float:
        total, count = 0.0, 0
        for *inputs, targets in batches:
            log_prob = predict(bnn, tuple(inputs), samples, seed=seed).log_prob(targets)
            total, count = total - float(log_prob.sum()), count + log_prob.numel()
        if not count:
            raise InvalidArgument(
                "The validation batches hold no example", got=type(batches).__name__,
                remedy="Give batches that can be read after every epoch (a DataLoader or a list), or leave valid out.",
            )  # fmt: skip
        return total / count

    return measure

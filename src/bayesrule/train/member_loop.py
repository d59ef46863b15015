"""Training of all members at once, with the best snapshot of each kept; it resumes bit for bit."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from bayesrule.likelihoods import Likelihood
from bayesrule.random import FromGenerator, keyed_generator
from bayesrule.train.checkpoint import CheckpointError, read_checkpoint, remove_leftovers, write_checkpoint
from bayesrule.train.divergence import TrainingDiverged
from bayesrule.train.interrupt import Interrupt
from bayesrule.train.loop import TrainingInterrupted
from bayesrule.train.settings import Settings
from bayesrule.train.stacked import StackedMembers

SMALL, SHORT, LONG = 2000, 1500, 4000
"""Training rows below which training is short and in small batches; the steps of either."""
ANNEALED, WARM_UP = 0.3, 0.1
"""Parts of training: over which the KL is annealed, and the learning rate grows."""
SNAPSHOTS = 30
SNAPSHOT_ROWS, SNAPSHOT_DRAWS, CALIBRATION_ROWS, CALIBRATION_DRAWS = 1000, 4, 2000, 16
LARGEST_GRADIENT = 10.0


def batch_size(rows: int) -> int:
    """Rows in a batch, if there are so many training rows."""
    return 64 if rows < SMALL else 256


@dataclass(frozen=True)
class Progress:
    """How training stands."""

    step: int
    steps: int
    nll: float
    kl_per_example: float
    valid_nll: float | None
    seconds: float

    @property
    def seconds_left(self) -> float:
        """At the present pace."""
        return self.seconds / max(self.step, 1) * (self.steps - self.step)


class MemberLoop:
    """One run; its state is a few tensors and numbers."""

    def __init__(
        self,
        stacked: StackedMembers,
        likelihood: Likelihood,
        x: Tensor,
        y: Tensor,
        folds: Sequence[Tensor],
        settings: Settings,
        generator: torch.Generator,
        checkpoint: Path | None,
        on_progress: Callable[[Progress], None] | None,
    ) -> None:
        self.stacked, self.likelihood, self.settings, self.generator = stacked, likelihood, settings, generator
        self.x, self.y, self.checkpoint, self.on_progress = x, y, checkpoint, on_progress
        # Folds differ by a row at most: members that could train on, or be judged by, one row more do without it.
        shortest, longest = min(map(len, folds)), max(map(len, folds))
        everything = range(len(folds))
        self.held_out = torch.stack([fold[:shortest] for fold in folds])
        training = [torch.cat([folds[other] for other in everything if other != own]) for own in everything]
        self.rows = torch.stack([rows[: len(x) - longest] for rows in training])
        kinds = len(settings.temperatures)
        self.rows, self.held_out = self.rows.repeat(kinds, 1), self.held_out.repeat(kinds, 1)
        self.temperatures = torch.tensor(settings.temperatures).repeat_interleave(len(folds))
        self.batch = min(batch_size(len(x)), self.rows.shape[1])
        self.steps = settings.steps or (SHORT if len(x) < SMALL else max(LONG, 25 * len(x) // batch_size(len(x))))
        self.optimizer = torch.optim.Adam(stacked.parameters.values(), lr=settings.learning_rate, fused=True)
        self.history: list[dict[str, Any]] = []
        self.step, self._seconds = 0, 0.0
        self.best = {name: value.detach().clone() for name, value in stacked.parameters.items()}
        self.best_nll = torch.full((len(stacked),), math.inf)

    def run(self) -> None:
        """Train to the end; the members get their best snapshots."""
        with Interrupt() as interrupt:
            self._started = time.perf_counter() - self._seconds
            while self.step < self.steps:
                nll, kl = self._train_step()
                self.step += 1
                if self.step % max(1, self.steps // SNAPSHOTS) == 0 or self.step == self.steps:
                    self._measure(nll, kl)
                if interrupt.requested is not None and self.step < self.steps:
                    self._stop()
        self.stacked.write_back(self.best)
        with torch.no_grad():
            for name, value in self.stacked.parameters.items():
                value.copy_(self.best[name])

    def _train_step(self) -> tuple[Tensor, Tensor]:
        index = torch.randint(self.rows.shape[1], (len(self.stacked), self.batch), generator=self.generator)
        rows = self.rows.gather(1, index)
        noise = None if self.settings.noiseless else FromGenerator(self.generator)
        posteriors = self.stacked.posteriors()
        outputs = self.stacked.outputs(self.x[rows], noise, posteriors)
        nll = -self.likelihood.expected_log_prob(outputs, self.y[rows]).mean(1)
        kl = torch.zeros_like(nll) if self.settings.deterministic else self.stacked.kl(posteriors)
        annealing = min(1.0, (self.step + 1) / (ANNEALED * self.steps))
        loss = nll + self.temperatures * annealing * kl / self.rows.shape[1]
        self.optimizer.zero_grad()
        loss.sum().backward()
        if not bool(torch.isfinite(loss).all()):
            self._stop_diverged("loss", self.stacked.first_broken(self.x[rows]), loss)
        self._clip(loss)
        self.optimizer.param_groups[0]["lr"] = self.settings.learning_rate * self._schedule()
        self.optimizer.step()
        return nll.detach(), kl.detach()

    def _schedule(self) -> float:
        """Linear warm-up from 4 %, then a cosine to zero."""
        done = self.step / self.steps
        if done < WARM_UP:
            return 0.04 + 0.96 * done / WARM_UP
        return 0.5 * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP)))

    def _stop_diverged(self, what: str, place: str, loss: Tensor) -> NoReturn:
        """Before the step is taken: the state, and the last checkpoint of it, are still good."""
        raise TrainingDiverged(
            f"The {what} is not finite at step {self.step}: look at {place}",
            got=f"losses of {[round(value, 3) for value in loss.tolist()]}",
            remedy="Look for extreme values in the data, or use a smaller learning rate.",
        )

    def _clip(self, loss: Tensor) -> None:
        found = {name: value.grad for name, value in self.stacked.parameters.items() if value.grad is not None}
        gradients = found.values()
        squares = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0)
        if not bool(torch.isfinite(squares).all()):
            place = next(
                (name for name, gradient in found.items() if not bool(gradient.isfinite().all())), "all of them"
            )
            self._stop_diverged("gradient", f"that of {place}", loss)
        factor = (LARGEST_GRADIENT / squares.sqrt()).clamp_max(1.0)
        for gradient in gradients:
            gradient.mul_(factor.reshape(-1, *(1,) * (gradient.ndim - 1)))

    @torch.no_grad()
    def _measure(self, nll: Tensor, kl: Tensor) -> None:
        valid = -self._log_densities(self.held_out[:, :SNAPSHOT_ROWS], SNAPSHOT_DRAWS, 0.0).mean(1)
        if self.step >= self.settings.first_snapshot * self.steps or self.step == self.steps:
            better = valid < self.best_nll
            self.best_nll = torch.where(better, valid, self.best_nll)
            for name, value in self.stacked.parameters.items():
                self.best[name][better] = value[better]
        self._seconds = time.perf_counter() - self._started
        progress = Progress(
            self.step,
            self.steps,
            float(nll.mean()),
            float(kl.mean()) / self.rows.shape[1],
            float(valid.mean()),
            self._seconds,
        )
        self.history.append(progress.__dict__.copy())
        if self.checkpoint is not None:
            write_checkpoint(self.checkpoint, self.state())
        if self.on_progress is not None:
            self.on_progress(progress)

    def _log_densities(self, rows: Tensor, draws: int, log_scale: float) -> Tensor:
        """(members, rows): each member's density of the rows given to it, averaged over the same draws every time."""
        outputs = self._held_out_outputs(rows, draws)
        return self._scaled_log_density(outputs, self.y[rows], log_scale)

    def _held_out_outputs(self, rows: Tensor, draws: int) -> Tensor:
        generator = keyed_generator(self.x.device, self.settings.seed, "held out")
        noise = None if self.settings.noiseless else FromGenerator(generator)
        return torch.stack([self.stacked.outputs(self.x[rows], noise) for _ in range(1 if noise is None else draws)])

    def _scaled_log_density(self, outputs: Tensor, targets: Tensor, log_scale: float) -> Tensor:
        if outputs.shape[-1] == 3 * self.settings.components and targets.is_floating_point():
            shift = torch.zeros(3, self.settings.components)
            shift[1] = log_scale
            outputs = outputs + shift.flatten()
        else:
            outputs = outputs * math.exp(-log_scale)
        return self.likelihood.mixture_log_prob(outputs, targets)

    @torch.no_grad()
    def held_out_log_densities(self, log_scale: float) -> Tensor:
        """(kinds, rows): held-out log-densities at a scale, the folds of each kind side by side."""
        if self._calibration is None:
            rows = self.held_out[:, :CALIBRATION_ROWS]
            self._calibration = self._held_out_outputs(rows, CALIBRATION_DRAWS), self.y[rows]
        densities = self._scaled_log_density(*self._calibration, log_scale)
        return densities.reshape(len(self.settings.temperatures), -1)

    _calibration: tuple[Tensor, Tensor] | None = None

    def _stop(self) -> None:
        self._seconds = time.perf_counter() - self._started
        if self.checkpoint is not None:
            write_checkpoint(self.checkpoint, self.state())
        raise TrainingInterrupted(
            f"Training was interrupted at step {self.step} of {self.steps}", got="a signal",
            remedy="Run the same command with --resume (resume=True) to go on." if self.checkpoint else "",
        )  # fmt: skip

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on."""
        return {
            "identity": self._identity(),
            "parameters": self.stacked.parameters,
            "optimizer": self.optimizer.state_dict(),
            "best": self.best,
            "best_nll": self.best_nll,
            "step": self.step,
            "history": self.history,
            "seconds": self._seconds,
            "generator": self.generator.get_state(),
        }

    def resume(self, path: Path) -> None:
        """Go on from a checkpoint of the same run."""
        remove_leftovers(path)
        state = read_checkpoint(path)
        if state.get("identity") != self._identity():
            raise CheckpointError(
                f"{path} is of a run with other data or settings", got=state.get("identity"),
                remedy="Resume with what it was started with, or start anew in another folder.",
            )  # fmt: skip
        with torch.no_grad():
            for name, value in self.stacked.parameters.items():
                value.copy_(state["parameters"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.best, self.best_nll = state["best"], state["best_nll"]
        self.step, self.history, self._seconds = state["step"], state["history"], state["seconds"]
        self.generator.set_state(state["generator"])

    def _identity(self) -> dict[str, Any]:
        data = hashlib.blake2b(digest_size=16)
        for tensor in (self.x, self.y):
            data.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
            data.update(tensor.contiguous().numpy().tobytes())
        return {"settings": repr(self.settings), "steps": self.steps, "data": data.hexdigest()}

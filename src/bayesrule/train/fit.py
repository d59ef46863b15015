"""Train any network as a Bayesian one, in one call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sized
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LRScheduler

from bayesrule.distributed import NoiseKey, Parallel, data_parallel, join, restarted
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.estimators import Estimator
from bayesrule.likelihoods import Likelihood
from bayesrule.nn import BayesianModule, NegativeELBO, bayesianize
from bayesrule.nn.annealing import Annealing, LinearOverEpochs
from bayesrule.nn.conversion import describe
from bayesrule.nn.selection import PerLayer
from bayesrule.posteriors import Family
from bayesrule.priors import LearnedNormal, Prior
from bayesrule.train.batches import TensorBatches
from bayesrule.train.captured import CapturedStep
from bayesrule.train.history import Epoch
from bayesrule.train.loop import Callback, Loop, Watcher, validation_nll

CHECKPOINT = "checkpoint.safetensors"
Schedule = Literal["cosine", "constant"]


@dataclass(frozen=True)
class Fitted:
    """A trained model and how it got there."""

    bnn: BayesianModule
    history: tuple[Epoch, ...]
    best_epoch: int


def fit(
    module: nn.Module,
    train: Iterable[Any],
    valid: Iterable[Any] | None = None,
    *,
    likelihood: Likelihood | None = None,
    posterior: PerLayer[Family] | None = None,
    prior: PerLayer[Prior] | None = None,
    estimator: PerLayer[Estimator] | None = None,
    epochs: int = 50,
    lr: float = 3e-3,
    annealing: Annealing | None = None,
    temperature: float = 1.0,
    patience: int | None = None,
    valid_samples: int = 8,
    n_data: int | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    callbacks: Iterable[Callback] = (),
    watchers: Iterable[Watcher] = (),
    schedule: Schedule = "cosine",
    capture: bool = False,
    noise: NoiseKey = "rank",
) -> Fitted:
    """Make a network Bayesian and train it: Adam, the KL annealed, the learning rate decayed along a cosine.

    The same arguments give the same numbers, and an interrupted run that is resumed ends exactly as one that was not.
    torch's global generator is seeded inside and left as it was.

    Under ``torchrun`` all processes train one model: each takes its rows of every batch, which all of them read; the
    first writes checkpoints, validates and calls back. Processes that were started again resume by themselves.

    Args:
        module: A plain network, or one converted already (then posterior, prior and estimator must be left out).
        train: Batches of (inputs…, targets): a `DataLoader`, or any iterable that can be read once an epoch.
        valid: The same for validation; the model ends at its best epoch on it.
        likelihood: Of the targets; by default the converted model's own.
        posterior: As in `bayesianize`.
        prior: As in `bayesianize`; by default a normal whose scale is learned, layer by layer.
        estimator: As in `bayesianize`.
        epochs: Passes over the training data.
        lr: Adam's learning rate at the start.
        annealing: The KL's weight; by default it grows linearly over the first half.
        temperature: Of the KL.
        patience: Epochs without a better validation score after which to stop; None never stops early.
        valid_samples: Draws for the validation score.
        n_data: Training examples; by default the size of ``train.dataset``.
        seed: Of everything random.
        out: Folder for checkpoints; one that holds a checkpoint already is refused without ``resume``.
        resume: Go on from the checkpoint in ``out``, if there is one.
        callbacks: Called as ``callback(loop, epoch)`` after every epoch with the epoch's record, an `Epoch`.
        watchers: Called as ``watcher(loop)`` after every step, when its gradients are still there; under ``torchrun``
            in the first process only, as callbacks are.
        schedule: Of the learning rate: down to zero along a cosine, or none.
        capture: Record the step as a CUDA graph and replay it: much faster for small models. The model and the batches
            must lie on the device (`TensorBatches`), and the network must do the same work for every batch.
        noise: How noise is keyed where several processes train, see `bayesrule.distributed.data_parallel`; by
            ``"example"``, any number of them, one too, gives the same model but for rounding.
    """
    if epochs < 1:
        raise InvalidArgument("epochs must be at least 1", got=epochs)
    if not lr > 0:
        raise InvalidArgument("The learning rate must be positive", got=lr)
    if isinstance(valid, list | tuple) and not valid:
        raise InvalidArgument("There are no validation batches", got=repr(valid), remedy="Leave valid out.")
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        bnn = _converted(module, posterior, prior, estimator, likelihood)
        own_noise = bnn.draws.noise
        steps = _count(train)
        annealing = annealing or LinearOverEpochs(epochs / 2, steps)
        objective = NegativeELBO(
            bnn, n_data or _examples(train), likelihood, annealing=annealing, temperature=temperature
        )
        parallel = _parallel(bnn, noise, capture)
        optimizer = _adam(bnn, lr, capture)
        loop = Loop(
            bnn,
            objective,
            optimizer,
            _scheduler(optimizer, schedule, epochs * steps),
            epochs,
            validation=None if valid is None else validation_nll(valid, valid_samples, seed),
            patience=patience,
            checkpoint=None if out is None else Path(out) / CHECKPOINT,
            callbacks=tuple(callbacks),
            watchers=tuple(watchers),
            captured=CapturedStep(objective, optimizer) if capture else None,
            parallel=parallel,
            identity={
                "seed": seed,
                "epochs": epochs,
                "lr": lr,
                "temperature": temperature,
                "patience": patience,
                "n_data": objective.n_data,
                "steps": steps,
                "schedule": schedule,
                "capture": capture,
                "noise": noise,
                "annealing": describe(annealing),
                "conversion": str(bnn.conversion),
            },
        )
        if loop.checkpoint is not None and loop.checkpoint.exists():
            if not (resume or restarted()):
                raise InvalidArgument(
                    "The folder holds the checkpoint of an earlier run, which this one would replace",
                    got=loop.checkpoint, remedy="Go on with that run by resume=True, or name another folder.",
                )  # fmt: skip
            loop.resume(loop.checkpoint)
        try:
            loop.run(train)
        finally:
            bnn.draws.noise = own_noise
    return Fitted(bnn, tuple(loop.history), loop.best_epoch or len(loop.history))


def _parallel(bnn: BayesianModule, noise: NoiseKey, capture: bool) -> Parallel | None:
    """The other processes; None where there are none and noise is not keyed by example."""
    if join().size == 1 and noise == "rank":
        return None
    if capture:
        raise Unsupported(
            "A captured step is one process's, with noise of its generator", got=f"noise={noise!r}",
            remedy="Train without capture, or in one process.",
        )  # fmt: skip
    return data_parallel(bnn, noise=noise)


def _adam(bnn: BayesianModule, lr: float, capture: bool) -> torch.optim.Adam:
    parameters = [p for p in bnn.parameters() if p.requires_grad]
    if not capture:
        return torch.optim.Adam(parameters, lr=lr)
    rate = torch.tensor(lr, device=parameters[0].device)
    return torch.optim.Adam(parameters, lr=rate, capturable=True, fused=parameters[0].is_cuda)


def _scheduler(optimizer: torch.optim.Optimizer, schedule: Schedule, steps: int) -> LRScheduler:
    if schedule == "cosine":
        return CosineAnnealingLR(optimizer, steps)
    if schedule == "constant":
        return LambdaLR(optimizer, lambda step: 1.0)
    raise InvalidArgument("There is no such schedule", got=repr(schedule), remedy='Use "cosine" or "constant".')


def _converted(
    module: nn.Module,
    posterior: PerLayer[Family] | None,
    prior: PerLayer[Prior] | None,
    estimator: PerLayer[Estimator] | None,
    likelihood: Likelihood | None,
) -> BayesianModule:
    if not isinstance(module, BayesianModule):
        return bayesianize(module, posterior, prior or LearnedNormal(), estimator, likelihood)
    if (posterior, prior, estimator) != (None, None, None):
        raise InvalidArgument(
            "The network is converted already, and posterior, prior or estimator were given too",
            remedy="Give them to br.bayesianize, or give br.fit the plain network.",
        )
    return module


def _count(batches: Iterable[Any]) -> int:
    if not isinstance(batches, Sized) or len(batches) < 1:
        raise InvalidArgument(
            "Training batches need a length of at least one", got=type(batches).__name__,
            remedy="Give a DataLoader over a data set with a length, or a list of batches.",
        )  # fmt: skip
    return len(batches)


def _examples(train: Iterable[Any]) -> int:
    if isinstance(train, TensorBatches):
        return train.examples
    dataset = getattr(train, "dataset", None)
    if isinstance(dataset, Sized):
        return len(dataset)
    if isinstance(train, list | tuple):
        return sum(len(targets) for *_, targets in train)
    raise InvalidArgument(
        "The number of training examples is not known", got=type(train).__name__, remedy="Pass n_data."
    )

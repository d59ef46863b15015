"""Signal-to-noise ratio of the gradients of log-standard-deviation parameters, over a window of batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.nn import BayesianModule
from bayesrule.train.loop import Loop


@dataclass(frozen=True)
class SNR:
    """``E[g²]/Var[g]`` per parameter over a window, population variance   [k-tied Normal, footnote to Fig. 6].

    Attributes:
        mean: Over the parameters, as the paper reports it. Parameters whose gradient hardly varies dominate it.
        median: Over the parameters.
        ratio_of_sums: ``Σ E[g²] / Σ Var[g]``.
        usual_median: Median of ``E[g]²/Var[g]``, the usual definition: exactly one less.
    """

    mean: float
    median: float
    ratio_of_sums: float
    usual_median: float


def gradient_snr(gradients: Tensor) -> SNR:
    """The ratios of a window of gradients, ``(window, *parameter)``; infinite where a gradient never varied."""
    if gradients.ndim < 2 or gradients.shape[0] < 2:
        raise InvalidArgument("A window needs two or more gradients", got=f"shape {tuple(gradients.shape)}")
    gradients = gradients.flatten(1).double()
    square, variance = gradients.square().mean(0), gradients.var(0, correction=0)
    ratio = torch.where(square == 0, torch.ones_like(square), square / variance)
    return SNR(
        ratio.mean().item(), ratio.median().item(), (square.sum() / variance.sum()).item(), ratio.median().item() - 1
    )


@dataclass
class GradientSNR:
    """A watcher of `br.fit` that measures at chosen steps, over the gradients of the last ``window`` batches.

    Attributes:
        at: Steps (batches done) to measure at.
        window: Batches.
        found: By step and layer, what was measured; plain data.

    Example:
        >>> import torch, bayesrule as br
        >>> x, y = torch.randn(64, 3), torch.randn(64, 1)
        >>> snr = GradientSNR(at=[12])
        >>> _ = br.fit(torch.nn.Linear(3, 1), [(x, y)], likelihood=br.Gaussian(0.1), epochs=12, watchers=[snr])
        >>> sorted(snr.found[12]["weight"])
        ['mean', 'median', 'ratio_of_sums', 'usual_median']
    """

    at: Iterable[int]
    window: int = 10
    found: dict[int, dict[str, dict[str, float]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.at = frozenset(self.at)
        if self.window < 2:
            raise InvalidArgument("A window needs two or more batches", got=self.window)
        if any(step < self.window for step in self.at):
            raise InvalidArgument("Steps to measure at must lie a window after the start", got=sorted(self.at))
        self._windows: dict[str, deque[Tensor]] = {}

    def __call__(self, loop: Loop) -> None:
        """After a step: keep the gradient if a measurement is near."""
        if not any(step - self.window < loop.step <= step for step in self.at):
            return
        for name, gradient in log_std_gradients(loop.bnn).items():
            self._windows.setdefault(name, deque(maxlen=self.window)).append(gradient.clone())
        if loop.step in frozenset(self.at):
            self.found[loop.step] = {
                name: asdict(gradient_snr(torch.stack(list(kept)))) for name, kept in self._windows.items()
            }
        if not any(step - self.window <= loop.step < step for step in self.at):
            self._windows.clear()


def log_std_gradients(bnn: BayesianModule) -> Mapping[str, Tensor]:
    """Of every posterior over a matrix: the gradient of all its parameters besides the mean, flat, by group name."""
    found = {}
    for name, home in bnn.homes().items():
        gradients = [
            parameter.grad.flatten()
            for key, parameter in home.posterior.named_parameters()
            if key.rpartition(".")[2] != "mean" and parameter.grad is not None
        ]
        if home().event_dim == 2 and gradients:
            found[name] = torch.cat(gradients)
    return found

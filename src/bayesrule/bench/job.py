"""What a method gets to do, and what it gives back to be measured."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from bayesrule.bench.models import Model
from bayesrule.errors import InvalidArgument
from bayesrule.train.captured import Captured
from bayesrule.train.compiling import compile_options

N_DATA = 60_000
PRIOR_STD, INIT_STD = 0.2, 0.01
ADAM: dict[str, Any] = {"lr": 1e-3, "fused": True}
"""Of every method that takes an optimizer of torch.optim, ours and others' alike."""
PREDICT_BATCH = 4096
"""Examples in a forward pass of a prediction: the default of `br.predict`."""
Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Mode:
    """How steps are run.

    Attributes:
        compiled: By `torch.compile`.
        captured: As a recorded CUDA graph.
        bf16: Under autocast to bfloat16; parameters stay float32.
    """

    compiled: bool = False
    captured: bool = False
    bf16: bool = False

    @property
    def name(self) -> str:
        """In results."""
        words = [word for word, on in (("compiled", self.compiled), ("captured", self.captured)) if on]
        return f"{' and '.join(words) or 'eager'}, {'bf16' if self.bf16 else 'float32'}"

    @property
    def plain(self) -> bool:
        """Whether operators run one by one, and can be counted."""
        return not (self.compiled or self.captured)


MODES = {
    "eager": Mode(),
    "compiled": Mode(compiled=True),
    "captured": Mode(captured=True),
    "compiled-captured": Mode(compiled=True, captured=True),
}


@dataclass(frozen=True)
class Contender:
    """A method, ready to be measured.

    Attributes:
        step: One training step; None where the method does not train.
        outputs: The network's outputs for inputs at so many draws, (draws, examples, …).
        state: The tensors that a step changes: parameters and what the optimizer remembers.
        period: Steps until their work repeats itself.
    """

    step: Callable[[], object] | None
    outputs: Callable[[Tensor, int], Tensor]
    state: Callable[[], Iterable[Tensor]]
    period: int = 1


@dataclass(frozen=True)
class Job:
    """One network, one batch, one mode.

    Attributes:
        model: What the network is.
        net: The plain network, the method's own to change.
        x: A batch of inputs.
        y: Their targets.
        mode: How steps are run.
    """

    model: Model
    net: nn.Module
    x: Tensor
    y: Tensor
    mode: Mode

    @property
    def device(self) -> torch.device:
        """Where everything is."""
        return self.x.device

    def adam(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Adam:
        """The optimizer everybody gets; in a captured step its numbers lie on the device."""
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        options = dict(ADAM)
        if self.mode.captured:
            options |= {"lr": torch.tensor(ADAM["lr"], device=self.device), "capturable": True}
        return torch.optim.Adam(trained, **options)

    def compiled(self, loss: Any, *, whole: bool = True) -> Loss:
        """The loss as this mode runs it.

        Args:
            loss: Of inputs and targets, a Python function.
            whole: Whether it must be one graph.
        """
        if not self.mode.compiled:
            return loss
        # A code object of its own: torch keeps what it compiled by code object, and calls look through all of it.
        own = FunctionType(loss.__code__.replace(), loss.__globals__, loss.__name__, None, loss.__closure__)
        return torch.compile(own, fullgraph=whole, dynamic=False, options=compile_options(self.device))

    def precision(self) -> AbstractContextManager[Any]:
        """Of the forward pass."""
        return torch.autocast(self.device.type, torch.bfloat16) if self.mode.bf16 else nullcontext()

    def training(self, loss: Loss, optimizer: Optimizer, *, whole: bool = True) -> Callable[[], object]:
        """A step on a loss, by an optimizer of torch.optim."""
        function = self.compiled(loss, whole=whole)

        def step() -> tuple[Tensor, ...]:
            optimizer.zero_grad()
            with self.precision():
                value = function(self.x, self.y)
            value.backward()
            optimizer.step()
            return ()

        return Captured(step, self.device) if self.mode.captured else step

    def need_plain(self, method: str) -> None:
        """Refuse a mode that a method's steps have no form of."""
        if not self.mode.plain:
            raise InvalidArgument(f"{method} is measured in eager mode only", got=self.mode.name)


def state_of(optimizer: Optimizer) -> list[Tensor]:
    """The parameters of an optimizer of torch.optim, and what it keeps for them."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    kept = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    return [*parameters, *kept]


def drawn_by_calls(model: nn.Module) -> Callable[[Tensor, int], Tensor]:
    """Predictions of a module whose every forward pass makes a draw of its own: so many passes, batch by batch."""

    @torch.no_grad()
    def outputs(x: Tensor, draws: int) -> Tensor:
        training = model.training
        model.eval()
        found = [torch.cat([model(batch) for batch in x.split(PREDICT_BATCH)]) for _ in range(draws)]
        model.train(training)
        return torch.stack(found)

    return outputs

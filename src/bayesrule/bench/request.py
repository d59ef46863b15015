"""What a benchmark is asked to measure."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from bayesrule.bench.job import MODES, Mode
from bayesrule.bench.methods import METHODS
from bayesrule.bench.models import MODELS, Model, model
from bayesrule.bench.peers import PEERS
from bayesrule.errors import InvalidArgument

ALL = (*METHODS, *PEERS)
QUICK = tuple(name for name in ALL if name not in ("matrix-normal", "noisy-adam", "noisy-kfac", "ktied-von"))
"""Without those whose turns are long."""


@dataclass(frozen=True)
class Request:
    """What is measured.

    Attributes:
        models: By name.
        methods: By name, the library's and others'; the point estimate is always among them.
        batches: Examples in a step.
        device: ``"cpu"`` or ``"cuda"``.
        modes: Names among ``eager``, ``compiled``, ``captured`` and ``compiled-captured``.
        bf16: Whether steps are also measured under autocast to bfloat16.
        rounds: At most so many turns of each method.
        seconds: For the steps of one model, batch and mode, once every method had its least number of turns, and the
            same again for predictions.
        inputs: Examples of a prediction; 0 measures none.
        draws: Of the weights in a prediction.
        seed: Of everything random.
        keep_memory: Whether the C library keeps what is freed, for the rest of the process.
    """

    models: tuple[str, ...] = ("mlp",)
    methods: tuple[str, ...] = QUICK
    batches: tuple[int, ...] = (128,)
    device: str = "cpu"
    modes: tuple[str, ...] = ("eager",)
    bf16: bool = False
    rounds: int = 200
    seconds: float = 2.0
    inputs: int = 256
    draws: int = 10
    seed: int = 0
    keep_memory: bool = False

    def cases(self) -> list[tuple[Model, int, Mode]]:
        """Every model at every batch in every mode; bfloat16 goes with each of these."""
        modes = [_mode(name) for name in self.modes]
        modes += [Mode(mode.compiled, mode.captured, bf16=True) for mode in modes] if self.bf16 else []
        if self.device == "cpu" and any(mode.captured for mode in modes):
            raise InvalidArgument("Only steps on a CUDA device can be captured", got=self.device)
        return list(itertools.product(map(model, self.models), self.batches, modes))


PRESETS: dict[str, Request] = {
    "quick": Request(),
    "full": Request(
        models=("mlp-small", "mlp", "lenet", "lstm", "transformer", "dense-1024", "dense-2048", "dense-4096"),
        methods=ALL, batches=(128, 1024), modes=("eager", "compiled"), seconds=30.0, inputs=10_000, draws=100,
    ),
    "gpu": Request(
        models=tuple(MODELS), methods=ALL, batches=(128, 1024, 8192), device="cuda",
        modes=("eager", "compiled", "captured"), bf16=True, seconds=5.0, inputs=10_000, draws=100,
    ),
}  # fmt: skip
"""``quick`` ends within a minute; ``full`` takes an hour or so on one thread."""


def _mode(name: str) -> Mode:
    if name not in MODES:
        raise InvalidArgument(f"There is no mode {name!r}", remedy=f"Use {', '.join(MODES)}.")
    return MODES[name]

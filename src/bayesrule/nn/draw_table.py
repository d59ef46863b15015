"""One draw per posterior and forward pass, whoever reads it and however often."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import lru_cache
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from bayesrule.kernels import DrawnKL, FastNoise, JointDraw, fresh_noise_seed, untransformed
from bayesrule.nn.home import Home, full_precision
from bayesrule.nn.seed_history import SeedHistory
from bayesrule.random import NoiseSource, fresh_seed, in_graph, replayable, seeded
from bayesrule.threads import Turn


class DrawTable:
    """The draws of one root call: the outermost forward of a converted model, or of one of its layers alone.

    A posterior used once draws from its noise source, by default torch's global generator: so `torch.manual_seed`
    fixes it and activation checkpointing, which restores that generator, recomputes the same noise. A posterior used
    several times in a pass (``shared``) is drawn once from a seed of the root call. Recomputation happens after that
    call has ended, so the seed is remembered by the state in which the global generator was at each reading,
    which checkpointing brings back. Another noise source than the default serves every posterior.
    """

    def __init__(self) -> None:
        self.noise: NoiseSource = FastNoise()
        self.shared: set[str] = set()
        self._depth = 0
        self._seed: int | None = None
        self._seeded = False
        self._drawn: dict[str, tuple[dict[str, Tensor], bool]] = {}
        self._estimated: set[str] = set()
        self._ahead: tuple[int | None, object, dict[str, tuple[Home, Tensor]]] | None = None
        self._given: Mapping[str, Tensor] | None = None
        self._at_mean = False
        self._history, self.turn = SeedHistory(), Turn()

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and files of a model are in no pass, whatever another thread does with it."""
        return DrawTable, (), {"noise": self.noise, "shared": set(self.shared)}

    def begin(self, *, seeded: bool = False) -> None:
        """A call begins that keeps its draws, if it is the outermost; ``seeded`` ones choose shared seeds."""
        self._take_turn()
        if self._depth == 0:
            # A compiler that sees what is there already being changed gives draws back as results, with gradients.
            self._drawn, self._estimated = {}, set()
            self._seeded = seeded and bool(self.shared) and not in_graph()
            self._seed = fresh_seed() if self._seeded else None
        self._depth += 1

    def end(self) -> None:
        """It has ended, or failed."""
        self._depth -= 1
        if self._depth == 0:
            self._drawn, self._estimated, self._ahead = {}, set(), None
        self._end_turn()

    def _take_turn(self) -> None:
        """Passes of other threads wait."""
        if not torch.compiler.is_compiling():
            self.turn.take()

    def _end_turn(self) -> None:
        if not torch.compiler.is_compiling():
            self.turn.give_back()

    @contextmanager
    def root(self) -> Iterator[None]:
        """Keep draws until the outermost call ends."""
        self.begin()
        try:
            yield
        finally:
            self.end()

    @contextmanager
    def given(self, draws: Mapping[str, Tensor]) -> Iterator[None]:
        """Use these tensors, by parameter name, instead of drawing."""
        self._take_turn()
        before, self._given = self._given, draws
        try:
            yield
        finally:
            self._given = before
            self._end_turn()

    @contextmanager
    def at_mean(self) -> Iterator[None]:
        """Use posterior means instead of drawing."""
        self._take_turn()
        before, self._at_mean = self._at_mean, True
        try:
            yield
        finally:
            self._at_mean = before
            self._end_turn()

    @property
    def random(self) -> bool:
        """Whether layers may use their estimators: not while tensors are given or the mean is asked for."""
        return self._given is None and not self._at_mean

    @property
    def in_pass(self) -> bool:
        """Whether a forward pass is under way."""
        return self._depth > 0

    def unused(self, home: Home) -> bool:
        """Whether this pass has not yet drawn from a home, and may do so in a layer."""
        return not any(home.name in names for names in (self.shared, self._drawn, self._estimated))

    def claim(self, home: Home) -> bool:
        """Whether a layer may let this home's noise enter its output directly: only as its one use in a pass."""
        if home.name in self._estimated:
            self._demote(home)
        if home.name in self.shared or home.name in self._drawn:
            return False
        self._estimated.add(home.name)
        return True

    @property
    def may_draw_ahead(self) -> bool:
        """Whether a pass that begins may have its draws made by other code, from a seed."""
        return self._depth == 1 and self.random and type(self.noise) is FastNoise and untransformed()

    def draw_ahead(self, homes: Sequence[Home], joint: JointDraw | None, device: torch.device) -> DrawnKL | None:
        """Draw what will be read in the pass that begins; on a CPU, what else is drawn then has noise of the same seed.

        Args:
            homes: Whose posteriors.
            joint: They, where there are any, which our own code draws.
            device: Of all that might be among them.
        """
        generator, seed, on_device = cast(FastNoise, self.noise).generator, None, None
        if device.type == "cpu":
            seed = self._seed if replayable(self.noise) else None
            seed = fresh_seed(generator) if seed is None else seed
        else:
            on_device = fresh_noise_seed(device, generator)
        drawn, kl = ((), None) if joint is None else joint.draw(seed if on_device is None else on_device)
        draws = zip(homes, drawn, strict=True)
        self._ahead = seed, _mode(), {home.name: (home, draw) for home, draw in draws}
        return kl

    def tensor(self, home: Home, name: str) -> Tensor:
        """The parameter ``name`` of this root call, in its own layout."""
        if self._given is not None and name in self._given:
            return self._given[name]
        if self._at_mean:
            posterior = home()
            return posterior.split(posterior.mean)[name]
        if not self._depth:  # read outside any forward pass: a draw of its own
            with self.root():
                return self.tensor(home, name)
        if home.name in self._estimated:
            self._demote(home)
        return self._draw(home)[name]

    def _draw(self, home: Home) -> dict[str, Tensor]:
        seed = self._seed_for(home)  # also for a draw already made: its seed is remembered wherever it is read
        if home.name in self._drawn:
            parts, differentiable = self._drawn[home.name]
            if differentiable or not torch.is_grad_enabled():
                return parts
            if home.name not in self.shared:
                self._demote(home)
        drawn = self._by_compiled_code(home, seed)
        parts = self._in_general(home, seed) if drawn is None else {home.name: drawn}
        self._drawn[home.name] = parts, torch.is_grad_enabled()
        return parts

    def _in_general(self, home: Home, seed: int | None) -> dict[str, Tensor]:
        source = self.noise if seed is None else seeded(self.noise, home.mean.device, seed, home.name)
        with _apart(home):
            posterior = home()
            drawn = posterior.fused_sample(source)
            return posterior.split(posterior.from_noise(posterior.noise_from(source)) if drawn is None else drawn)

    def _by_compiled_code(self, home: Home, seed: int | None) -> Tensor | None:
        """What was drawn ahead, or is drawn now by the same code and noise; None where the general form has to serve.

        A region that is checkpointed finds nothing drawn ahead when it is recomputed. There a posterior used once draws
        from the generator, which is then as it was, and one used several times by the seed that is remembered for it.
        """
        if torch.compiler.is_compiling():
            return None
        if self._ahead is not None and self._ahead[1] == _mode():
            kept, draw = self._ahead[2].get(home.name, _NOTHING)
            if kept is home:
                return draw
            seed = self._ahead[0] if seed is None else seed
        piece = home.posterior.piece() if seed is not None and type(self.noise) is FastNoise else None
        if seed is None or piece is None or not piece.mean.is_cpu:
            return None
        alone = JointDraw([piece], [place_of(home.name)])
        return alone.draw(seed)[0][0] if alone.served() else None

    def _seed_for(self, home: Home) -> int | None:
        """The root call's seed, for a home used several times; None for the others, and where noise is not ours."""
        if home.name not in self.shared or not replayable(self.noise) or in_graph():
            return None  # a graph restores generators by itself
        if self._seed is None:  # recomputation, or a layer alone
            remembered = self._history.recall()
            self._seed = fresh_seed() if remembered is None else remembered
        elif self._seeded:
            self._history.record(self._seed)
        return self._seed

    def _demote(self, home: Home) -> None:
        self.shared.add(home.name)
        warnings.warn(
            f"{home.name} was used twice in one forward pass, which the model's trace did not show. From the next pass "
            "on it is drawn once a pass (weight sampling); this pass drew it twice. To have that from the start, pass "
            "estimator=br.WeightSample() for this layer.",
            stacklevel=2,
        )


@contextmanager
def _apart(home: Home) -> Iterator[None]:
    """Draw in the posterior's own precision, and unseen by checkpoints.

    A checkpointed region must save the same tensors in the same order when it is recomputed, though a draw that it
    found made is then its own to make: so what a draw saves for its gradient is kept apart.
    """
    watched = not torch.compiler.is_compiling() and _hooks() is not None
    kept: Any = saved_tensors_hooks(Tensor.detach, _itself) if watched else nullcontext()
    with kept, full_precision(home):
        yield


def _hooks() -> Any:
    """What watches the tensors that are saved, where no compiler does."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def _mode() -> object:
    """In what circumstances a draw is made that is not the same in others."""
    return torch.is_grad_enabled(), _hooks()


_NOTHING: tuple[None, None] = None, None


def _itself(tensor: Tensor) -> Tensor:
    return tensor


@lru_cache(maxsize=1 << 12)
def place_of(name: str) -> int:
    """A number for a posterior, by which a seed of a pass becomes one of its own."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1

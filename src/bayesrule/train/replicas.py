"""Many copies of a small regression network, trained as one batched program."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.likelihoods import GaussianGammaNoise
from bayesrule.likelihoods.normal_density import normal_log_prob
from bayesrule.optim.noisy_kfac import NoisyKFACRule
from bayesrule.optim.rule import PriorTerm, Rule
from bayesrule.posteriors import GaussianPosterior
from bayesrule.predict import Predictive
from bayesrule.random import keyed_generator
from bayesrule.train.replicas_arguments import (
    Setting,
    check_data,
    check_inputs,
    check_kinds,
    check_targets,
    gamma_numbers,
    noise_rate,
    numbers,
)
from bayesrule.train.replicas_backprop import BayesByBackpropRule
from bayesrule.train.replicas_captured import CapturedSteps
from bayesrule.train.replicas_network import Layout, Start, forward, initial_weights
from bayesrule.train.replicas_noise import Batch, DeviceStream, Stream
from bayesrule.train.replicas_step import Noise, Program, ReplicaState, draw, step
from bayesrule.train.whole_numbers import whole

DRAWS = 100
"""Of all weights, whose noise a prediction holds at a time."""
DEFAULT_RULE = NoisyKFACRule(beta=0.0001)
QUIET_STEPS = 1000
"""Until averages of curvature rest on enough examples."""


class Replicas:
    """Perceptrons with ReLUs, each with its own data, seed and settings; equal to training them one by one.

    Every replica is a regression ``y ~ N(f(x, w), 1/τ)`` with a ``Gamma`` prior on τ, as `GaussianGammaNoise`.
    They are trained where their inputs are. On a CUDA device noise is drawn there, and steps are captured as graphs.
    The defaults are noisy K-FAC with what `nng/search` found for all its data sets together.

    Args:
        x: Inputs of each replica, standardised.
        y: Their targets, standardised too; they get the type and the device of the inputs.
        rule: The algorithm of all of them; by default noisy K-FAC, with a slow average of curvatures. Other rules want
            other settings: the search's are in [noisy natural gradient](../noisy-natural-gradient.md).
        hidden: Widths of the hidden layers.
        seeds: Of the replicas: start, order of rows, noise.
        lr: Step size.
        kl_weight: λ.
        prior_std: Of the weights.
        noise_prior: Shape and rate of the Gamma prior on the noise's precision.
        noise_lr: Step size of q(τ).
        batch_size: Rows of a step.
        T_stats: Steps between curvatures.
        T_inv: Steps between inverses.
        quiet_steps: Steps at the start that take the mean for a draw, since the posterior's covariance rests on few
            examples then; by default 1000, and none with Bayes by backprop, which learns from draws alone.
        start: Of the weights: as `nn.Linear`, or He's.
        capture: Whether steps are replayed as CUDA graphs; by default where there is a CUDA device.

    Example:
        >>> import torch
        >>> x = torch.randn(4, 50, 3)
        >>> replicas = Replicas(x, x.sum(-1, keepdim=True), hidden=(8,), seeds=range(4))
        >>> replicas.train(epochs=2)
        >>> replicas.predict(torch.randn(4, 10, 3), samples=5).outputs.shape
        torch.Size([5, 4, 10, 1])
    """

    def __init__(
        self,
        x: Float[Tensor, "replicas n features"],
        y: Float[Tensor, "replicas n targets"],
        rule: Rule = DEFAULT_RULE,
        *,
        hidden: Sequence[int] = (50,),
        seeds: Sequence[int],
        lr: Setting = 0.01,
        kl_weight: Setting = 1.0,
        prior_std: Setting = 2.0,
        noise_prior: tuple[Setting, Setting] = (1.0, 0.01),
        noise_lr: float = 0.01,
        batch_size: int = 10,
        T_stats: int = 1,
        T_inv: int = 20,
        quiet_steps: int | None = None,
        start: Start = "linear",
        capture: bool | None = None,
    ) -> None:
        check_kinds(x, y, rule, hidden, seeds, start)
        check_data(x, y, seeds)
        n, y = x.shape[1], y.to(x)
        layout = Layout.of((x.shape[2], *hidden, y.shape[2]), rule.joint)
        self._like, self._count = x.new_empty(()), len(x)
        unit = self._shaped(numbers("kl_weight", kl_weight, len(x), remedy="The ELBO has 1.0."), 3) / n
        self.prior_std = self._shaped(numbers("prior_std", prior_std, len(x), remedy="It is a standard deviation."), 3)
        if isinstance(rule, BayesByBackpropRule):
            if quiet_steps:
                raise Unsupported("Bayes by backprop learns from its noise alone", got=f"quiet_steps={quiet_steps}")
            rule, quiet_steps = replace(rule, scale=unit), 0
        quiet_steps = QUIET_STEPS if quiet_steps is None else quiet_steps
        across = layout.event_dim
        self.lr = self._shaped(numbers("lr", lr, len(x), zero=True, remedy="The default is 0.01."), 1 + across)
        self.program = Program(
            layout, rule, PriorTerm(_dims(unit / self.prior_std**2, across)), _dims(unit**0.5, across), n,
            Noise(*(self._shaped(each, 3) for each in gamma_numbers(noise_prior, len(x)))), noise_rate(noise_lr),
            whole("T_stats", T_stats, 1), whole("T_inv", T_inv, 1), whole("quiet_steps", quiet_steps, 0),
        )  # fmt: skip
        self.seeds = tuple(seeds)
        stream = DeviceStream if x.is_cuda else Stream
        self.stream = stream(_with_ones(x), y, self.seeds, whole("batch_size", batch_size, 1), sum(layout.sizes))
        self.state = self._start(start)
        self.epochs = 0
        captured = x.is_cuda if capture is None else capture
        self._captured = CapturedSteps(self.program, self.state, self.lr) if captured else None

    def train(
        self, epochs: int, *, lr_factor: Setting = 1.0, after_step: Callable[[int, Replicas], None] | None = None
    ) -> None:
        """Go on for so many epochs; a schedule is a call for each of its step sizes.

        Args:
            epochs: How many.
            lr_factor: Multiplies every replica's step size; one number, or one for each.
            after_step: Called with the number of steps so far, and this.
        """
        last = self.epochs + whole("epochs", epochs, 0)
        factors = numbers("lr_factor", lr_factor, self._count, zero=True, remedy="At 1.0 it leaves lr as it is.")
        lr = self.lr * self._shaped(factors, self.lr.ndim)
        if self._captured is not None:
            self._captured.lr.copy_(lr)
        with torch.no_grad():
            for batches in self.stream.epochs(self.epochs, last):
                for batch in batches:
                    self.state = self._after(batch, lr)
                    if after_step is not None:
                        after_step(self.state.steps, self)
                self.epochs += 1
        self._check_finite()

    def predict(self, x: Float[Tensor, "replicas rows features"], samples: int = 100) -> ReplicaPredictive:
        """Outputs of draws of the weights, each replica's by its own seed."""
        check_inputs(x, self._count, self.stream.x.shape[2] - 1)
        samples = whole("samples", samples, 1)
        inputs, entries = _with_ones(x.to(self._like)), self.stream.entries
        generators = [keyed_generator(torch.device("cpu"), seed, "replica prediction") for seed in self.seeds]
        outputs = []
        for first in range(0, samples, DRAWS):
            shape = (min(DRAWS, samples - first), entries)
            drawn = [torch.randn(shape, generator=each, dtype=self._like.dtype) for each in generators]
            with torch.no_grad():
                outputs += [
                    forward(draw(self.program, self.state, noise), inputs).outputs
                    for noise in torch.stack(drawn, 1).to(self._like.device)
                ]
        return ReplicaPredictive(torch.stack(outputs), self.state.noise)

    def posteriors(self) -> list[GaussianPosterior]:
        """By group, with the replicas as their batch."""
        program = self.program
        scale = program.scale.square().reshape(
            -1, 1, 1
        )  # against matrices, which the factors of a vector event are too
        parts = zip(self.state.means, self.state.states, strict=True)
        gamma = program.prior.damping
        return [GaussianPosterior(mean, program.rule.covariance(own, gamma, scale)) for mean, own in parts]

    def kl(self) -> Float[Tensor, " replicas"]:
        """``KL(q(w) ‖ p(w)) = ½[(tr Σ + |μ|²)/η² − log det Σ + d log η² − d]`` of each."""
        variance = self.prior_std.square().flatten()
        one, total = self._like.new_ones(()), torch.zeros_like(variance)
        for each in self.posteriors():
            squares = each.mean.square().flatten(1)
            size = squares.shape[1]
            fit = (each.covariance.trace(one) + squares.sum(1)) / variance - each.covariance.logdet()
            total = total + 0.5 * (fit + size * variance.log() - size)
        return total

    @property
    def limited(self) -> Tensor:
        """How many steps of each replica the guard has shortened, the most over its groups."""
        return torch.stack([own.limited for own in self.state.states]).amax(0)

    def _after(self, batch: Batch, lr: Tensor) -> ReplicaState:
        if self._captured is None:
            return step(self.program, self.state, batch, lr)
        self._captured(batch)
        return self._captured.state

    def _start(self, start: Start = "linear") -> ReplicaState:
        program, weights = self.program, []
        for seed in self.seeds:
            generator = keyed_generator(torch.device("cpu"), seed, "replica start")
            weights.append(initial_weights(program.layout, generator, self._like, start))
        stacked = [torch.stack(layer) for layer in zip(*weights, strict=True)]
        means = tuple(program.layout.events(stacked))
        shapes = program.layout.shapes
        groups = [shapes] if program.layout.joint else [(shape,) for shape in shapes]
        states = [
            program.rule.init(mean, group, program.prior.damping) for mean, group in zip(means, groups, strict=True)
        ]
        return ReplicaState(means, tuple(states), program.noise_prior)

    def _shaped(self, each: Float[Tensor, " replicas"], ndim: int) -> Tensor:
        """One number for each replica, in as many dimensions."""
        return each.to(self._like).reshape(-1, *(1,) * (ndim - 1))

    def _check_finite(self) -> None:
        broken = ~torch.stack([mean.flatten(1).isfinite().all(1) for mean in self.state.means]).all(0)
        if bool(broken.any()):
            raise InvalidArgument(
                "Replicas diverged", got=f"seeds {[s for s, b in zip(self.seeds, broken.tolist(), strict=True) if b]}",
                remedy="Lower lr or max_kl.",
            )  # fmt: skip


@dataclass(frozen=True)
class ReplicaPredictive:
    """What every replica predicts, in its standardised units.

    Attributes:
        outputs: Of draws of the weights.
        noise: ``q(τ)``.
    """

    outputs: Float[Tensor, "samples replicas rows targets"]
    noise: Noise

    @property
    def mean(self) -> Float[Tensor, "replicas rows targets"]:
        """Of the target."""
        return self.outputs.mean(0)

    @property
    def variance(self) -> Float[Tensor, "replicas rows targets"]:
        """Of the expected target between draws: the epistemic one."""
        return self.outputs.var(0, correction=0)

    @property
    def epistemic_std(self) -> Float[Tensor, "replicas rows targets"]:
        """Standard deviation of the expected target between draws: what more data would lower."""
        return self.variance.sqrt()

    @property
    def std(self) -> Float[Tensor, "replicas rows targets"]:
        """Total standard deviation of the target, ``√(Var_s f_s + 1/E[τ])``."""
        return (self.variance + self.noise.precision.reciprocal()).sqrt()

    def rmse(self, y: Float[Tensor, "replicas rows targets"]) -> Float[Tensor, " replicas"]:
        """Of the mean."""
        check_targets(y, self.outputs)
        return (self.mean - y).square().mean((-2, -1)).sqrt()

    def log_likelihood(self, y: Float[Tensor, "replicas rows targets"]) -> Float[Tensor, " replicas"]:
        """``mean log (1/S) Σ_s N(y; f_s, 1/E[τ])``."""
        check_targets(y, self.outputs)
        log_std = -0.5 * self.noise.precision.log()
        densities = normal_log_prob(y - self.outputs, log_std)
        return (densities.logsumexp(0) - math.log(len(densities))).mean(-1)

    def of(self, replica: int) -> Predictive:
        """One replica's, as `br.predict` would return it."""
        count = self.outputs.shape[1]
        if not -count <= replica < count:
            raise InvalidArgument(f"There are {count} replicas, the first is 0", got=replica)
        likelihood = GaussianGammaNoise(*(each[replica].reshape(()) for each in (self.noise.shape, self.noise.rate)))
        return Predictive(self.outputs[:, replica], likelihood)


def _with_ones(x: Tensor) -> Tensor:
    return F.pad(x, (0, 1), value=1.0)


def _dims(each: Tensor, event_dim: int) -> Tensor:
    """One number for each replica against events of so many dimensions."""
    return each.reshape(-1, *(1,) * event_dim)

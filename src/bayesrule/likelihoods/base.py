"""The base of all likelihoods: shapes, averages and mixtures once; a family adds its density, sampler and moments."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from bayesrule.errors import InvalidArgument, ShapeMismatch, check_tensors
from bayesrule.likelihoods.moments import Moments, PredictiveMoments
from bayesrule.likelihoods.support import Support
from bayesrule.random import FromGenerator, NoiseSource


class Likelihood(nn.Module, ABC):
    """``p(y | f)``: the law of a target ``y`` given a network's outputs ``f``, and a posterior over its own noise.

    The last dimension of the outputs belongs to one example's target; every dimension before it is an example or, in
    front of those, a posterior draw. A module, so that learned noise and a posterior over it travel with the model's
    ``state_dict``. Half-precision outputs are lifted to float32 first.

    A family declares `support` and `outputs_per_target` and writes the five methods that begin with an underscore
    (`PointLikelihood` has two of them); there, outputs and targets are already checked and aligned.
    """

    support: ClassVar[Support]
    outputs_per_target: int = 1
    argument_names: ClassVar[tuple[str, ...]] = ()
    """The constructor's arguments, each also an attribute."""

    @abstractmethod
    def _log_prob(self, outputs: Float[Tensor, "*leading outputs"], targets: Tensor) -> Float[Tensor, "*leading"]:
        """``log p(y | f)``."""

    @abstractmethod
    def _expected_log_prob(
        self, outputs: Float[Tensor, "*leading outputs"], targets: Tensor
    ) -> Float[Tensor, "*leading"]:
        """``E[log p(y | f, τ)]`` under the likelihood's own posterior of ``τ``."""

    @abstractmethod
    def _sample(self, outputs: Float[Tensor, "*leading outputs"], noise: NoiseSource) -> Tensor:
        """A draw from ``p(y | f)``."""

    @abstractmethod
    def _moments(self, outputs: Float[Tensor, "*leading outputs"]) -> Moments:
        """``E[y | f]`` and ``Var[y | f]``."""

    @abstractmethod
    def kl(self) -> Float[Tensor, ""]:
        """``KL(q(τ) ‖ p(τ))`` of the likelihood's own posterior, a sum; 0 where it has none."""

    @final
    def arguments(self) -> dict[str, Any]:
        """The constructor's arguments that make an equal likelihood; what was learned comes by ``state_dict``."""
        return {name: getattr(self, name) for name in self.argument_names}

    @final
    def output_size(self, target_dim: int) -> int:
        """How many outputs a network needs for targets of ``target_dim`` numbers (or that many classes)."""
        return self.outputs_per_target * target_dim

    @final
    def log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """``log p(y | f)`` of every example, summed over the entries of its target.

        Args:
            outputs: ``(*draws, *examples, output_size)``.
            targets: ``(*examples, target_dim)``, or ``(*examples)`` for class indices. Numbers, one per example, may
                also be ``(examples,)``. Examples are never broadcast; draws are.

        Returns:
            Log densities, ``(*draws, *examples)``.
        """
        return self._log_prob(*self._prepare(outputs, targets))

    @final
    def expected_log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The training objective of every example, ``E_q(τ)[log p(y | f, τ)]``; shapes as in `log_prob`."""
        return self._expected_log_prob(*self._prepare(outputs, targets))

    @final
    def nll(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """``−mean E_q(τ)[log p(y | f, τ)]`` over the examples (and draws, where the outputs have any)."""
        outputs, aligned = self._prepare(outputs, targets)
        if self._example_dims(outputs, aligned) == 0:
            raise ShapeMismatch(
                "a mean over examples needs an example dimension",
                got=f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}, read as one example",
                remedy="Give outputs as (examples, outputs), or use expected_log_prob for a single example.",
            )
        if outputs.numel() == 0:
            raise InvalidArgument("a mean over zero examples", got=f"outputs {tuple(outputs.shape)}")
        return -self._expected_log_prob(outputs, aligned).mean()

    @final
    @torch.no_grad()
    def sample(
        self, outputs: Tensor, noise: NoiseSource | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Targets drawn from ``p(y | f)``, one for every row of outputs; no gradient flows through them.

        Args:
            outputs: ``(*leading, output_size)``.
            noise: Where the noise comes from; fresh noise unless given.
            generator: Of the fresh noise.
        """
        if noise is not None and generator is not None:
            raise InvalidArgument("noise and generator both given", remedy="Give one: a generator makes fresh noise.")
        return self._sample(self._lifted(outputs), FromGenerator(generator) if noise is None else noise)

    @final
    def moments(self, outputs: Tensor) -> Moments:
        """Mean and variance of every entry of the target given the outputs (of the one-hot target for classes)."""
        return self._moments(self._lifted(outputs))

    @final
    def predictive_moments(self, outputs: Tensor) -> PredictiveMoments:
        """Moments of the mixture over draws, by the law of total variance.

        ``E[y] = mean_s E[y|f_s]``, ``Var[y] = Var_s E[y|f_s] + mean_s Var[y|f_s]`` (epistemic + aleatoric). What is
        averaged are means and probabilities, never logits. ``Var_s`` is that of the draws at hand: it divides by S.

        Args:
            outputs: ``(draws, *examples, output_size)``.
        """
        self._check_draws(outputs, example_dims=0)
        mean, variance = self.moments(outputs)
        return PredictiveMoments(mean.mean(0), mean.var(0, correction=0), variance.mean(0))

    @final
    def mixture_log_prob(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """``log (1/S) Σ_s p(y | f_s)`` over the first dimension of the outputs, for every example.

        Args:
            outputs: ``(draws, *examples, output_size)``.
            targets: Without the draws, as in `log_prob`.
        """
        outputs, targets = self._prepare(outputs, targets)
        self._check_draws(outputs, self._example_dims(outputs, targets))
        return self._log_prob(outputs, targets).logsumexp(0) - math.log(outputs.shape[0])

    def _check_draws(self, outputs: Tensor, example_dims: int) -> None:
        if outputs.ndim < example_dims + 2 or outputs.shape[0] == 0:
            raise ShapeMismatch(
                "outputs need a leading dimension of one or more posterior draws",
                got=f"outputs of shape {tuple(outputs.shape)}",
                remedy="Stack the outputs of the draws in front: (draws, examples, outputs).",
            )

    def _target_dim(self, outputs: Tensor) -> int:
        return outputs.shape[-1] // self.outputs_per_target

    def _example_dims(self, outputs: Tensor, targets: Tensor) -> int:
        return targets.ndim - len(self.support.event_shape(self._target_dim(outputs)))

    def _prepare(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        check_tensors({"outputs": outputs, "targets": targets})
        outputs = self._lifted(outputs)
        leading, size = tuple(outputs.shape[:-1]), self._target_dim(outputs)
        return outputs, self.support.prepare(targets, leading, size, outputs.dtype)

    def _lifted(self, outputs: Tensor) -> Tensor:
        """The outputs in float32 or better, their last dimension checked."""
        if not outputs.is_floating_point():
            raise InvalidArgument("outputs must be floating point", got=outputs.dtype)
        if outputs.ndim == 0 or outputs.shape[-1] == 0 or outputs.shape[-1] % self.outputs_per_target:
            raise ShapeMismatch(
                f"{type(self).__name__} needs {self.outputs_per_target} outputs for each number of the target, "
                "in the last dimension",
                got=f"outputs of shape {tuple(outputs.shape)}",
                remedy="Size the network's last layer by likelihood.output_size(target_dim).",
            )
        self.support.check_outputs(outputs.shape)
        return outputs.to(torch.promote_types(outputs.dtype, torch.float32))


class PointLikelihood(Likelihood):
    """A likelihood with no posterior of its own: parameters fixed, or learned as points."""

    @final
    def _expected_log_prob(
        self, outputs: Float[Tensor, "*leading outputs"], targets: Tensor
    ) -> Float[Tensor, "*leading"]:
        """``log p(y | f)``: nothing is left to average over."""
        return self._log_prob(outputs, targets)

    @final
    def kl(self) -> Float[Tensor, ""]:
        """0."""
        return torch.zeros(())

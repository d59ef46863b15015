"""What a model predicts, averaged over draws of its weights."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported
from bayesrule.likelihoods import Bernoulli, Categorical, Likelihood
from bayesrule.likelihoods.moments import PredictiveMoments
from bayesrule.predict.mixture_quantile import normal_mixture_quantile
from bayesrule.predict.normal_mixture import as_normal_mixture
from bayesrule.random import keyed_generator


@dataclass(frozen=True)
class Predictive:
    """The mixture ``(1/S) Σ_s p(y | f_s)`` over draws of the weights.

    Probabilities and densities are averaged, never logits. Variances split by the law of total variance into what the
    draws disagree on (epistemic) and what each expects (aleatoric).

    Attributes:
        outputs: The network's outputs, (draws, examples, …).
        likelihood: What turns outputs into a law of the target; None gives only what needs none.
        seed: Of the predictive `samples`.
    """

    outputs: Tensor
    likelihood: Likelihood | None
    seed: int = 0

    def __repr__(self) -> str:
        """What it is of, not its thousands of numbers."""
        draws, *shape = self.outputs.shape
        return f"Predictive({draws} draws of outputs {tuple(shape)}, likelihood={self.likelihood!r}, seed={self.seed})"

    @property
    def mean(self) -> Tensor:
        """Expected target; for classes their probabilities."""
        return self._moments.mean

    @property
    def std(self) -> Tensor:
        """Total standard deviation of the target."""
        return self._moments.total_variance.sqrt()

    @property
    def epistemic_std(self) -> Tensor:
        """Standard deviation of the expected target between draws: what more data would lower."""
        return self._moments.epistemic_variance.sqrt()

    @property
    def aleatoric_std(self) -> Tensor:
        """Root of the mean variance of the target within a draw: what more data would not lower."""
        return self._moments.aleatoric_variance.sqrt()

    @property
    def probs(self) -> Tensor:
        """Class probabilities (or those of a 1), averaged over draws."""
        return self._draw_probs("probs").mean(0)

    @property
    def entropy(self) -> Tensor:
        """Entropy of the averaged probabilities, in nats: total uncertainty about the class."""
        return self._entropy(self._draw_probs("entropy").mean(0))

    @property
    def mutual_information(self) -> Tensor:
        """``H[mean p] − mean H[p]`` between the class and the weights: epistemic uncertainty   [BALD]."""
        probs = self._draw_probs("mutual_information")
        return (self._entropy(probs.mean(0)) - self._entropy(probs).mean(0)).clamp_min(0)

    def log_prob(self, targets: Tensor) -> Tensor:
        """``log (1/S) Σ_s p(y | f_s)`` of every example's target."""
        return self._need_likelihood().mixture_log_prob(self.outputs, targets)

    def samples(self) -> Tensor:
        """One target for each draw of the weights, (draws, examples, …), by the seed."""
        generator = keyed_generator(self.outputs.device, self.seed, "predictive samples")
        return self._need_likelihood().sample(self.outputs, generator=generator)

    def quantile(self, level: float | Tensor) -> Tensor:
        """Quantiles of the target: one level, or a vector of levels as leading dimension.

        For Gaussian likelihoods and mixtures of Gaussians that of the mixture itself, over draws and components, found
        by bisection; for the others empirical, over `samples`.
        """
        likelihood = self._need_likelihood()
        dtype = torch.promote_types(self.outputs.dtype, torch.float32)  # as likelihoods lift outputs
        levels = torch.as_tensor(level, dtype=dtype, device=self.outputs.device)
        if levels.ndim > 1:
            raise ShapeMismatch("Levels are one number or a vector", got=tuple(levels.shape))
        if not bool(((levels > 0) & (levels < 1)).all()):
            raise InvalidArgument("A quantile's level lies strictly between 0 and 1", got=level)
        if isinstance(likelihood, Categorical | Bernoulli):
            raise Unsupported("Classes have no quantiles", remedy="Use probs.")
        mixture = as_normal_mixture(likelihood, self.outputs)
        if mixture is None:
            return torch.quantile(self.samples(), levels, dim=0)
        return normal_mixture_quantile(mixture, levels)

    def cdf(self, targets: Tensor) -> Tensor:
        """``P(y_j ≤ target_j)`` of every entry, exact over draws and components: uniform where calibrated   [PIT].

        Args:
            targets: Without the draws, as in `log_prob`.

        Returns:
            Probabilities, (examples, …, entries).
        """
        likelihood = self._need_likelihood()
        mixture = as_normal_mixture(likelihood, self.outputs)
        if mixture is None:
            raise Unsupported(
                "cdf is defined for Gaussian likelihoods and their mixtures", got=type(likelihood).__name__,
                remedy="Use probs for classes, and quantile or samples for other numbers.",
            )  # fmt: skip
        *examples, entries = mixture.means.shape[1:]
        return mixture.cdf(likelihood.support.prepare(targets, tuple(examples), entries, mixture.means.dtype))

    @property
    def _moments(self) -> PredictiveMoments:
        return self._need_likelihood().predictive_moments(self.outputs)

    def _need_likelihood(self) -> Likelihood:
        if self.likelihood is None:
            raise InvalidArgument(
                "This needs a likelihood, and prediction was made without one", got=None,
                remedy="Pass likelihood=br.Categorical() (or Gaussian, Bernoulli, Poisson) to br.predict.",
            )  # fmt: skip
        if self.outputs.ndim < 3:  # else the examples would be read as the entries of one target
            raise ShapeMismatch(
                "A likelihood needs outputs of shape (draws, examples, …, outputs)", got=tuple(self.outputs.shape),
                remedy="Let the network return (examples, 1) rather than (examples,).",
            )  # fmt: skip
        return self.likelihood

    def _draw_probs(self, what: str) -> Tensor:
        likelihood = self._need_likelihood()
        if not isinstance(likelihood, Categorical | Bernoulli):
            raise Unsupported(
                f"{what} is defined for classes", got=type(likelihood).__name__,
                remedy="Use mean, std, epistemic_std, aleatoric_std or quantile.",
            )  # fmt: skip
        return likelihood.moments(self.outputs).mean

    def _entropy(self, probs: Tensor) -> Tensor:
        if isinstance(self.likelihood, Categorical):
            return torch.special.entr(probs).sum(-1)
        return torch.special.entr(probs) + torch.special.entr(1 - probs)

"""The negative evidence lower bound, its two terms reported apart."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch, check_tensors
from bayesrule.likelihoods import Likelihood
from bayesrule.nn.annealing import Annealing, Constant
from bayesrule.nn.bayesian_module import BayesianModule, kl, need_bayesian, uncompiled


@dataclass(frozen=True)
class Loss:
    """One value of the objective, per example.

    Attributes:
        total: ``nll + temperature · kl_weight · kl / n_data``: what to minimise.
        nll: Mean negative log-likelihood of the batch.
        kl: The KL of the whole model, a sum over weights: neither annealed nor divided.
        kl_weight: The annealing weight in force.
        n_data: The size of the training set.
    """

    total: Tensor
    nll: Tensor
    kl: Tensor
    kl_weight: float | Tensor
    n_data: int

    def backward(self) -> None:
        """That of `total`."""
        self.total.backward()

    @property
    def negative_elbo(self) -> Tensor:
        """``nll + kl / n_data``: the bound itself, whatever the annealing and the temperature."""
        return self.nll + self.kl / self.n_data


class NegativeELBO:
    """``E_q[−log p(y | x, w)] + KL(q ‖ p) / N``, per example.

    Losses are means, KLs are sums, and the size of the data set stands here and nowhere else.

    Args:
        bnn: The model.
        n_data: N, the number of *training examples* (not of batches).
        likelihood: By default the model's own.
        annealing: The KL's weight as a function of the step.
        temperature: Multiplies the KL; below 1 it makes a "cold" posterior. Separate from annealing, since it stays.

    Example:
        >>> import torch, bayesrule as br
        >>> bnn = br.bayesianize(torch.nn.Linear(3, 1), br.Diagonal(), likelihood=br.Gaussian(0.1))
        >>> objective = NegativeELBO(bnn, n_data=100)
        >>> loss = objective(bnn(torch.randn(8, 3)), torch.randn(8, 1), step=0)
        >>> loss.total.backward()
    """

    def __init__(
        self,
        bnn: BayesianModule,
        n_data: int,
        likelihood: Likelihood | None = None,
        *,
        annealing: Annealing | None = None,
        temperature: float = 1.0,
    ) -> None:
        bnn = uncompiled(bnn)
        need_bayesian(bnn, "NegativeELBO")
        if not isinstance(n_data, int) or n_data < 1:
            raise InvalidArgument(
                "n_data is the number of training examples, a whole number", got=repr(n_data),
                remedy="Give len(train_dataset), not the number of batches.",
            )  # fmt: skip
        if not temperature > 0:
            raise InvalidArgument("The temperature must be positive", got=temperature)
        self.bnn, self.n_data, self.temperature = bnn, n_data, temperature
        self.annealing = annealing or Constant()
        self.likelihood = need_likelihood(bnn, likelihood)

    def __call__(self, outputs: Tensor, targets: Tensor, *, step: int | None = None) -> Loss:
        """The loss of a batch.

        Args:
            outputs: Of the model, examples first.
            targets: One for each example.
            step: Training steps done so far; needed by an annealing schedule.
        """
        return self.at_weight(outputs, targets, self.annealing(self._check_step(step)))

    def at_weight(self, outputs: Tensor, targets: Tensor, weight: float | Tensor) -> Loss:
        """The loss of a batch at a weight of the KL; a tensor can be changed between replays of a captured step."""
        _check_batch(outputs, targets)
        nll = self.likelihood.nll(outputs, targets)
        divergence = kl(self.bnn) + self.likelihood.kl()
        total = nll + self.temperature * weight / self.n_data * divergence
        return Loss(total, nll, divergence, weight, self.n_data)

    def _check_step(self, step: int | None) -> int:
        if step is None and not isinstance(self.annealing, Constant):
            raise InvalidArgument(
                f"{type(self.annealing).__name__} anneals the KL by the training step", got="no step",
                remedy="Call objective(outputs, targets, step=number_of_steps_done).",
            )  # fmt: skip
        if step is not None and step < 0:
            raise InvalidArgument("Training steps are counted from 0", got=step)
        return step or 0

    def __repr__(self) -> str:
        return f"NegativeELBO(n_data={self.n_data}, annealing={self.annealing}, temperature={self.temperature})"


def _check_batch(outputs: Tensor, targets: Tensor) -> None:
    """A model's outputs have no dimension of draws, so targets must match them example by example."""
    check_tensors({"outputs": outputs, "targets": targets}, "Of several that a network returns, pick one.")
    if targets.ndim not in (outputs.ndim - 1, outputs.ndim):
        raise ShapeMismatch(
            "Every row of outputs needs its own target",
            got=f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}",
        )


def need_likelihood(bnn: BayesianModule, likelihood: Likelihood | None) -> Likelihood:
    """The one given, or the model's."""
    found = likelihood if likelihood is not None else bnn.likelihood
    if found is None:
        raise InvalidArgument(
            "This needs a likelihood, and the model was converted without one", got=None,
            remedy="Pass likelihood=br.Categorical() (or Gaussian, Bernoulli, Poisson) here or to br.bayesianize.",
        )  # fmt: skip
    return found

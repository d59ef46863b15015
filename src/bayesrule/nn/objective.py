"""The negative evidence lower bound, its two terms reported apart."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.likelihoods import Likelihood
from bayesrule.nn.annealing import Annealing, Constant
from bayesrule.nn.bayesian_module import BayesianModule, kl


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
    kl_weight: float
    n_data: int

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
        if n_data < 1:
            raise InvalidArgument("n_data is the number of training examples", got=n_data)
        if not temperature > 0:
            raise InvalidArgument("The temperature must be positive", got=temperature)
        self.bnn, self.n_data, self.temperature = bnn, n_data, temperature
        self.annealing = annealing or Constant()
        self.likelihood = need_likelihood(bnn, likelihood)

    def __call__(self, outputs: Tensor, targets: Tensor, *, step: int = 0) -> Loss:
        """The loss of a batch at a training step."""
        nll = self.likelihood.nll(outputs, targets)
        divergence = kl(self.bnn) + self.likelihood.kl()
        weight = self.annealing(step)
        total = nll + self.temperature * weight / self.n_data * divergence
        return Loss(total, nll, divergence, weight, self.n_data)


def need_likelihood(bnn: BayesianModule, likelihood: Likelihood | None) -> Likelihood:
    """The one given, or the model's."""
    found = likelihood if likelihood is not None else bnn.likelihood
    if found is None:
        raise InvalidArgument(
            "This needs a likelihood, and the model was converted without one", got=None,
            remedy="Pass likelihood=br.Categorical() (or Gaussian, Bernoulli, Poisson) here or to br.bayesianize.",
        )  # fmt: skip
    return found

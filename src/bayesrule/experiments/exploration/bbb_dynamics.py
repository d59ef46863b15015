"""VIME's dynamics model: Bayes by backprop, a mean-field posterior."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from bayesrule.estimators import LocalReparam
from bayesrule.experiments.exploration.dynamics import DRAWS, PRIOR_STD, DynamicsModel
from bayesrule.likelihoods import Gaussian
from bayesrule.nn import NegativeELBO, bayesianize
from bayesrule.posteriors import Diagonal, Posterior
from bayesrule.priors import Normal

LEARNING_RATE = 1e-3


class BBBDynamics(DynamicsModel):
    """Trained by Adam on the negative ELBO, with noise of its own for every row; its stds start at the prior's."""

    def _build(self) -> None:
        self.bnn = bayesianize(self.net, Diagonal(init_std=PRIOR_STD), Normal(PRIOR_STD), LocalReparam())
        self.optimizer = torch.optim.Adam(self.bnn.parameters(), LEARNING_RATE)

    def _train(self, batches: Iterator[tuple[Tensor, Tensor]], n_data: int) -> None:
        objective = NegativeELBO(self.bnn, n_data, Gaussian(self.noise_std))
        for step, (x, y) in enumerate(batches):
            self.optimizer.zero_grad()
            objective(self.bnn(x.repeat(DRAWS, 1)), y.repeat(DRAWS, 1), step=step).backward()
            self.optimizer.step()

    def posteriors(self) -> Mapping[str, Posterior]:
        """Mean field."""
        return self.bnn.posteriors()

    def means(self) -> Mapping[str, Tensor]:
        """Of every weight."""
        return {name: part for q in self.posteriors().values() for name, part in q.split(q.mean).items()}

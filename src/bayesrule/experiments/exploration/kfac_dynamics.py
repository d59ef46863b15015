"""The dynamics model of noisy K-FAC: a matrix-normal posterior of each layer."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping

from torch import Tensor

from bayesrule.experiments.exploration.dynamics import DRAWS, PRIOR_STD, DynamicsModel
from bayesrule.likelihoods import Gaussian
from bayesrule.optim import NoisyKFAC
from bayesrule.posteriors import Posterior
from bayesrule.priors import Normal

LEARNING_RATE, BETA = 1e-2, 0.01
T_STATS, T_INV = 5, 25


class NoisyKFACDynamics(DynamicsModel):
    """Trained by noisy K-FAC, with a draw for every row; the replay's size and the noise are told to it every epoch."""

    def _build(self) -> None:
        self.optimizer = self._holder(1)

    def _holder(self, n_data: int) -> NoisyKFAC:
        return NoisyKFAC(
            self.net, n_data=n_data, lr=LEARNING_RATE, beta=BETA, damping="exact", noise="example",
            T_stats=T_STATS, T_inv=T_INV, prior=Normal(PRIOR_STD), likelihood=Gaussian(self.noise_std),
        )  # fmt: skip

    def _train(self, batches: Iterator[tuple[Tensor, Tensor]], n_data: int) -> None:
        before, self.optimizer = self.optimizer.state_dict(), self._holder(n_data)
        before["posterior"]["likelihood"] = dict(self.optimizer.likelihood.state_dict())  # type: ignore[union-attr]
        before["posterior"]["n_data"] = n_data
        self.optimizer.load_state_dict(before)
        for x, y in batches:
            with self.optimizer.sampled_params(), warnings.catch_warnings():
                # Ten rows ten times are no more examples than there are.
                warnings.filterwarnings("ignore", message="A batch has .* examples, and n_data")
                self.optimizer.nll(self.net(x.repeat(DRAWS, 1)), y.repeat(DRAWS, 1)).backward()
            self.optimizer.step()

    def posteriors(self) -> Mapping[str, Posterior]:
        """A matrix normal for each layer, its bias a further row."""
        return self.optimizer.posteriors()

    def means(self) -> Mapping[str, Tensor]:
        """Of every weight."""
        return {name: parameter.detach() for name, parameter in self.net.named_parameters()}

"""A trained network that is only evaluated, as `br.predict` takes it: what the models of this package share."""

from __future__ import annotations

from torch import nn

from bayesrule.contractions.batching import takes_batches
from bayesrule.likelihoods import Likelihood


class EvaluatedNetwork:
    """Never in training; draws are evaluated together where the network's layers take batches of weights well."""

    net: nn.Module
    likelihood: Likelihood

    @property
    def training(self) -> bool:
        """Never."""
        return False

    def train(self, mode: bool = True) -> EvaluatedNetwork:
        """Nothing to switch."""
        return self

    @property
    def batchable(self) -> bool:
        """Whether the network is free of convolutions and recurrent layers, which take batches of weights badly."""
        return takes_batches(self.net)

    def default_likelihood(self) -> Likelihood:
        """The one given."""
        return self.likelihood

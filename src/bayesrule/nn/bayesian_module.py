"""A network whose weights are drawn anew in every forward pass."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from bayesrule.likelihoods import Likelihood
from bayesrule.nn.conversion import Conversion
from bayesrule.nn.draw_table import DrawTable
from bayesrule.nn.home import Home, kl_of_homes
from bayesrule.nn.layer import BayesianLayer, make_plain
from bayesrule.posteriors import Posterior
from bayesrule.typing import Drawable


class BayesianModule(nn.Module):
    """What `bayesianize` returns. Its forward takes and gives what the network's does, at one draw of the weights.

    Attributes:
        module: The converted network.
        likelihood: The likelihood given at conversion, if any.
        conversion: The table of what became Bayesian.
    """

    module: nn.Module
    likelihood: Likelihood | None
    conversion: Conversion

    def __init__(
        self, module: nn.Module, draws: DrawTable, conversion: Conversion, likelihood: Likelihood | None
    ) -> None:
        super().__init__()
        self.module, self.likelihood, self.draws, self.conversion = module, likelihood, draws, conversion

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs at one draw."""
        with self.draws.root(seeded=True):
            return self.module(*args, **kwargs)

    def at_mean(self, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs at the posterior mean."""
        with self.draws.at_mean():
            return self(*args, **kwargs)

    def at(self, draws: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """The network's outputs at given weights: tensors by parameter name, each in its own layout."""
        with self.draws.given(draws):
            return self(*args, **kwargs)

    def homes(self) -> dict[str, Home]:
        """Every posterior's home, once, by the group's name."""
        return {module.name: module for module in self.modules() if isinstance(module, Home)}

    @property
    def batchable(self) -> bool:
        """Whether the network is free of convolutions and recurrent layers, which take batches of weights badly."""
        unfit = (_ConvNd, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
        return not any(isinstance(module, unfit) for module in self.modules())

    def posteriors(self) -> dict[str, Posterior]:
        """Posterior values; a group of one parameter has that parameter's name."""
        return {name: home() for name, home in self.homes().items()}


def kl(bnn: BayesianModule) -> Tensor:
    """``KL(q ‖ p)`` of the whole model: a sum over all its weights, each counted once."""
    return kl_of_homes(bnn.homes().values())


def posteriors(model: Drawable) -> dict[str, Posterior]:
    """The posterior values of a converted model, or of an optimizer that holds some.

    A group of one parameter has that parameter's name.
    """
    return model.posteriors()


def mean_module(bnn: BayesianModule) -> nn.Module:
    """A plain network at the posterior mean: the original classes, parameter names and layouts."""
    plain = copy.deepcopy(bnn.module)
    means: dict[str, nn.Parameter] = {}
    for module in list(plain.modules()):
        if isinstance(module, BayesianLayer):
            make_plain(module, means)
    return plain

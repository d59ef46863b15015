"""A network whose weights are drawn anew in every forward pass."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from bayesrule.contractions.batching import takes_batches
from bayesrule.errors import InvalidArgument, check_names, conversion_remedy, need_whole
from bayesrule.likelihoods import Likelihood
from bayesrule.nn.conversion import Conversion
from bayesrule.nn.draw_table import DrawTable
from bayesrule.nn.home import Home, kls_of_homes
from bayesrule.nn.layer import BayesianLayer, make_plain
from bayesrule.nn.recast import layers_of_groups, recast_table, settle
from bayesrule.nn.together import Together
from bayesrule.posteriors import Family, Posterior
from bayesrule.threads import turn_of
from bayesrule.typing import Drawable


class BayesianModule(nn.Module):
    """What `bayesianize` returns. Its forward takes and gives what the network's does, at one draw of the weights.

    Attributes:
        module: The converted network.
        likelihood: The likelihood given at conversion, if any.
        conversion: The table of what became Bayesian.
        compression: The table of what `br.compress` did, where the model comes from it.
    """

    module: nn.Module
    likelihood: Likelihood | None
    conversion: Conversion
    compression: Any = None

    def __init__(
        self, module: nn.Module, draws: DrawTable, conversion: Conversion, likelihood: Likelihood | None
    ) -> None:
        super().__init__()
        self.module, self.likelihood, self.draws, self.conversion = module, likelihood, draws, conversion
        self.training, self.together = module.training, Together()

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs at one draw."""
        draws = self.draws
        draws.begin(seeded=True)
        try:
            self.together.draw(self, draws)
            return self.module(*args, **kwargs)
        finally:
            draws.end()

    def at_mean(self, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs at the posterior mean."""
        with self.draws.at_mean():
            return self(*args, **kwargs)

    def at(self, draws: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """The network's outputs at given weights, by parameter name, each in its own layout; others are drawn."""
        parts = (part.name for home in self.homes().values() for part in home.posterior.parts)
        check_names(draws, dict.fromkeys(parts), "drawn parameter")
        with self.draws.given(draws):
            return self(*args, **kwargs)

    def plain(self) -> nn.Module:
        """A new plain network at the posterior mean."""
        with self._between_passes():
            plain = copy.deepcopy(self.module)
        means: dict[str, nn.Parameter] = {}
        for module in list(plain.modules()):
            if isinstance(module, BayesianLayer):
                make_plain(module, means)
        return plain

    def __deepcopy__(self, memo: dict[int, Any]) -> BayesianModule:
        copied = memo[id(self)] = type(self).__new__(type(self))
        with self._between_passes():
            state = copy.deepcopy(self.__dict__, memo)
        copied.__setstate__(state)
        return copied

    @contextmanager
    def _between_passes(self) -> Iterator[None]:
        """Other threads' predictions, which set modes for a while, and their passes wait, and are waited for."""
        with turn_of(self), self.draws.turn:
            yield

    def homes(self) -> dict[str, Home]:
        """Every posterior's home, once, by the group's name."""
        found: dict[str, Home] = {}
        _collect_homes(self, found)
        return found

    def default_likelihood(self) -> Likelihood | None:
        """The one given at conversion."""
        return self.likelihood

    @property
    def batchable(self) -> bool:
        """Whether the network is free of convolutions and recurrent layers, which take batches of weights badly."""
        return takes_batches(self)

    def posteriors(self) -> dict[str, Posterior]:
        """Posterior values; a group of one parameter has that parameter's name."""
        return {name: home() for name, home in self.homes().items()}

    def kls(self) -> dict[str, Tensor]:
        """The KL of every posterior, by the group's name."""
        return kls_of_homes(self.homes().values())

    def layers(self) -> dict[str, str]:
        """By group name, the converted layer that gave the group its family."""
        return layers_of_groups(self.module, self.conversion.recipe)

    def recast(
        self, families: Mapping[str, Family], parameters: Mapping[str, Mapping[str, Tensor]], notes: Mapping[str, str]
    ) -> BayesianModule:
        """A copy some of whose posteriors, around the same means, are of other families.

        Args:
            families: The new families, by layer.
            parameters: The family's unconstrained tensors besides the mean, by group; other groups stay.
            notes: What the conversion table is to say of each of these groups.
        """
        copied, layers = copy.deepcopy(self), self.layers()
        homes = copied.homes()
        for group, tensors in parameters.items():
            settle(homes[group], families[layers[group]], tensors)
        copied.conversion = recast_table(self.conversion, homes, families, notes)
        return copied


def _collect_homes(module: nn.Module, found: dict[str, Home]) -> None:
    """Those below a module, in order: a few times faster than `nn.Module.modules`, and asked for in every KL."""
    for child in module._modules.values():
        if isinstance(child, Home):
            found.setdefault(child.name, child)
        elif child is not None:
            _collect_homes(child, found)


OF_AN_OPTIMIZER = {
    "br.kl": "Use opt.kl().",
    "br.save": "Keep opt.state_dict() and the network's state_dict(), by torch.save.",
    "br.mean_module": "Use the network itself: outside of sampled_params its weights are the posterior mean.",
    "NegativeELBO": "Minimise opt.nll(net(x), y) inside opt.sampled_params(): opt.step() adds the KL's part.",
}
"""What to do instead with an optimizer, which holds its posterior itself; a conversion would start from none."""


def uncompiled(model: Any) -> Any:
    """The model that `torch.compile` was given, or the model itself."""
    return model._modules.get("_orig_mod", model) if isinstance(model, nn.Module) else model


def need_bayesian(model: object, verb: str) -> None:
    """Refuse a network that was not converted."""
    if isinstance(model, Optimizer) and isinstance(model, Drawable):
        raise InvalidArgument(
            f"{verb} takes a converted model, not an optimizer that holds a posterior",
            got=type(model).__name__, remedy=OF_AN_OPTIMIZER.get(verb, "Give a model from br.bayesianize."),
        )  # fmt: skip
    if not isinstance(model, BayesianModule):
        raise InvalidArgument(
            f"{verb} takes a converted model",
            got=type(model).__name__,
            remedy=conversion_remedy(model, BayesianModule),
        )


def kl(bnn: BayesianModule) -> Tensor:
    """``KL(q ‖ p)`` of the whole model: a sum over all its weights, each counted once."""
    bnn = uncompiled(bnn)
    need_bayesian(bnn, "br.kl")
    return bnn.together.kl(list(bnn.homes().values()))


def posteriors(model: Drawable) -> dict[str, Posterior]:
    """The posterior values of a converted model, or of an optimizer that holds some.

    A group of one parameter has that parameter's name.
    """
    if not isinstance(uncompiled(model), Drawable):
        remedy = conversion_remedy(model, Drawable)
        raise InvalidArgument("br.posteriors takes a converted model", got=type(model).__name__, remedy=remedy)
    return model.posteriors()


def mean_module(bnn: BayesianModule) -> nn.Module:
    """A plain network at the posterior mean: the original classes, parameter names and layouts; in evaluation mode."""
    bnn = uncompiled(bnn)
    need_bayesian(bnn, "br.mean_module")
    need_whole(bnn, "br.mean_module")
    return bnn.plain().eval()

"""Where a converted model keeps a posterior and its prior."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bayesrule.kernels import Bias, LinkedKL, sum_linked
from bayesrule.posteriors import Family, Part, Posterior, Variational
from bayesrule.posteriors.variational import at_least_single, in_half
from bayesrule.priors import Prior, kl_divergence


class Home(nn.Module):
    """A trainable posterior beside the prior it is compared with.

    A prior's own tensors are kept here too: those to be learned as parameters, constants as buffers.

    Attributes:
        name: The group's name.
    """

    name: str

    def __init__(
        self,
        family: Family,
        prior: Prior,
        mean: Tensor,
        parts: tuple[Part, ...],
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.posterior = Variational(family, mean, parts, generator=generator)
        self.name = self.posterior.name
        self.prior = prior
        self.hyperparameters = nn.Module()
        with torch.no_grad():
            tensors = prior.hyperparameters(self.at_least_single())
        for key, value in tensors.items():
            if isinstance(value, nn.Parameter):
                self.hyperparameters.register_parameter(key, value)
            else:
                self.hyperparameters.register_buffer(key, value)
        if in_half(mean):
            self.hyperparameters.to(mean.dtype)

    @property
    def mean(self) -> Tensor:
        """The trainable mean: in its parameter's own layout, or that of the group's event."""
        return cast(Tensor, self.posterior.mean)

    def forward(self) -> Posterior:
        """The posterior value."""
        return self.posterior()

    def at_least_single(self) -> Posterior:
        """The posterior value that a KL is found of, of parameters in half precision too."""
        return self.posterior.at_least_single()

    def linked_kl(self) -> LinkedKL | None:
        """The KL to a prior that is given by numbers, where its gradient can meet that of a layer."""
        numbers, stored = self.prior.numbers(), self.posterior.stored()
        if numbers is None or stored is None:
            return None
        with full_precision(self):
            return self.posterior.family.linked_divergence(stored, *numbers)

    def as_bias(self) -> Bias | None:
        """A vector's parameters for code that draws it with a layer's output, if its family has such."""
        return self.posterior.family.as_bias(self.posterior.for_layer())

    def prior_tensors(self) -> dict[str, Tensor]:
        """What `Prior.given` takes besides the posterior."""
        if not (self.hyperparameters._parameters or self.hyperparameters._buffers):
            return {}
        learned: dict[str, Tensor] = dict(self.hyperparameters.named_parameters())
        if self.posterior.gather is not None:
            learned = {name: self.posterior.gather(tensor) for name, tensor in learned.items()}
        return {**learned, **dict(self.hyperparameters.named_buffers())}


class HomeFacts:
    """What was looked up in homes, to be looked up again where it has changed. Asked in every step, and so all in C."""

    def __init__(self, homes: Iterable[Home]) -> None:
        self.homes = list(homes)
        self._modules = [home._modules for home in self.homes]
        self._posteriors = list(map(_posterior, self._modules))
        self._families, self._priors = list(map(_family, self._posteriors)), list(map(_prior, self.homes))
        self._held = [posterior._parameters for posterior in self._posteriors]
        self._parameters = list(chain.from_iterable(map(dict.values, self._held)))

    @property
    def of_leaves(self) -> bool:
        """Whether no parameter was computed from others."""
        return all(tensor is None or tensor.is_leaf for tensor in self._parameters)

    def hold(self) -> bool:
        """Whether priors, families and parameters are the same."""
        return (
            all(map(is_, map(_posterior, self._modules), self._posteriors))
            and all(map(is_, map(_family, self._posteriors), self._families))
            and all(map(is_, map(_prior, self.homes), self._priors))
            and sum(map(len, self._held)) == len(self._parameters)
            and all(map(is_, chain.from_iterable(map(dict.values, self._held)), self._parameters))
        )


_posterior, _family, _prior = itemgetter("posterior"), attrgetter("family"), attrgetter("prior")


def kls_of_homes(
    homes: Iterable[Home],
    posterior: Callable[[Home], Posterior] = Home.at_least_single,
    prior_tensors: Callable[[Home], dict[str, Tensor]] = Home.prior_tensors,
) -> dict[str, Tensor]:
    """The KL of each, a sum over its weights, in single precision at least.

    Homes whose priors share scales are settled together.

    Args:
        homes: Where the posteriors are kept.
        posterior: The posterior of a home: by default its own.
        prior_tensors: What its prior takes besides: by default what the home keeps.
    """
    by_prior: dict[object, list[Home]] = {}
    for home in homes:
        by_prior.setdefault(home.prior.sharing or home.name, []).append(home)
    kls: dict[str, Tensor] = {}
    for sharing in by_prior.values():

        def settled(sharing: list[Home] = sharing) -> dict[str, Tensor]:
            with full_precision(sharing[0]):
                found = {home.name: posterior(home) for home in sharing}
                shared = sharing[0].prior.share(found.values())
                given = {
                    home.name: {name: at_least_single(tensor) for name, tensor in prior_tensors(home).items()}
                    for home in sharing
                }
                return {name: kl_divergence(found[name], shared, given[name]) for name in found}

        # A posterior that is gathered from several processes would stay whole until its gradient is taken.
        gathered = any(home.posterior.gather is not None for home in sharing) and torch.is_grad_enabled()
        kls |= checkpoint(settled, use_reentrant=False, preserve_rng_state=False) if gathered else settled()
    return kls


def kl_of_homes(homes: Iterable[Home]) -> Tensor:
    """The KL of all of them together: one node for those whose gradients meet a layer's."""
    linked: dict[tuple[torch.device, torch.dtype], list[LinkedKL]] = {}
    others: list[Home] = []
    for home in homes:
        kl = home.linked_kl()
        if kl is None:
            others.append(home)
        else:
            linked.setdefault((kl.inputs[0].device, kl.inputs[0].dtype), []).append(kl)
    kls = [*(sum_linked(some) for some in linked.values()), *kls_of_homes(others).values()]
    return kls[0] if len(kls) == 1 else torch.stack([kl.to(kls[0].device) for kl in kls]).sum(0)


def full_precision(home: Home) -> AbstractContextManager[Any]:
    """Autocast off: small variances would vanish in half-precision products, and their sums overflow."""
    if torch.compiler.is_compiling() or torch._C._is_any_autocast_enabled():
        return torch.autocast(home.mean.device.type, enabled=False)
    return nullcontext()  # to enter and leave autocast costs more than a short vector's KL

"""Several alike multilayer perceptrons as one batched network: a leading dimension counts the members."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bayesrule.contractions import Contraction
from bayesrule.estimators import Flipout, LocalReparam, Mean
from bayesrule.nn import BayesianModule
from bayesrule.nn.home import Home, kls_of_homes
from bayesrule.nn.layer import BayesianLayer
from bayesrule.posteriors import Posterior
from bayesrule.random import NoiseSource


class StackedMembers:
    """The trainable numbers of alike converted `nn.Sequential` networks, stacked, and their joint forward pass.

    Posteriors take leading batch dimensions, so every layer is one batched product, and the members share nothing:
    the gradient of a sum of their losses is each one's own.
    """

    def __init__(self, members: Sequence[BayesianModule]) -> None:
        self.members = members
        self.template = members[0]
        states = [dict(member.named_parameters()) for member in members]
        self.parameters = {
            name: torch.stack([state[name].detach() for state in states]).requires_grad_() for name in states[0]
        }
        constants = [dict(member.named_buffers()) for member in members]
        self._constants = {name: torch.stack([state[name] for state in constants]) for name in constants[0]}
        self._prefixes = {module: name for name, module in self.template.named_modules()}

    def __len__(self) -> int:
        return len(self.members)

    def outputs(self, x: Tensor, noise: NoiseSource | None) -> Tensor:
        """(members, examples, outputs) of (members, examples, features); without noise at the posterior mean."""
        for layer in self._sequence():
            x = self._layer(layer, x, noise) if isinstance(layer, BayesianLayer) else layer(x)
        return x

    def kl(self) -> Tensor:
        """Each member's KL, a sum over its weights."""
        homes = self.template.homes().values()
        return torch.stack(list(kls_of_homes(homes, self._posterior, self._prior_tensors).values())).sum(0)

    def write_back(self, parameters: Mapping[str, Tensor]) -> None:
        """Give every member its slice of stacked numbers."""
        for number, member in enumerate(self.members):
            member.load_state_dict({name: value[number] for name, value in parameters.items()}, strict=False)

    def _sequence(self) -> nn.Sequential:
        return self.template.module  # type: ignore[return-value]

    def first_broken(self, x: Tensor) -> str:
        """The parameter, or else the layer's output at the posterior mean, that is not finite first."""
        for name, value in self.parameters.items():
            if not bool(torch.isfinite(value).all()):
                return f"parameter {name}"
        if not bool(torch.isfinite(x).all()):
            return "the inputs"
        for number, layer in enumerate(self._sequence()):
            x = self._layer(layer, x, None) if isinstance(layer, BayesianLayer) else layer(x)
            if not bool(torch.isfinite(x).all()):
                return f"the output of layer {number} ({layer._get_name()})"
        return "the loss itself"

    def _posterior(self, home: Home) -> Posterior:
        return home.posterior.at(self._own(home, "posterior", self.parameters))

    def _prior_tensors(self, home: Home) -> dict[str, Tensor]:
        return self._own(home, "hyperparameters", {**self.parameters, **self._constants})

    def _own(self, home: Home, part: str, stacked: Mapping[str, Tensor]) -> dict[str, Tensor]:
        prefix = f"{self._prefixes[home]}.{part}."
        return {name[len(prefix) :]: value for name, value in stacked.items() if name.startswith(prefix)}

    def _layer(self, layer: BayesianLayer, x: Tensor, noise: NoiseSource | None) -> Tensor:
        contraction = layer.contraction
        weight, bias = (self._posterior(layer._home(name)) for name in ("weight", "bias"))
        if contraction is None or noise is None or isinstance(layer.estimator, Mean):
            return x @ weight.mean + bias.mean.unsqueeze(-2)
        estimator = layer.estimator.choose(weight, contraction, x[0])  # by the cost of one member
        if isinstance(estimator, LocalReparam):
            return self._local(contraction, weight, bias, x, noise)
        shift = _drawn(bias, noise).unsqueeze(-2)
        if isinstance(estimator, Flipout):
            return _flipped(weight, x, noise) + shift
        return estimator.output(weight, contraction, x, noise) + shift

    def _local(
        self, contraction: Contraction, weight: Posterior, bias: Posterior, x: Tensor, noise: NoiseSource
    ) -> Tensor:
        """Local noise for every row; independent weights and biases need only one normal together."""
        output = x @ weight.mean + bias.mean.unsqueeze(-2)
        variance = bias.variance.unsqueeze(-2)
        for term in weight.project(contraction, x):
            if term.mix is None:
                variance = variance + term.scale.square()
            else:
                output = output + term.apply(
                    noise(term.noise_shape(output, contraction), "normal", output), contraction
                )
        return output + variance.sqrt() * noise(tuple(output.shape), "normal", output)


def _flipped(weight: Posterior, x: Tensor, noise: NoiseSource) -> Tensor:
    """`Flipout`, whose examples are the rows of every member and not the members."""
    output = x @ weight.mean
    flipped = x * noise(tuple(x.shape), "sign", x)
    return output + flipped @ (_drawn(weight, noise) - weight.mean) * noise(tuple(output.shape), "sign", output)


def _drawn(posterior: Posterior, noise: NoiseSource) -> Tensor:
    return posterior.from_noise(noise(tuple(posterior.noise_shape), posterior.noise_law, posterior.mean))

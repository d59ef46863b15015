"""Several alike multilayer perceptrons as one batched network: a leading dimension counts the members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from bayesrule.contractions import Contraction
from bayesrule.estimators import Flipout, LocalReparam, Mean
from bayesrule.nn import BayesianModule
from bayesrule.nn.home import Home, kls_of_homes
from bayesrule.nn.layer import BayesianLayer
from bayesrule.posteriors import GaussianPosterior, Posterior
from bayesrule.posteriors.independent import IndependentCovariance
from bayesrule.random import NoiseSource

Posteriors = Mapping[Home, Posterior]


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
        prefixes = {module: name for name, module in self.template.named_modules()}
        self._homes = tuple(self.template.homes().values())
        self._posterior_names = {home: _names(prefixes[home], "posterior", self.parameters) for home in self._homes}
        self._prior_names = {
            home: _names(prefixes[home], "hyperparameters", {**self.parameters, **self._constants})
            for home in self._homes
        }

    def __len__(self) -> int:
        return len(self.members)

    def posteriors(self) -> Posteriors:
        """The members' posteriors at the present parameters; what a step needs of them is computed once."""
        return {
            home: home.posterior.at({short: self.parameters[name] for short, name in names.items()})
            for home, names in self._posterior_names.items()
        }

    def outputs(self, x: Tensor, noise: NoiseSource | None, posteriors: Posteriors | None = None) -> Tensor:
        """(members, examples, outputs) of (members, examples, features); without noise at the posterior mean."""
        posteriors = self.posteriors() if posteriors is None else posteriors
        for layer in self._sequence():
            x = self._layer(layer, x, noise, posteriors) if isinstance(layer, BayesianLayer) else layer(x)
        return x

    def kl(self, posteriors: Posteriors | None = None) -> Tensor:
        """Each member's KL, a sum over its weights."""
        posteriors = self.posteriors() if posteriors is None else posteriors
        kls = kls_of_homes(self._homes, posteriors.__getitem__, self._prior_tensors)
        return torch.stack(list(kls.values())).sum(0)

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
        posteriors = self.posteriors()
        for number, layer in enumerate(self._sequence()):
            x = self._layer(layer, x, None, posteriors) if isinstance(layer, BayesianLayer) else layer(x)
            if not bool(torch.isfinite(x).all()):
                return f"the output of layer {number} ({layer._get_name()})"
        return "the loss itself"

    def _prior_tensors(self, home: Home) -> dict[str, Tensor]:
        stacked = {**self.parameters, **self._constants}
        return {short: stacked[name] for short, name in self._prior_names[home].items()}

    def _layer(self, layer: BayesianLayer, x: Tensor, noise: NoiseSource | None, posteriors: Posteriors) -> Tensor:
        contraction = layer.contraction
        weight, bias = (posteriors[layer._home(name)] for name in ("weight", "bias"))
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
        output = torch.baddbmm(bias.mean.unsqueeze(-2), x, weight.mean)
        variance = bias.variance.unsqueeze(-2)
        if isinstance(weight, GaussianPosterior) and isinstance(weight.covariance, IndependentCovariance):
            variance = variance + weight.covariance.output_variance(contraction, x)
        else:
            for term in weight.project(contraction, x):
                drawn = noise(term.noise_shape(output, contraction), "normal", output)
                output = output + term.apply(drawn, contraction)
        return output + variance.sqrt() * noise(tuple(output.shape), "normal", output)


def _names(prefix: str, part: str, stacked: Iterable[str]) -> dict[str, str]:
    """The names of a home's tensors, by what the home calls them."""
    start = f"{prefix}.{part}."
    return {name[len(start) :]: name for name in stacked if name.startswith(start)}


def _flipped(weight: Posterior, x: Tensor, noise: NoiseSource) -> Tensor:
    """`Flipout`, whose examples are the rows of every member and not the members."""
    output = x @ weight.mean
    flipped = x * noise(tuple(x.shape), "sign", x)
    return output + flipped @ (_drawn(weight, noise) - weight.mean) * noise(tuple(output.shape), "sign", output)


def _drawn(posterior: Posterior, noise: NoiseSource) -> Tensor:
    return posterior.from_noise(posterior.noise_from(noise))

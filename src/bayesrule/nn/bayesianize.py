"""Any PyTorch network, made Bayesian."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from bayesrule.errors import InvalidArgument
from bayesrule.estimators import Auto, Estimator
from bayesrule.likelihoods import Likelihood
from bayesrule.nn.bayesian_module import BayesianModule
from bayesrule.nn.converter import Bias, Converter
from bayesrule.nn.layer import BayesianLayer
from bayesrule.nn.layouts import refuse_lazy
from bayesrule.nn.selection import PerLayer, Selector
from bayesrule.nn.self_check import check_random
from bayesrule.posteriors import Family, KTied
from bayesrule.priors import Normal, Prior


def bayesianize(
    net: nn.Module,
    posterior: PerLayer[Family] | None = None,
    prior: PerLayer[Prior] | None = None,
    estimator: PerLayer[Estimator] | None = None,
    likelihood: Likelihood | None = None,
    *,
    layers: Selector | Iterable[Selector] = "all",
    bias: Bias = "diagonal",
    example: Any = None,
    generator: torch.Generator | None = None,
) -> BayesianModule:
    """A Bayesian copy of a network, its posterior means at the network's weights; the network is left as it is.

    Args:
        net: Any module. Its Linear, ConvNd, ConvTransposeNd, Embedding, recurrent and attention layers can be
            converted; norm layers and everything else stay point estimates, as ``bnn.conversion`` shows.
        posterior: The family of the weights, `KTied(2)` by default; or one for each of several selectors, for example
            ``{nn.Conv2d: br.Diagonal(), "*": br.KTied(2)}``, where the first that takes a layer counts.
        prior: Likewise, ``Normal(1.0)`` by default. ``Normal(std, mean="pretrained")`` is centred on the weights.
        estimator: Likewise, `Auto` by default. Weights used more than once in a pass are sampled whatever it says.
        likelihood: Kept with the model, for the objective and for prediction.
        layers: Which layers: ``"all"``, ``"last_layer"``, ``"attention"``, shell patterns on their names, module types,
            predicates of (name, module), or several of these.
        bias: Biases get free standard deviations (``"diagonal"``), stay point estimates (``"point"``), or become one
            further row of the weight's posterior (``"augment"``).
        example: An input (or a tuple of positional inputs). With it the conversion ends with a check that outputs are
            random in train, in eval and under no_grad, and networks whose path depends on their input are followed.
        generator: Where the initial noise comes from.

    Example:
        >>> bnn = bayesianize(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), KTied(2), Normal(0.2))
        >>> bnn(torch.randn(5, 4)).shape
        torch.Size([5, 3])
        >>> [row.numbers for row in bnn.conversion]
        [56, 16, 46, 6]
    """
    _check(net)
    for kind, option, wanted in (
        ("posterior", posterior, Family),
        ("prior", prior, Prior),
        ("estimator", estimator, Estimator),
    ):
        _check_kind(kind, option, wanted)
    _check_kind("likelihood", likelihood, Likelihood)
    options = (posterior or KTied(2), prior or Normal(1.0), estimator or Auto())
    converter = Converter(copy.deepcopy(net), *options, bias, generator)
    draws, conversion = converter.convert(layers, example)
    bnn = BayesianModule(converter.net, draws, conversion, likelihood)
    check_random(bnn, example)
    return bnn


_EXAMPLES = {
    "posterior": "br.KTied(2)", "prior": "br.Normal(1.0)", "estimator": "br.Auto()", "likelihood": "br.Categorical()",
}  # fmt: skip


def _check_kind(kind: str, option: Any, wanted: type) -> None:
    """Refuse a class where an instance is meant, and one kind of recipe where another is."""
    for value in option.values() if isinstance(option, Mapping) else [option]:
        if value is not None and not isinstance(value, wanted):
            raise InvalidArgument(
                f"The {kind} must be an instance such as {_EXAMPLES[kind]}",
                got=f"the class {value.__name__}" if isinstance(value, type) else repr(value),
                remedy="Keep the order posterior, prior, estimator, likelihood, or name the arguments.",
            )


def _check(net: nn.Module) -> None:
    if not isinstance(net, nn.Module):
        raise InvalidArgument("Only a torch.nn.Module can be made Bayesian", got=type(net).__name__)
    if any(isinstance(module, BayesianModule | BayesianLayer) for module in net.modules()):
        raise InvalidArgument(
            "The network is Bayesian already", got=type(net).__name__,
            remedy="Convert the plain network; br.mean_module gives one back.",
        )  # fmt: skip
    refuse_lazy(net)
    for name, parameter in net.named_parameters():
        if parameter.is_meta:
            raise InvalidArgument(
                "Posterior means start at the network's weights, of which there are none",
                got=f"{name} on the meta device",
                remedy='Use net.to_empty(device="cpu"), then net.load_state_dict, and convert what that gives.',
            )
        finite = torch.isfinite(parameter)
        if not bool(finite.all()):
            raise InvalidArgument(
                f"The weights of {name} are not finite",
                got=f"{int((~finite).sum())} of {parameter.numel()} entries NaN or infinite",
                remedy="Load sound weights, or convert the network before it diverges.",
            )

"""A module some of whose parameters are drawn: the same class, one dynamic subclass deeper."""

from __future__ import annotations

import warnings
from typing import Any, cast

import torch
from torch import Tensor, nn

from bayesrule.contractions import Contraction
from bayesrule.cuda_graphs import to_be_recorded
from bayesrule.estimators import Estimator, Mean, WeightSample
from bayesrule.kernels import BiasLaw
from bayesrule.nn.draw_table import DrawTable
from bayesrule.nn.home import Home
from bayesrule.posteriors import Posterior


class BayesianLayer(nn.Module):
    """Mixed into the class of a converted module; its Bayesian parameters become properties that give the draw.

    So whoever reads ``module.weight`` during a forward pass gets this pass's draw: the module's own forward (weight
    sampling), a parent that never calls its child (`nn.MultiheadAttention` reads ``out_proj.weight``), a fused fast
    path, or a function the weight is handed to. Layers with a contraction may use another estimator instead.
    """

    homes: nn.ModuleDict
    draws: DrawTable
    estimator: Estimator
    contraction: Contraction | None
    qualified: dict[str, str]
    """From a parameter's name in this module to its name in the whole model."""
    order: tuple[str, ...]
    """The names of the module's parameters, drawn or not, as they were registered."""
    last_choice: tuple[tuple[Any, ...], Estimator] | None
    """In which circumstances an estimator chose another one, the last time, and which."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """One root call if none is under way; a draw of the output."""
        draws = self.draws
        draws.begin()
        try:
            return self._in_pass(*args, **kwargs)
        finally:
            draws.end()

    def _in_pass(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.estimator, Mean):
            with self.draws.at_mean():
                return self._own_forward(*args, **kwargs)
        estimator = self._estimator_for(args, kwargs)
        if estimator is None or self.contraction is None:
            return self._own_forward(*args, **kwargs)
        if isinstance(estimator, WeightSample) and not self.contraction.picks_rows:
            return self._own_forward(*args)
        home = self._home("weight")
        if not self.draws.claim(home):
            return self._own_forward(*args)
        return self._estimate(estimator, home(), self.contraction, *args)

    def _own_forward(self, *args: Any, **kwargs: Any) -> Any:
        """The plain module's forward, at this pass's weights."""
        output = super().forward(*args, **kwargs)
        if self.contraction is not None and self.contraction.picks_rows:
            x = args[0] if args else kwargs["input"]
            output = self.contraction.settle(x, output, self._home("weight")().mean)
        return output

    def _estimator_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Estimator | None:
        """The estimator of this call; None where the module's own forward is to run."""
        if self.contraction is None or not self.draws.random or len(args) != 1 or kwargs:
            return None
        home = self._home("weight")
        return None if home.name in self.draws.shared else self._chosen(home, args[0], self.contraction)

    def _chosen(self, home: Home, x: Tensor, contraction: Contraction) -> Estimator:
        """The one for this input; what was chosen for the last one is remembered, for one of the same shape."""
        if not self.estimator.chooses:
            return self.estimator
        if torch.compiler.is_compiling():
            return self.estimator.choose(home(), contraction, x)
        circumstances = self.estimator, home.posterior.family, x.shape, x.device, to_be_recorded()
        if self.last_choice is None or self.last_choice[0] != circumstances:
            with torch.no_grad():  # a checkpointed region must save as much where the choice is known
                self.last_choice = circumstances, self.estimator.choose(home(), contraction, x)
        return self.last_choice[1]

    def extra_repr(self) -> str:
        """As the plain module's; to print a model draws nothing."""
        with self.draws.at_mean():
            return super().extra_repr()

    def _estimate(self, estimator: Estimator, posterior: Posterior, contraction: Contraction, x: Tensor) -> Tensor:
        output = self._estimate_with_bias(estimator, posterior, contraction, x)
        if output is not None:
            return output
        output = estimator(posterior, contraction, x, self.draws.noise)
        if len(self._home("weight").posterior.parts) > 1:  # the bias is a row of the weight
            return output
        bias = self._bias()
        if bias is None:
            return output
        # In the output's precision: of a float32 bias every later activation would be float32, under autocast too.
        return output + bias.to(output.dtype).reshape(-1, *(1,) * (-1 - contraction.channel_dim))

    def _estimate_with_bias(
        self, estimator: Estimator, posterior: Posterior, contraction: Contraction, x: Tensor
    ) -> Tensor | None:
        """The output with its bias, where there is code that makes both at once."""
        law = self._bias_law()
        if len(posterior.parts) > 1 or law is None:
            return None
        output = estimator.fused_output(posterior, contraction, x, self.draws.noise, law)
        if output is not None and "bias" in self.qualified:
            self.draws.claim(self._home("bias"))
        return output

    def _bias_law(self) -> BiasLaw | None:
        """What finds the bias for code that makes it with the output; None where there is none, or it is drawn."""
        home = self._home("bias") if "bias" in self.qualified else None
        plain = self._parameters.get("bias")
        if plain is None if home is None else not self.draws.unused(home):
            return None
        return lambda: (cast(Tensor, plain), None) if home is None else home.as_bias()

    def _bias(self) -> Tensor | None:
        if "bias" in self.qualified:  # not by `getattr`: compiled code would guard on the draw it gives
            return self.draws.tensor(self._home("bias"), self.qualified["bias"])
        return self._parameters.get("bias")

    def _home(self, name: str) -> Home:
        return cast(Home, self._modules["homes"]._modules[name])  # type: ignore[union-attr]  # three times as fast

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle by the plain class, since a dynamic one has no importable name."""
        return _rebuild, (self._plain_class, tuple(self.qualified)), self.__getstate__()

    _plain_class: type[nn.Module]


class BayesianRecurrentLayer(BayesianLayer):
    """Recurrent modules cache their weights between calls; a draw must not outlive its pass."""

    _flat_weights: list[Tensor]
    _flat_weights_names: list[str]
    _flat_weight_refs: list[Any]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """As every layer, without cuDNN's advice to keep the weights in one chunk, and forgetting them at the end."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
            try:
                return super().forward(*args, **kwargs)
            finally:
                self._flat_weights = []

    def flatten_parameters(self) -> None:
        """Nothing to flatten: the weights are new in every pass."""

    def _update_flat_weights(self) -> None:
        # cuDNN reads them as they lie in memory; a draw in the matrix view lies transposed.
        self._flat_weights = [getattr(self, name).contiguous() for name in self._flat_weights_names]

    def _init_flat_weights(self) -> None:
        self._flat_weights, self._flat_weight_refs = [], []

    def __getstate__(self) -> dict[str, Any]:
        kept = {key: value for key, value in self.__dict__.items() if key != "_flat_weight_refs"}
        return {**kept, "_flat_weights": []}


_classes: dict[tuple[type[nn.Module], tuple[str, ...]], type[nn.Module]] = {}


def _bayesian_class(base: type[nn.Module], names: tuple[str, ...]) -> type[nn.Module]:
    """One class for each plain class and set of drawn parameters."""
    if (base, names) not in _classes:
        layer = BayesianRecurrentLayer if issubclass(base, nn.RNNBase) else BayesianLayer
        namespace = {**{name: _drawn(name) for name in names}, "_plain_class": base}
        _classes[base, names] = type(f"Bayesian{base.__name__}", (layer, base), namespace)
    return _classes[base, names]


def _drawn(name: str) -> property:
    def read(layer: BayesianLayer) -> Tensor:
        return layer.draws.tensor(layer._home(name), layer.qualified[name])

    return property(read)


def _rebuild(base: type[nn.Module], names: tuple[str, ...]) -> nn.Module:
    cls = _bayesian_class(base, names)
    return cls.__new__(cls)


def make_bayesian(
    module: nn.Module,
    homes: dict[str, Home],
    qualified: dict[str, str],
    draws: DrawTable,
    estimator: Estimator,
    contraction: Contraction | None,
) -> None:
    """Turn a module's parameters into draws from their homes. Changes the module: callers own it.

    Args:
        module: The module.
        homes: The home of each parameter, by its name in the module.
        qualified: Each of these parameters' name in the whole model.
        draws: The model's draw table.
        estimator: How noise enters, where the module has a contraction.
        contraction: The module as a contraction, if it is one.
    """
    order = tuple(module._parameters)
    for name in homes:
        del module._parameters[name]
    module.__class__ = _bayesian_class(type(module), tuple(homes))
    module.homes = nn.ModuleDict(homes)
    object.__setattr__(module, "draws", draws)
    settings = {"qualified": qualified, "estimator": estimator, "contraction": contraction, "order": order,
                "last_choice": None}  # fmt: skip
    for key, value in settings.items():
        setattr(module, key, value)
    if isinstance(module, BayesianRecurrentLayer):
        module._init_flat_weights()


def make_plain(module: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
    """The inverse of `make_bayesian`, at the posterior mean. Changes the module: callers own it.

    Args:
        module: The layer.
        parameters: Means already given to other layers, by their name in the model; tied layers share them.
    """
    layer = cast(BayesianLayer, module)
    for full in set(layer.qualified.values()) - set(parameters):
        name = next(name for name, other in layer.qualified.items() if other == full)
        home = layer._home(name)
        mean = home().split(home().mean)[full].detach().clone(memory_format=torch.contiguous_format)
        parameters[full] = nn.Parameter(mean, requires_grad=home.mean.requires_grad)
    order, means = layer.order, {name: parameters[full] for name, full in layer.qualified.items()}
    module.__class__ = layer._plain_class
    for attribute in ("homes", "draws", "qualified", "estimator", "contraction", "order", "last_choice"):
        delattr(module, attribute)
    for name, mean in means.items():
        module.register_parameter(name, mean)
    module._parameters = {name: module._parameters[name] for name in order}
    if isinstance(module, nn.RNNBase):
        module._init_flat_weights()

"""The work of a conversion: a home for every chosen parameter, then every owner of one reads from it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor, nn

from bayesrule.contractions import Augmented, Contraction
from bayesrule.errors import InvalidArgument
from bayesrule.estimators import Estimator, Flipout, LocalReparam, Mean, WeightSample
from bayesrule.estimators.flipout import refuse_correlated
from bayesrule.nn.conversion import Conversion, ConvertedParameter, Recipe, describe
from bayesrule.nn.draw_table import DrawTable
from bayesrule.nn.home import Home
from bayesrule.nn.layer import make_bayesian
from bayesrule.nn.layouts import contraction_of, convertible, has_own_forward, is_vector, reason_to_leave, view_of
from bayesrule.nn.selection import PerLayer, Selector, check_selectors, choose, select
from bayesrule.nn.uses import count_uses, inside_fused
from bayesrule.posteriors import ClippedLowRank, Diagonal, Family, KTied, Part, Point
from bayesrule.priors import Prior

Bias = Literal["diagonal", "point", "augment"]


class Converter:
    """Converts its own copy of a network, in place."""

    def __init__(
        self,
        net: nn.Module,
        posterior: PerLayer[Family],
        prior: PerLayer[Prior],
        estimator: PerLayer[Estimator],
        bias: Bias,
        generator: torch.Generator | None,
    ) -> None:
        if bias not in ("diagonal", "point", "augment"):
            raise InvalidArgument('bias must be "diagonal", "point" or "augment"', got=repr(bias))
        self.net, self.bias, self.generator = net, bias, generator
        self.posterior, self.prior, self.estimator = posterior, prior, estimator
        self.modules = dict(net.named_modules())
        self.candidates = {name: module for name, module in self.modules.items() if convertible(module)}
        self.owners: dict[Tensor, list[tuple[str, str]]] = defaultdict(list)
        for name, module in self.modules.items():
            for local, parameter in module._parameters.items():
                if parameter is not None:
                    self.owners[parameter].append((name, local))
        self.homes: dict[Tensor, Home] = {}
        self.notes: dict[Tensor, str] = {}

    def convert(self, layers: Selector | Iterable[Selector], example: Any) -> tuple[DrawTable, Conversion]:
        """Convert the chosen layers."""
        if not self.candidates:
            raise InvalidArgument(
                "The network has no layer that can be converted", got=type(self.net).__name__,
                remedy="It needs Linear, convolution, embedding, recurrent or attention layers.",
            )  # fmt: skip
        for option in (self.posterior, self.prior, self.estimator):
            check_selectors(option, self.candidates)
        uses = count_uses(self.net, example)
        chosen = select(self._in_order_of_use(uses), layers)
        for name in self.candidates:
            if name in chosen:
                self._make_homes(name)
        if not self.homes:
            raise InvalidArgument(
                "No weight became Bayesian", got=sorted(set(self.notes.values())) or "point estimates only",
                remedy="Choose a family other than Point, of a rank that fits at least one layer.",
            )  # fmt: skip
        estimators = self._estimators(uses)
        table = self._table(chosen, estimators)
        return self._install(estimators), table

    def _in_order_of_use(self, uses: dict[str, int] | None) -> dict[str, nn.Module]:
        """The candidates as a forward pass meets them; as registered where that is not known."""

        def position(name: str) -> int:
            inside = (
                number
                for number, used in enumerate(uses or ())
                if f"{name}.".startswith(f"{used}.") or used.startswith(f"{name}.")
            )
            return max(inside, default=-1)

        return {name: self.candidates[name] for name in sorted(self.candidates, key=position)}

    def _make_homes(self, name: str) -> None:
        module = self.candidates[name]
        family, prior = choose(self.posterior, name, self.candidates), choose(self.prior, name, self.candidates)
        parameters = {local: p for local, p in module._parameters.items() if p is not None and p not in self.homes}
        if isinstance(family, Point):
            return
        if self._can_augment(module, parameters):
            self._augmented_home(module, family, prior, parameters)
            return
        for local, parameter in parameters.items():
            if not is_vector(local, parameter):
                view = view_of(module, parameter)
                fitting, note = _fitting(family, min(view.fan_in, view.fan_out))
                self.notes[parameter] = note
                if fitting is not None:
                    self._home(fitting, prior, {parameter: Part(self._name(parameter), view)}, parameter)
            elif self.bias != "point":
                part = Part(self._name(parameter), tuple(parameter.shape))
                self._home(_for_vectors(family), prior, {parameter: part}, parameter)

    def _can_augment(self, module: nn.Module, parameters: dict[str, nn.Parameter]) -> bool:
        untied = all(len(self.owners[parameter]) == 1 for parameter in parameters.values())
        whole = contraction_of(module) is not None and {"weight", "bias"} <= set(parameters)
        return self.bias == "augment" and whole and untied

    def _augmented_home(
        self, module: nn.Module, family: Family, prior: Prior, parameters: dict[str, nn.Parameter]
    ) -> None:
        weight, bias = parameters["weight"], parameters["bias"]
        view = view_of(module, weight)
        event = torch.cat([view.matrix(weight), bias[None]], dim=0)
        fitting, note = _fitting(family, min(view.fan_in, view.fan_out))
        parts = {weight: Part(self._name(weight), view), bias: Part(self._name(bias), tuple(bias.shape))}
        self.notes[weight], self.notes[bias] = note, "a row of the weight's posterior"
        if fitting is not None:
            self._home(fitting, prior, parts, event)

    def _home(self, family: Family, prior: Prior, parts: dict[nn.Parameter, Part], mean: Tensor) -> None:
        home = Home(family, prior, mean, tuple(parts.values()), generator=self.generator)
        for parameter in parts:
            self.homes[parameter] = home
        if not any(parameter.requires_grad for parameter in parts):
            home.mean.requires_grad_(False)
            for parameter in parts:
                self._note(parameter, "its mean stays frozen")

    def _note(self, parameter: Tensor, note: str) -> None:
        self.notes[parameter] = _phrases(self.notes.get(parameter, ""), note)

    def _name(self, parameter: Tensor) -> str:
        return _join(*self.owners[parameter][0])

    def _estimators(self, uses: dict[str, int] | None) -> dict[str, tuple[Estimator, str]]:
        """For every module that owns a drawn parameter: its estimator, and why it is not the one asked for."""
        found = {}
        for name in sorted({name for parameter in self.homes for name, _ in self.owners[parameter]}):
            asked = choose(self.estimator, name, self.candidates) if name in self.candidates else WeightSample()
            why = "" if isinstance(asked, Mean) else self._why_sampled(name, asked, uses)
            found[name] = (WeightSample(), why) if why else (asked, "")
            if isinstance(asked, Flipout) and not why:
                self._refuse_flipout(self.modules[name])
        return found

    def _refuse_flipout(self, module: nn.Module) -> None:
        contraction, weight = contraction_of(module), module._parameters["weight"]
        if contraction is not None and weight is not None:
            refuse_correlated(self.homes[weight](), contraction)

    def _why_sampled(self, name: str, asked: Estimator, uses: dict[str, int] | None) -> str:
        module = self.modules[name]
        weight, contraction = module._parameters.get("weight"), contraction_of(module)
        if contraction is None:
            return "drawn as a tensor"
        if has_own_forward(module):
            return f"{type(module).__name__} has a forward of its own"
        if inside_fused(name, self.net):
            return "inside a fused module"
        if weight is None or weight not in self.homes:
            return "its weight is computed" if weight is None else "its weight is a point estimate"
        if len(self.owners[weight]) > 1:
            return f"tied with {_join(*self.owners[weight][1])}"
        if uses is None:
            return "uses per pass unknown: give an example input"
        times = uses.get(name, 0) + uses.get(_join(name, "weight"), 0)
        if times != 1:
            return "used more than once in a pass" if times else "not seen in a pass"
        if isinstance(asked, LocalReparam) and not self.homes[weight]().projects(contraction):
            return f"no local noise for {type(self.homes[weight].posterior.family).__name__} here"
        return ""

    def _install(self, estimators: dict[str, tuple[Estimator, str]]) -> DrawTable:
        draws = DrawTable()
        for name, (estimator, why) in estimators.items():
            module = self.modules[name]
            drawn = {local: p for local, p in module._parameters.items() if p is not None and p in self.homes}
            qualified = {local: self._name(p) for local, p in drawn.items()}
            homes = {local: self.homes[p] for local, p in drawn.items()}
            tied = {self.homes[p].name for p in drawn.values() if len(self.owners[p]) > 1}
            draws.shared |= {home.name for home in homes.values()} if why else tied
            contraction = self._contraction(module, homes.get("weight"))
            make_bayesian(module, homes, qualified, draws, estimator, contraction)
        return draws

    def _contraction(self, module: nn.Module, home: Home | None) -> Contraction | None:
        """What an estimator may use in place of the module's forward."""
        contraction = contraction_of(module)
        if home is None or contraction is None or has_own_forward(module):
            return None
        return Augmented(contraction) if len(home.posterior.parts) > 1 else contraction

    def _table(self, chosen: set[str], estimators: dict[str, tuple[Estimator, str]]) -> Conversion:
        rows = []
        for parameter, owners in self.owners.items():
            name, shape = self._name(parameter), tuple(parameter.shape)
            home = self.homes.get(parameter)
            if home is None:
                note = self.notes.get(parameter) or self._why_point(*owners[0], parameter, chosen)
                rows.append(ConvertedParameter(name, shape, "Point", "", "", parameter.numel(), note))
                continue
            estimator, why = estimators[owners[0][0]]
            numbers = sum(p.numel() for p in home.parameters()) if home.name == name else 0
            note = _phrases(self.notes.get(parameter, ""), why)
            columns = describe(home.posterior.family), describe(home.prior), type(estimator).__name__
            rows.append(ConvertedParameter(name, shape, *columns, numbers, note))
        return Conversion(tuple(rows), self._recipe(chosen))

    def _recipe(self, chosen: set[str]) -> Recipe:
        names = [name for name in self.candidates if name in chosen]
        return Recipe(
            posterior={name: choose(self.posterior, name, self.candidates) for name in names},
            prior={name: choose(self.prior, name, self.candidates) for name in names},
            estimator={name: choose(self.estimator, name, self.candidates) for name in names},
            bias=self.bias,
        )

    def _why_point(self, owner: str, local: str, parameter: Tensor, chosen: set[str]) -> str:
        if (reason := reason_to_leave(self.modules[owner])) is not None:
            return reason
        if owner not in chosen:
            return "not selected"
        return "bias" if is_vector(local, parameter) and self.bias == "point" else "Point was asked for"


def _join(*names: str) -> str:
    return ".".join(filter(None, names))


def _phrases(*phrases: str) -> str:
    return "; ".join(filter(None, phrases))


def _fitting(family: Family, largest_rank: int) -> tuple[Family | None, str]:
    """The family for a matrix of this rank: one of low rank that does not fit saves nothing, and becomes diagonal."""
    if isinstance(family, KTied | ClippedLowRank) and family.rank > largest_rank:
        diagonal = Diagonal(family.init_std, family.init_spread)
        return diagonal, f"rank {family.rank} does not fit a matrix of rank {largest_rank}"
    return family, ""


def _for_vectors(family: Family) -> Diagonal:
    """Free standard deviations for biases, starting where the weights' start."""
    return Diagonal(family.init_std, family.init_spread)

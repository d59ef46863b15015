"""The posteriors an optimizer holds: made from a network, drawn from, predicted with, saved and loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from bayesrule.contractions.batching import takes_batches
from bayesrule.curvature import Found, find_layers, state_dtype
from bayesrule.errors import InvalidArgument, Unsupported, check_names
from bayesrule.likelihoods import Likelihood
from bayesrule.optim import saved_state
from bayesrule.optim.arguments import check_laws, check_network, check_numbers, check_seed, warn_of_biases
from bayesrule.optim.buffers import buffered, counted
from bayesrule.optim.capture import Capture, recorder
from bayesrule.optim.divergence import divergence
from bayesrule.optim.group import Group, grouped
from bayesrule.optim.packing import pack
from bayesrule.optim.param_groups import PLAIN_PREFIX, check_placement, checked_groups, torch_groups
from bayesrule.optim.plain import PlainState
from bayesrule.optim.plan import planned
from bayesrule.optim.prior_terms import PriorTerms
from bayesrule.optim.rule import Rule
from bayesrule.posteriors import DiagonalCovariance, GaussianPosterior, Posterior
from bayesrule.priors import Prior


class PosteriorHolder(torch.optim.Optimizer):
    """Groups, their states, and what can be asked of them without training.

    A model as `br.predict` and `br.posteriors` take them. Means are the network's own parameters (for half precision,
    float32 copies kept here); states are float32 or better.
    """

    left_out: ClassVar[tuple[str, ...]] = ()
    """Options that make no sense for one optimizer."""

    def __init__(
        self,
        model: nn.Module,
        rule: Rule,
        *,
        n_data: int,
        lr: float,
        prior: Prior,
        likelihood: Likelihood | None,
        kl_weight: float,
        plain: Collection[str],
        plain_lr: float,
        param_groups: Sequence[Mapping[str, Any]],
        seed: int | None,
        capturable: bool = False,
    ) -> None:
        check_network(type(self), model)
        check_laws(prior, likelihood)
        check_numbers(n_data, lr, plain_lr, kl_weight)
        check_seed(seed)
        model = model._modules.get("_orig_mod") or model  # a compiled network's own modules are those to hook
        found = find_layers(model, plain, tapped=rule.taps, fused=rule.from_draws and not rule.taps)
        if not found.layers:
            raise InvalidArgument(
                "The network has no trainable nn.Linear or nn.Conv2d that could have a posterior",
                got=f"parameters {list(found.others)[:5]}",
                remedy="Give the plain network (not a converted one), with parameters that ask for gradients. IVON and "
                "KTiedVON take recurrent layers and attention too.",
            )
        warn_of_biases(type(self), PosteriorHolder, model, found.layers, plain)
        self.model, self.rule, self.likelihood = model, rule, likelihood
        self.n_data, self.kl_weight = n_data, kl_weight
        self.steps, self.skipped_steps = 0, 0
        self.groups = {group.name: group for group in grouped(found.layers, rule.joint)}
        self.trained = self._trained(found)
        self._saved: dict[str, Tensor] | None = None
        self._rules: dict[tuple[Any, ...], Rule] = {}
        self._rule_options = tuple(field.name for field in fields(rule))  # type: ignore[arg-type]
        self._flags: dict[nn.Module, bool] = {}
        told = [name for name in self._rule_options if name not in self.left_out]
        given = checked_groups(model, likelihood, param_groups, ("lr", *told))
        self._placement, chosen = torch_groups(self.trained, set(found.others), plain_lr, given)
        self._made = False
        super().__init__(chosen, {"lr": lr, **{name: getattr(rule, name) for name in self._rule_options}})
        self._made = True
        check_placement(self.groups.values(), self._placement)
        for group in self.groups.values():
            self.rule_of(group)  # which refuses options that make no sense
        half = (name for name, p in self.trained.items() if p.dtype != state_dtype(p.dtype))
        self._masters = {name: self.trained[name].detach().float() for name in half}
        starts = {name: self._flat_posterior(group) for name, group in self.groups.items()}
        self.priors = PriorTerms(
            prior, starts, kl_weight / n_data, spherical=rule.spherical, rule=type(self).__name__
        )  # fmt: skip
        self.states: dict[str, Any] = {
            name: rule.init(self.mean(group), group.shapes, self.priors.term(name).damping)
            for name, group in self.groups.items()
        }
        others = [name for name in self.trained if name not in self._posterior_names()]
        self.plain_states = {name: PlainState.of(self.means()[name]) for name in others}
        self.plan = planned(model, found, self._posterior_names(), self.trained, type(self).__name__)
        self._seed = int(torch.randint(2**62, ()) if seed is None else seed)
        self._generators: dict[torch.device, torch.Generator] = {}
        self._mirror: dict[str, Tensor] = {}
        self._capture = Capture(recorder(self.trained.values(), self.generator)) if capturable else None
        self._make_buffers()

    def mean(self, group: Group) -> Tensor:
        """A group's mean, as its event."""
        return group.event({part.name: self.mean_of(part.name) for part in group.parts})

    def mean_of(self, name: str) -> Tensor:
        """One parameter's mean."""
        if name in self._masters:
            return self._masters[name]
        return self._saved[name] if self._saved is not None and name in self._saved else self.trained[name].detach()

    def means(self) -> dict[str, Tensor]:
        """The means of all trained parameters, also while a draw is in the weights."""
        return {name: self.mean_of(name) for name in self.trained}

    def rule_of(self, group: Group) -> Rule:
        """The rule with the hyper-parameters its parameters' group of the optimizer now has."""
        options = self.param_groups[self._placement[group.name]]
        values = tuple(options[name] for name in self._rule_options)
        if values not in self._rules:
            chosen = dict(zip(self._rule_options, values, strict=True))
            self._rules[values] = replace(self.rule, **chosen)  # type: ignore[type-var]
        return self._rules[values]

    def lr_of(self, name: str) -> float | Tensor:
        """The step size of a parameter, as a scheduler left it; a number on the device where work is captured."""
        index = self._placement[name]
        return self.param_groups[index]["lr"] if self._capture is None else self._capture.at("rate", index)

    def generator(self, device: torch.device) -> torch.Generator:
        """The optimizer's own stream of noise on a device."""
        if device not in self._generators:
            self._generators[device] = saved_state.own_generator(device, self._seed)
        return self._generators[device]

    @property
    def scale(self) -> float:
        """``λ/N``."""
        return self.kl_weight / self.n_data

    @property
    def limited_steps(self) -> int:
        """How many steps the guard has shortened, over all groups."""
        return sum(int(state.limited.sum()) for state in self.states.values())

    def posteriors(self) -> dict[str, Posterior]:
        """Posterior values by group name; later steps do not change them."""
        with torch.no_grad():
            return {name: self.posterior_of(group) for name, group in self.groups.items()}

    def posterior_of(self, group: Group) -> Posterior:
        """One group's posterior."""
        damping = self.priors.term(group.name).damping
        mean, state = self.mean(group).clone(), self.states[group.name]
        state = state if self._capture is None else buffered(state)  # which later steps will write over
        return self.rule_of(group).posterior(mean, state, damping, self.scale, group.parts)

    def kl(self) -> Tensor:
        """``KL(q ‖ p)`` of all groups, a sum over their weights, under the prior as it now is (see `divergence`)."""
        total = [divergence(posterior, self.priors.current[name]) for name, posterior in self.posteriors().items()]
        return torch.stack([each.to(total[0].device) for each in total]).sum()

    def default_likelihood(self) -> Likelihood | None:
        """The one given."""
        return self.likelihood

    @property
    def batchable(self) -> bool:
        """Whether the network is free of convolutions and recurrent layers, which take batches of weights badly."""
        return takes_batches(self.model)

    def at(self, draws: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """The network's outputs at given weights; the parameters not given are at their means."""
        means = {name: tensor for name, tensor in self.means().items() if not name.startswith(PLAIN_PREFIX)}
        check_names(draws, means, "parameter")
        given = {name: (draws.get(name, tensor)).to(self.trained[name].dtype) for name, tensor in means.items()}
        return torch.func.functional_call(self.model, given, args, kwargs)

    @property
    def training(self) -> bool:
        """That of the network."""
        return self.model.training

    def train(self, mode: bool = True) -> PosteriorHolder:
        """Switch the network; back in training, every module is as it was before evaluation began."""
        if mode and self._flags:
            for module, flag in self._flags.items():
                module.training = flag
            self._flags = {}
        elif not mode and self.model.training:
            self._flags = {module: module.training for module in self.model.modules()}
            self.model.train(False)
        else:
            self.model.train(mode)
        return self

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs besides the network's own ``state_dict``: bit for bit."""
        if self._saved is not None:
            raise InvalidArgument("The weights hold a draw", remedy="Save outside of sampled_params.")
        return {
            **super().state_dict(),
            "posterior": {
                "optimizer": type(self).__name__,
                "shapes": saved_state.shapes_of(self.trained),
                "n_data": self.n_data,
                "kl_weight": self.kl_weight,
                "steps": self.steps,
                "skipped_steps": self.skipped_steps,
                "groups": {name: pack(counted(state)) for name, state in self.states.items()},
                "plain": {name: pack(counted(state)) for name, state in self.plain_states.items()},
                "masters": {name: tensor.clone() for name, tensor in self._masters.items()},
                "prior": self.priors.state(),
                "generators": {str(device): each.get_state() for device, each in self._generators.items()},
                "seed": self._seed,
                "mirror": {name: tensor.clone() for name, tensor in self._mirror.items()},
                "likelihood": {} if self.likelihood is None else dict(self.likelihood.state_dict()),
            },
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """What `state_dict` gave, into an optimizer made with the same arguments; refused whole where it does not fit.

        A state of another ``n_data`` is refused: where the data have grown, set ``state["posterior"]["n_data"]``.
        """
        kind = type(self).__name__
        sizes = {"n_data": self.n_data, "kl_weight": self.kl_weight}
        saved_state.check_saved(state_dict, kind, self.states, self.plain_states, sizes)
        saved_state.check_shapes(state_dict["posterior"], kind, saved_state.shapes_of(self.trained))
        saved_state.check_options(state_dict, self.param_groups, ("lr", *self._rule_options))
        saved = state_dict["posterior"]
        states, plain_states = (
            saved_state.fitted(kind, {name: counted(state) for name, state in own.items()}, saved[key])
            for own, key in ((self.states, "groups"), (self.plain_states, "plain"))
        )
        masters = saved_state.fitted(kind, self._masters, saved["masters"])
        mirror = {name: tensor.to(self.mean(self.groups[name])).clone() for name, tensor in saved["mirror"].items()}
        generators = saved_state.restored_generators(saved["generators"], saved["seed"])
        priors = self.priors.fitting(saved["prior"])
        if self.likelihood is not None:
            saved_state.check_tensors(self.likelihood, saved["likelihood"])
        super().load_state_dict({key: state_dict[key] for key in ("state", "param_groups")})
        self.steps, self.skipped_steps, self._seed = saved["steps"], saved["skipped_steps"], saved["seed"]
        self.states, self.plain_states, self._masters, self._mirror = states, plain_states, masters, mirror
        self._make_buffers()
        self.priors.load(priors)
        saved_state.put_into(self._generators, generators, self._seed)
        if self.likelihood is not None:
            self.likelihood.load_state_dict(saved["likelihood"])

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused once the optimizer is made: what trains a parameter is found from the network's layers."""
        if self._made:
            raise Unsupported(
                f"{type(self).__name__} takes its parameters from the network it was made with",
                got="a param group that was added later", remedy="Put the parameters into the network and make a new "
                "optimizer; options of their own go by param_groups=[…] to its constructor.",
            )  # fmt: skip
        super().add_param_group(param_group)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Refused: a copy would have no network of its own, and torch's way of making one leaves the posterior out."""
        raise Unsupported(
            f"{type(self).__name__} cannot be copied or pickled: it is bound to its network",
            remedy="Keep its state_dict() and the network's; load them into others made with the same arguments.",
        )

    def _make_buffers(self) -> None:
        """Where work is captured, states stay in their memory; what was recorded with other memory is forgotten."""
        self._estimated: set[str] = set()
        if self._capture is not None:
            self._capture.forget()
            self.states = {name: buffered(state) for name, state in self.states.items()}
            self.plain_states = {name: buffered(state) for name, state in self.plain_states.items()}

    def _has_estimates(self, name: str) -> bool:
        """Whether a group's state has seen curvature, which is looked up until it has, but not within a recording."""
        unknown = name not in self._estimated and not (self._capture is not None and self._capture.one)
        if unknown and int(self.states[name].estimates) > 0:
            self._estimated.add(name)
        return name in self._estimated

    def _trained(self, found: Found) -> dict[str, nn.Parameter]:
        named = {name: p for name, p in self.model.named_parameters() if name not in found.frozen}
        own = {} if self.likelihood is None else dict(self.likelihood.named_parameters())
        return {**named, **{f"{PLAIN_PREFIX}{name}": p for name, p in own.items() if p.requires_grad}}

    def _posterior_names(self) -> dict[str, str]:
        return {part.name: group.name for group in self.groups.values() for part in group.parts}

    def _flat_posterior(self, group: Group) -> GaussianPosterior:
        mean = self.mean(group).clone()
        return GaussianPosterior(mean, DiagonalCovariance(torch.ones_like(mean), group.event_dim), group.parts)

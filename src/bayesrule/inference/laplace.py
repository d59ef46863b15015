"""Laplace's method after training: a Gaussian at the trained weights, with the curvature of the data as precision."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from bayesrule.curvature import (
    Fisher,
    Layer,
    ModuleTap,
    Tapped,
    exact_cotangents,
    find_layers,
    sampled_cotangents,
)
from bayesrule.errors import InvalidArgument
from bayesrule.inference.evaluated_network import EvaluatedNetwork
from bayesrule.inference.laplace_curvature import (
    DataCurvature,
    DiagonalGatherer,
    FullGatherer,
    Gatherer,
    KroneckerGatherer,
)
from bayesrule.inference.laplace_evidence import best_precision, log_evidence
from bayesrule.inference.laplace_linear import LinearizedLaplace, OutputLaw, as_event, output_law
from bayesrule.likelihoods import Likelihood
from bayesrule.posteriors import GaussianPosterior, Part
from bayesrule.random import FromGenerator, keyed_generator

Structure = Literal["diagonal", "kfac", "ktied", "full", "last-layer"]
Batch = tuple[Tensor, ...] | list[Tensor]
FULL_ENTRIES = 20_000


@dataclass(frozen=True)
class LaplaceGroup:
    """One group of parameters: where it is, and how the loss curves there."""

    mean: Tensor
    parts: tuple[Part, ...]
    curvature: DataCurvature
    precision: Tensor


@dataclass(frozen=True, eq=False)
class Laplace(EvaluatedNetwork):
    """A trained network with a Gaussian posterior around its weights, as `br.predict` takes it.

    Attributes:
        net: A copy of the network, in eval mode.
        likelihood: What its outputs mean.
        groups: By name, with the prior's precision δ.
        log_likelihood: Of the training data, at the trained weights.
        n_data: How many examples that were.
    """

    net: nn.Module
    likelihood: Likelihood
    groups: dict[str, LaplaceGroup]
    log_likelihood: Tensor
    n_data: int

    def posteriors(self) -> dict[str, GaussianPosterior]:
        """``N(w*, (H + δ)⁻¹)``, by group; parameters of other kinds of layers stay points."""
        return {name: GaussianPosterior(each.mean, each.curvature.covariance(each.precision), each.parts)
                for name, each in self.groups.items()}  # fmt: skip

    def at(self, draws: Mapping[str, Tensor], *args: Any, **kwargs: Any) -> Any:
        """Outputs at given weights; the parameters not given are as trained."""
        return torch.func.functional_call(self.net, dict(draws), args, kwargs)

    @property
    def prior_std(self) -> dict[str, float]:
        """``1/√δ``, by group."""
        return {name: float(each.precision.rsqrt()) for name, each in self.groups.items()}

    def log_marginal_likelihood(self) -> Tensor:
        """``log p(D) ≈ log p(D | w*) − ½ Σ[log det(H + δ) − d log δ + δ‖w*‖²]``   [MacKay 1992]."""
        terms = [log_evidence(each.curvature.spectrum, each.mean, each.precision) for each in self.groups.values()]
        return self.log_likelihood + torch.stack(terms).sum()

    def tuned(self, *, per_group: bool = False) -> Laplace:
        """With the prior's precision of greatest marginal likelihood: one for all groups, or one for each.

        A k-tied posterior is tuned as the diagonal one that it stands for.
        """
        chosen = [[name] for name in self.groups] if per_group else [list(self.groups)]
        groups = dict(self.groups)
        for names in chosen:
            own = [self.groups[name] for name in names]
            best = best_precision([each.curvature.spectrum for each in own], [each.mean for each in own])
            groups |= {name: replace(self.groups[name], precision=best) for name in names}
        return replace(self, groups=groups)

    def linearized(self) -> LinearizedLaplace:
        """The same posterior of the network's linearization at the trained weights, for `br.predict`."""
        return LinearizedLaplace(self.net, self.likelihood, self.posteriors())

    def outputs(self, x: Tensor) -> OutputLaw:
        """The Gaussian law of the linearized network's outputs, in closed form."""
        return output_law(self.net, self.posteriors(), x, self.likelihood)


def laplace(
    model: nn.Module,
    loader: Iterable[Batch] | Batch,
    structure: Structure = "kfac",
    *,
    likelihood: Likelihood,
    prior_std: float = 1.0,
    tune: bool = False,
    rank: int = 2,
    fisher: Fisher = "exact",
    plain: tuple[str, ...] = (),
    seed: int = 0,
) -> Laplace:
    """The Laplace approximation of a trained network: the learning rule's delta method, at its fixed point.

    ``N(w*, (H + δI)⁻¹)`` with H the generalized Gauss–Newton matrix of the training data, ``δ = 1/prior_std²``. The
    network should have been trained to the maximum of ``log p(D | w) − ½δ‖w‖²``.

    Args:
        model: The network; Linear and Conv2d layers get a posterior. It is copied.
        loader: Batches ``(x, y)`` of all training data, once; or one such pair of tensors.
        structure: ``"diagonal"``; ``"kfac"``, with the prior's precision added exactly; ``"ktied"``, the k-tied
            posterior nearest to the diagonal one; ``"full"``, over all layers; ``"last-layer"``, full, of the last
            layer alone.
        likelihood: What the outputs mean.
        prior_std: Of the weights, around zero.
        tune: Whether to take the prior's precision of greatest marginal likelihood; see `Laplace.tuned`.
        rank: k, for ``"ktied"``.
        fisher: Gauss–Newton in closed form (``"exact"``), by ``"sampled"`` targets, or the ``"empirical"`` Fisher.
        plain: Modules or parameters to leave without a posterior.
        seed: Of sampled targets.
    """
    if structure not in get_args(Structure):
        raise InvalidArgument(f"structure is one of {', '.join(get_args(Structure))}", got=repr(structure))
    if not prior_std > 0:
        raise InvalidArgument("prior_std must be positive", got=prior_std)
    net = copy.deepcopy(model).eval()
    found = find_layers(net, plain).layers
    if not found:
        raise InvalidArgument("The network has no trainable nn.Linear or nn.Conv2d that could have a posterior")
    if structure == "last-layer":
        found = found[-1:]
    together = structure == "full" and len(found) > 1
    grouped: list[tuple[Layer, ...]] = [found] if together else [(layer,) for layer in found]
    gatherers = {layers[0].name: _gatherer(structure, layers, rank) for layers in grouped}
    log_likelihood, n_data = _gather(net, found, grouped, gatherers, _batches(loader), likelihood, fisher, seed)
    own = dict(net.named_parameters())
    precision = next(iter(own.values())).new_tensor(prior_std**-2.0).detach()
    groups = {
        layers[0].name: LaplaceGroup(
            _mean(layers, own), tuple(part for layer in layers for part in layer.parts),
            gatherers[layers[0].name].curvature(n_data), precision,
        )
        for layers in grouped
    }  # fmt: skip
    fitted = Laplace(net.requires_grad_(False), likelihood, groups, log_likelihood, n_data)
    return fitted.tuned() if tune else fitted


def _gatherer(structure: Structure, layers: tuple[Layer, ...], rank: int) -> Gatherer:
    if structure == "kfac":
        return KroneckerGatherer()
    if structure in ("diagonal", "ktied"):
        return DiagonalGatherer(rank if structure == "ktied" else None)
    entries = sum(fan_in * fan_out for fan_in, fan_out in (layer.shape for layer in layers))
    if entries > FULL_ENTRIES:
        raise InvalidArgument(
            f"A full covariance over {entries:,} weights needs a dense matrix of that size", got=structure,
            remedy='Use structure="kfac" or "diagonal", or leave layers out by plain=(…).',
        )  # fmt: skip
    return FullGatherer(layers[0].shape if len(layers) == 1 else (entries,))


def _gather(
    net: nn.Module,
    found: tuple[Layer, ...],
    grouped: list[tuple[Layer, ...]],
    gatherers: dict[str, Gatherer],
    loader: Iterable[Batch],
    likelihood: Likelihood,
    fisher: Fisher,
    seed: int,
) -> tuple[Tensor, int]:
    """One pass over the data: curvature into the gatherers, and the log-likelihood and number of examples."""
    total, count = torch.zeros(()), 0
    noise = FromGenerator(keyed_generator(next(net.parameters()).device, seed, "laplace"))
    targets: list[Tensor] = []

    def cotangents(outputs: Tensor) -> Tensor:
        return _cotangents(likelihood, fisher, noise)(outputs, targets[-1])

    def receive(tapped: dict[str, Tapped]) -> None:
        with torch.no_grad():
            for layers in grouped:
                gatherers[layers[0].name].add([tapped[layer.name] for layer in layers])

    with ModuleTap(net, found, receive, cotangents)(), torch.enable_grad():
        for batch in loader:
            *inputs, labels = _checked(batch)
            targets.append(labels)
            outputs = net(*inputs).detach()
            values = likelihood.log_prob(outputs, labels)
            total, count = total.to(values) + values.sum(), count + values.numel()
    if count == 0:
        raise InvalidArgument("The loader has no data", remedy="Give a loader of (x, y) batches, not an iterator.")
    return total, count


def _batches(loader: Iterable[Batch] | Batch) -> Iterable[Batch]:
    """A pair of tensors is one batch; a tensor would be taken apart row by row."""
    if isinstance(loader, Tensor):
        raise _no_batches(f"a tensor of shape {tuple(loader.shape)}")
    if isinstance(loader, tuple | list) and len(loader) > 1 and all(isinstance(each, Tensor) for each in loader):
        return [tuple(loader)]
    return loader  # type: ignore[return-value]


def _checked(batch: Batch) -> Batch:
    """Refuse what is not inputs and targets."""
    if not isinstance(batch, tuple | list):
        raise _no_batches(f"a batch that is a {type(batch).__name__}")
    if len(batch) < 2 or not all(isinstance(each, Tensor) for each in batch):
        raise _no_batches(f"a batch of {', '.join(type(each).__name__ for each in batch) or 'nothing'}")
    return batch


def _no_batches(got: str) -> InvalidArgument:
    return InvalidArgument(
        "The training data are batches (x, y) of tensors", got=got,
        remedy="Give a DataLoader of a TensorDataset(x, y), a list of such pairs, or the one pair (x, y).",
    )  # fmt: skip


def _cotangents(likelihood: Likelihood, fisher: Fisher, noise: FromGenerator) -> Callable[[Tensor, Tensor], Tensor]:
    if fisher == "exact":
        return lambda outputs, _: exact_cotangents(likelihood, outputs)
    if fisher == "sampled":
        return lambda outputs, _: sampled_cotangents(likelihood, outputs, noise)
    return lambda outputs, labels: torch.func.grad(lambda f: -likelihood.log_prob(f, labels).sum())(outputs)[None]


def _mean(layers: tuple[Layer, ...], own: Mapping[str, Tensor]) -> Tensor:
    """The layers' parameters as one event: a matrix, or a vector of several."""
    event_dim = 2 if len(layers) == 1 else 1
    parts = tuple(part for layer in layers for part in layer.parts)
    return as_event(parts, {part.name: own[part.name].detach() for part in parts}, event_dim).clone()

"""The prior of each group, in units of one example; learned scales follow the posterior."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.optim.rule import PriorTerm
from bayesrule.posteriors import DiagonalCovariance, GaussianPosterior
from bayesrule.priors import DiagonalNormal, HeNormal, Normal, Prior


class PriorTerms:
    """A prior for several groups: its hyper-parameters, and the precisions as they now are.

    A prior that finds its scale from the posterior (`LearnedNormal`, `ARD`, …) is asked anew by `follow`, and its
    precision averaged over time, ``H̄ ← (1−β̃)H̄ + β̃/η``   [Eq. 9]. It starts as if the posterior's standard deviations
    were the root mean square of its means.
    """

    def __init__(
        self, prior: Prior, starts: Mapping[str, GaussianPosterior], unit: float, *, spherical: bool, rule: str
    ) -> None:
        self.prior, self.unit, self.rule = prior, unit, rule
        self.fixed = isinstance(prior, Normal | HeNormal)
        assumed = {name: _as_wide_as_its_mean(start) for name, start in starts.items()}
        self._kept = {name: prior.hyperparameters(start) for name, start in assumed.items()}
        if any(isinstance(each, nn.Parameter) for kept in self._kept.values() for each in kept.values()):
            raise Unsupported(
                f"{type(prior).__name__} learns its hyper-parameters by gradient, which these optimizers do not do",
                remedy="Use br.Normal, br.LearnedNormal, or a prior in closed form.",
            )
        self.current = self._given(assumed)
        self._terms: dict[str, PriorTerm] = {}
        for name, found in self.current.items() if spherical else ():
            if found.precision.numel() > 1:
                raise Unsupported(
                    f"{rule} needs a spherical prior: one precision for all of {name}",
                    got=f"{type(prior).__name__} with precisions of shape {tuple(found.precision.shape)}",
                    remedy="Use br.Normal(std) or br.LearnedNormal(), or NoisyAdam or NoisyFull.",
                )

    def term(self, name: str) -> PriorTerm:
        """``γ = λ/(Nη)`` and the centre; one object for groups that have the same for good."""
        if name not in self._terms:
            found = self.current[name]
            centred = not bool(found.mean.any())
            term = PriorTerm(self.unit * found.precision, None if centred else found.mean)
            shared = self.fixed and centred and term.damping.ndim == 0
            same = (each for each in self._terms.values() if shared and _same(each, term))
            self._terms[name] = next(same, term)
        return self._terms[name]

    def follow(self, posteriors: Mapping[str, GaussianPosterior], rate: float) -> None:
        """Ask a learned prior for its scales given these posteriors, and move to them by ``rate``."""
        for name, found in self._given(posteriors).items():
            moved = torch.lerp(self.current[name].precision, found.precision, rate)
            self.current[name] = DiagonalNormal(found.mean, moved)
            term = self._terms.pop(name, None)
            if term is not None and term.mean is None and not bool(found.mean.any()):
                self._terms[name] = term
                term.damping.copy_(self.unit * moved)  # in the memory that recorded work reads

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Precisions, and what the prior keeps (pretrained weights, say)."""
        return {name: {"precision": each.precision, "mean": each.mean, **self._kept[name]}
                for name, each in self.current.items()}  # fmt: skip

    def fitting(self, state: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
        """What `load` takes, from what `state` gave; refused where that was another prior's."""
        for name, kept in self._kept.items():
            given = sorted(state.get(name, ()))
            if set(given) != {"precision", "mean", *kept}:
                raise InvalidArgument(
                    f"The saved state has another prior than {type(self.prior).__name__}", got=given,
                    remedy="Make the optimizer with the prior it was saved with. Nothing was loaded.",
                )  # fmt: skip
        return {name: {key: value.to(self.current[name].precision) for key, value in state[name].items()}
                for name in self._kept}  # fmt: skip

    def load(self, state: Mapping[str, Mapping[str, Tensor]]) -> None:
        """The inverse of `state`, once it is `fitting`."""
        for name, kept in self._kept.items():
            found = state[name]
            self.current[name] = DiagonalNormal(found["mean"], found["precision"])
            self._kept[name] = {key: found[key] for key in kept}
        self._terms = {}

    def _given(self, posteriors: Mapping[str, GaussianPosterior]) -> dict[str, DiagonalNormal]:
        shared = self.prior.share(posteriors.values())
        return {name: shared.given(posterior, self._kept[name]) for name, posterior in posteriors.items()}


def _same(left: PriorTerm, right: PriorTerm) -> bool:
    """Of terms without a centre."""
    a, b = left.damping, right.damping
    return left.mean is None and (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device) and bool(a == b)


def _as_wide_as_its_mean(start: GaussianPosterior) -> GaussianPosterior:
    size = start.mean.square().mean().sqrt()
    std = torch.where(size > 0, size, 1.0).expand(start.mean.shape)
    return GaussianPosterior(start.mean, DiagonalCovariance(std, start.event_dim), start.parts)

"""The trainable home of a posterior: one module for every family."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from bayesrule.kernels import ParameterTap, Piece, StoredParameters
from bayesrule.linalg import MatrixView
from bayesrule.posteriors.family import Family
from bayesrule.posteriors.gaussian import GaussianPosterior
from bayesrule.posteriors.parts import Part
from bayesrule.posteriors.posterior import Posterior


class Variational(nn.Module):
    """Keeps a family's unconstrained parameters; calling it gives the posterior value.

    The mean of a single parameter is kept in that parameter's own layout, so that reading it costs no copy in the
    forward pass; the family sees it through its `MatrixView`. The mean of a group of several is kept as the event. All
    other tensors are kept as the family sees them, fan-in × fan-out: so a Linear's ``log_std`` lies transposed.

    Args:
        family: Which posterior to keep.
        mean: Where it is centred at the start; not modified.
        parts: Which parameters it stands for; by default one, ``"weight"``, that is a matrix or vector as it is.
        generator: Where the initial noise comes from.
    """

    def __init__(
        self,
        family: Family,
        mean: Tensor,
        parts: tuple[Part, ...] | None = None,
        *,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.family = family
        self.parts = parts or (Part("weight", _as_it_is(mean)),)
        event = self._event(mean.detach())
        self.event_dim = event.ndim
        self._tapped = _tappable(self.parts, self.event_dim)
        self.tap = ParameterTap()
        initial = family.init(event, generator=generator)
        initial["mean"] = mean
        self._names = tuple(initial)  # the mean's comes first
        for key, value in initial.items():
            self.register_parameter(key, nn.Parameter(value.detach().clone()))

    @property
    def name(self) -> str:
        """The group's name: that of its first parameter."""
        return self.parts[0].name

    gather: Callable[[Tensor], Tensor] | None = None
    """What makes a whole tensor of a parameter that is kept in parts, by several processes."""

    def forward(self) -> Posterior:
        """The posterior these parameters stand for."""
        posterior = self.at(dict(zip(self._names, self._whole(), strict=True)))
        if self.gather is not None:  # a whole tensor is new in every pass: nothing of it may be kept between two
            return posterior
        if isinstance(posterior, GaussianPosterior) and (stored := self.stored()) is not None:
            # A value that nobody has yet is not changed by it, and made only once.
            object.__setattr__(posterior, "stored", stored)
        return posterior

    def at_least_single(self) -> Posterior:
        """The same, of parameters in single precision where they are kept in half: for sums over all weights."""
        if not any(map(in_half, self._tensors())):
            return self()
        return self.at(dict(zip(self._names, map(at_least_single, self._whole()), strict=True)))

    def stored(self) -> StoredParameters | None:
        """The parameters behind their tap, where one node may give them all their gradients."""
        return self._stored() if self._tapped else None

    def _stored(self) -> StoredParameters | None:
        if self.gather is not None or torch.compiler.is_compiling() or len(self._parameters) < len(self._names):
            return None
        return StoredParameters(self._tensors(), self.tap)

    def _tensors(self) -> tuple[Tensor, ...]:
        """The parameters, the mean first, in whichever order they were registered; or what parametrizes them."""
        held = self._parameters
        return tuple(held[name] if name in held else getattr(self, name) for name in self._names)  # type: ignore[misc]

    def _whole(self) -> tuple[Tensor, ...]:
        """The same, put together where they are kept in parts."""
        tensors = self._tensors()
        return tensors if self.gather is None else tuple(map(self.gather, tensors))

    def piece(self) -> Piece | None:
        """The parameters as one of a model's pieces, where they are kept whole and each output's weights together."""
        layout = self.parts[0].layout
        by_output = self.event_dim == 1 or (isinstance(layout, MatrixView) and layout.lies_by_output)
        stored = self._stored() if by_output and len(self.parts) == 1 else None
        return None if stored is None else self.family.piece(stored)

    def for_layer(self) -> tuple[Tensor, ...]:
        """The parameters, whole, and behind their tap where there is one."""
        stored = self.stored()
        if stored is not None:
            return stored.for_layer()
        return self._whole()

    def at(self, parameters: Mapping[str, Tensor]) -> Posterior:
        """The posterior other values of the parameters stand for; leading dimensions of all of them are a batch."""
        event = {**parameters, "mean": self._event(parameters["mean"])}
        return self.family.build(event, event_dim=self.event_dim, parts=self.parts)

    def extra_repr(self) -> str:
        """The family and what it covers."""
        return f"{', '.join(part.name for part in self.parts)}: {self.family}"

    def _event(self, mean: Tensor) -> Tensor:
        layout = self.parts[0].layout
        return layout.matrix(mean) if len(self.parts) == 1 and isinstance(layout, MatrixView) else mean


def in_half(tensor: Tensor) -> bool:
    """Whether it is in one of the half precisions: a sum over many weights does not fit float16, nor bfloat16 well."""
    return tensor.dtype in (torch.float16, torch.bfloat16)


def at_least_single(tensor: Tensor) -> Tensor:
    """Half precision made single, any other left as it is."""
    return tensor.float() if in_half(tensor) else tensor


def _tappable(parts: tuple[Part, ...], event_dim: int) -> bool:
    """Whether the mean is kept as `nn.Linear` keeps its weight, fan-out × fan-in, or a vector such as its bias."""
    layout = parts[0].layout
    as_linear = isinstance(layout, MatrixView) and layout.is_transposed_matrix
    return len(parts) == 1 and (as_linear or event_dim == 1)


def _as_it_is(mean: Tensor) -> MatrixView | tuple[int, ...]:
    return MatrixView(tuple(mean.shape), fan_out_axis=1) if mean.ndim == 2 else tuple(mean.shape)

"""The trainable home of a posterior: one module for every family."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bayesrule.linalg import MatrixView
from bayesrule.posteriors.family import Family
from bayesrule.posteriors.parts import Part
from bayesrule.posteriors.posterior import Posterior


class Variational(nn.Module):
    """Keeps a family's unconstrained parameters; calling it gives the posterior value.

    The mean is kept in the weight's own layout, so that reading it costs no copy in the forward pass; the family sees
    it through its `MatrixView`. One-dimensional tensors have no view.

    Args:
        family: Which posterior to keep.
        mean: Where it is centred at the start; not modified.
        view: How ``mean`` is read as a matrix. ``None`` takes it as it is.
        name: Name of the parameter it stands for.
        generator: Where the initial noise comes from.
    """

    def __init__(
        self,
        family: Family,
        mean: Tensor,
        view: MatrixView | None = None,
        *,
        name: str = "weight",
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.family, self.view, self.name = family, view, name
        event = mean.detach() if view is None else view.matrix(mean.detach())
        self.event_dim = event.ndim
        initial = family.init(event, generator=generator)
        initial["mean"] = mean
        for key, value in initial.items():
            self.register_parameter(key, nn.Parameter(value.detach().clone()))

    def forward(self) -> Posterior:
        """The posterior these parameters stand for."""
        parameters: dict[str, Tensor] = dict(self.named_parameters(recurse=False))
        if self.view is not None:
            parameters["mean"] = self.view.matrix(parameters["mean"])
        layout = self.view if self.view is not None else tuple(parameters["mean"].shape)
        return self.family.build(parameters, event_dim=self.event_dim, parts=(Part(self.name, layout),))

    def extra_repr(self) -> str:
        """The family and what it covers."""
        return f"{self.name}: {self.family}"

"""Second moments of per-example gradients, from what a tap saw; those gradients are formed only where they must be."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.curvature.triangles import gram
from bayesrule.errors import Unsupported

ENTRIES_TOGETHER = 2**24
"""Numbers of per-example gradients formed at a time, where their sum over positions must be squared."""


@dataclass(frozen=True)
class Tapped:
    """What one layer saw in one pass: inputs ``a`` and gradients ``g`` of the negative log-likelihood of each example.

    The gradient of example e under cotangent j is ``Σ_t a_et g_jetᵀ``, and the Fisher matrix is the sum over j of the
    mean over e of its outer products: j runs over sampled targets or over the columns of a root of the outputs' Fisher.

    Attributes:
        inputs: With a constant one where the layer has a bias.
        gradients: At the same examples and positions.
        examples: E, what sums over examples are divided by.
    """

    inputs: Float[Tensor, "*batch rows positions fan_in"]
    gradients: Float[Tensor, "*batch cotangents rows positions fan_out"]
    examples: int

    def rotated(self, fan_in_basis: Tensor, fan_out_basis: Tensor) -> Tapped:
        """``Q_inᵀ a`` and ``Q_outᵀ g``: the gradients ``Q_inᵀ G Q_out``, without forming them."""
        gradients = self.gradients @ fan_out_basis[..., None, None, :, :]
        return Tapped(self.inputs @ fan_in_basis[..., None, :, :], gradients, self.examples)

    def to(self, dtype: torch.dtype) -> Tapped:
        """In another precision."""
        return Tapped(self.inputs.to(dtype), self.gradients.to(dtype), self.examples)

    def of_silent_layer(self, fan_in: int, fan_out: int) -> Tapped:
        """What a layer of this size would have seen that the same pass did not call: nothing at every example."""
        inputs = self.inputs.new_zeros(*self.inputs.shape[:-2], 1, fan_in)
        return Tapped(inputs, self.gradients.new_zeros(*self.gradients.shape[:-2], 1, fan_out), self.examples)


def fan_in_moment(tapped: Tapped) -> Float[Tensor, "*batch fan_in fan_in"]:
    """``A = E[Σ_t a_t a_tᵀ]``: a sum over positions   [Eq. 2; Grosse & Martens 2016, Eq. 30]."""
    return gram(tapped.inputs.flatten(-3, -2), 1 / tapped.examples)


def fan_out_moment(tapped: Tapped) -> Float[Tensor, "*batch fan_out fan_out"]:
    """``S = E[(1/T) Σ_t g_t g_tᵀ]``: a mean over positions   [Eq. 2; Grosse & Martens 2016, Eq. 31]."""
    return gram(tapped.gradients.flatten(-4, -2), 1 / _rows(tapped))


def squared_gradients(tapped: Tapped) -> Float[Tensor, "*batch fan_in fan_out"]:
    """``E[(Σ_t a_t g_tᵀ)²]``, entry by entry.

    With one row for each example it is ``(a²)ᵀ(g²)``, one matrix product, column by column, as a layer's weight lies
    in memory; with positions, sums come before squares, and gradients are formed for some examples at a time.
    """
    if tapped.inputs.shape[-2] == 1:
        squares, gradients = tapped.inputs.squeeze(-2).square(), tapped.gradients.squeeze(-2)
        summed = gradients.select(-3, 0).square() if gradients.shape[-3] == 1 else gradients.square().sum(-3)
        return (summed.mT @ squares).div_(tapped.examples).mT
    *_, rows, _, fan_in = tapped.inputs.shape
    cotangents, fan_out = tapped.gradients.shape[-4], tapped.gradients.shape[-1]
    together = max(1, ENTRIES_TOGETHER // (cotangents * fan_in * fan_out))
    total = torch.zeros_like(tapped.inputs[..., 0, 0, :, None] * tapped.gradients[..., 0, 0, 0, None, :])
    for start in range(0, rows, together):
        inputs, gradients = (each.narrow(-3, start, min(together, rows - start)) for each in
                             (tapped.inputs, tapped.gradients))  # fmt: skip
        total = total + (inputs.mT.unsqueeze(-4) @ gradients).square().sum((-4, -3))
    return total / tapped.examples


def example_gradients(tapped: Tapped) -> Float[Tensor, "*batch cotangents rows fan_in fan_out"]:
    """``Σ_t a_t g_tᵀ`` of every example and cotangent: for small layers."""
    return tapped.inputs.mT.unsqueeze(-4) @ tapped.gradients


def cross_moments(this: Tapped, following: Tapped) -> tuple[Tensor, Tensor]:
    """``E[a_l a_{l+1}ᵀ]`` and ``E[g_l g_{l+1}ᵀ]`` of two layers   [Martens & Grosse 2015, Sec. 4.3]."""
    if (
        max(this.inputs.shape[-2], following.inputs.shape[-2]) > 1
        or this.inputs.shape[-3] != following.inputs.shape[-3]
    ):
        raise Unsupported(
            "Cross moments of two layers need one row for each example in both",
            got=f"inputs of shapes {tuple(this.inputs.shape)} and {tuple(following.inputs.shape)}",
            remedy="Use NoisyKFAC for convolutions and sequences, or name these layers in plain=(…).",
        )
    fan_in = this.inputs.squeeze(-2).mT @ following.inputs.squeeze(-2) / this.examples
    left, right = (each.gradients.flatten(-4, -2) for each in (this, following))
    return fan_in, left.mT @ right / this.examples


def weight_gradient(tapped: Tapped) -> Float[Tensor, "*batch fan_in fan_out"]:
    """The mean gradient over examples, summed over cotangents: ``aᵀg / E``."""
    inputs, gradients = tapped.inputs.flatten(-3, -2), tapped.gradients.sum(-4).flatten(-3, -2)
    return inputs.mT @ gradients / tapped.examples


def _rows(tapped: Tapped) -> int:
    return tapped.inputs.shape[-3] * tapped.inputs.shape[-2]

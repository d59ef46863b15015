"""Block-tridiagonal covariance over a chain of layers: neighbours are correlated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor

from bayesrule.errors import ShapeMismatch
from bayesrule.posteriors.covariance import CovarianceOperator
from bayesrule.posteriors.eigen_kronecker import EigenKroneckerCovariance
from bayesrule.posteriors.kronecker_chain import KroneckerRoot, conditional_inverse, damp_factors


@dataclass(frozen=True)
class BlockTridiagonalCovariance(CovarianceOperator):
    """``Σ = Ξᵀ Λ Ξ``, Λ block diagonal, Ξ unit upper bidiagonal with blocks −Ψ   [Martens & Grosse 2015, Sec. 4.3].

    The event is one vector: the layers' fan-in × fan-out matrices, each in row-major order, one after the other. The
    *covariance* is block tridiagonal; the precision ``F̂ = Ξ⁻¹ Λ⁻¹ Ξ⁻ᵀ`` is dense: gradients as a Gaussian chain that
    runs from the last layer to the first.

    Attributes:
        conditionals: The blocks of Λ: ``Σ_{l|l+1}⁻¹`` of each layer given the next, and ``F_LL⁻¹`` of the last.
        couplings: For each layer but the last the factors (fan-in, fan-out) of ``Ψ_{l,l+1}``, which takes the next
            layer's matrix X to this layer's ``P_in X P_outᵀ``.
    """

    conditionals: tuple[EigenKroneckerCovariance, ...]
    couplings: tuple[tuple[Tensor, Tensor], ...]
    event_dim = 1

    def __post_init__(self) -> None:
        layers = [tuple(block.event_shape) for block in self.conditionals]
        wanted = [tuple(zip(this, following, strict=True)) for this, following in pairwise(layers)]
        got = [(tuple(fan_in.shape[-2:]), tuple(fan_out.shape[-2:])) for fan_in, fan_out in self.couplings]
        if not layers or got != wanted:
            raise ShapeMismatch(f"Layers {layers} need couplings with factors of shapes {wanted}", got=got)

    @property
    def shape(self) -> torch.Size:
        """Batch, and the entries of all layers."""
        return torch.Size((*self.conditionals[0].shape[:-2], sum(self._lengths)))

    def matmul(self, x: Tensor) -> Tensor:
        """``Ξᵀ Λ Ξ x``."""
        layers = self._split(x)
        for index in range(len(self.couplings)):
            layers[index] = layers[index] - self._pull(index, layers[index + 1])
        return self._spread([block.matmul(layer) for block, layer in zip(self.conditionals, layers, strict=True)])

    def solve(self, x: Tensor) -> Tensor:
        """``Ξ⁻¹ Λ⁻¹ Ξ⁻ᵀ x``: forward substitution, the blocks, back substitution."""
        layers = self._split(x)
        for index in range(len(self.couplings)):
            layers[index + 1] = layers[index + 1] + self._push(index, layers[index])
        layers = [block.solve(layer) for block, layer in zip(self.conditionals, layers, strict=True)]
        for index in reversed(range(len(self.couplings))):
            layers[index] = layers[index] + self._pull(index, layers[index + 1])
        return self._join(layers)

    def sqrt_matmul(self, noise: Tensor) -> Tensor:
        """``Ξᵀ Λ^½ ε``."""
        layers = self._split(noise)
        return self._spread([block.sqrt_matmul(layer) for block, layer in zip(self.conditionals, layers, strict=True)])

    def logdet(self) -> Tensor:
        """``Σ_l log det Λ_l``, for Ξ has determinant 1."""
        return torch.stack([block.logdet() for block in self.conditionals]).sum(0)

    def diagonal(self) -> Tensor:
        """``diag Λ_l + diag(Ψᵀ Λ_{l−1} Ψ)``; the second from the squares of the bases that Ψᵀ gives."""
        variances = [block.diagonal() for block in self.conditionals]
        for index, (fan_in, fan_out) in enumerate(self.couplings):
            block = self.conditionals[index]
            left, right = fan_in.mT @ block.fan_in_basis, fan_out.mT @ block.fan_out_basis
            variances[index + 1] = variances[index + 1] + left.square() @ block.spectrum @ right.square().mT
        return self._join(variances)

    @classmethod
    def from_moments(
        cls,
        fan_in_moments: Sequence[Tensor],
        fan_out_moments: Sequence[Tensor],
        fan_in_cross: Sequence[Tensor],
        fan_out_cross: Sequence[Tensor],
        *,
        damping: float | Tensor = 0.0,
        scale: float | Tensor = 1.0,
    ) -> BlockTridiagonalCovariance:
        """``scale · F̂⁻¹`` from second moments of the layers' inputs ``a_l`` and pre-activation gradients ``g_l``.

        With ``F_lk = A_lk ⊗ G_lk``, ``Ψ_{l,l+1} = F_{l,l+1} F_{l+1,l+1}⁻¹`` is the Kronecker product of
        ``A_{l,l+1} A_{l+1,l+1}⁻¹`` and its like in G, and ``Σ_{l|l+1} = F_ll − Ψ F_{l+1,l+1} Ψᵀ`` a difference of two
        Kronecker products, diagonalised as two pencils (`conditional_inverse`). F̂ equals F on the tridiagonal blocks,
        and only there.

        Args:
            fan_in_moments: ``A_ll = E[a_l a_lᵀ]`` of every layer, with the constant one of a bias row if there is one.
            fan_out_moments: ``G_ll = E[g_l g_lᵀ]`` of every layer.
            fan_in_cross: ``A_{l,l+1} = E[a_l a_{l+1}ᵀ]`` of every layer but the last.
            fan_out_cross: ``G_{l,l+1} = E[g_l g_{l+1}ᵀ]`` of every layer but the last.
            damping: γ of `damp_factors`, which replaces every ``A_ll`` and ``G_ll`` before they are used; the cross
                moments stay as they are. A batch of dampings has shape (…, 1, 1).
            scale: Factor of the covariance, λ/N for noisy K-FAC; a batch of them has shape (…, 1, 1).

        Raises:
            InvalidArgument: A moment or a ``Σ_{l|l+1}`` is not positive definite.
            ShapeMismatch: The lists do not fit each other.
        """
        counts = len(fan_in_moments), len(fan_out_moments), len(fan_in_cross) + 1, len(fan_out_cross) + 1
        if len(set(counts)) > 1:
            raise ShapeMismatch(
                "L layers have L moments and L − 1 cross moments, of fan-in and of fan-out",
                got=f"{counts[0]} and {counts[1]} moments, {counts[2] - 1} and {counts[3] - 1} cross moments",
            )
        moments = zip(fan_in_moments, fan_out_moments, strict=True)
        roots = [KroneckerRoot.of(*damp_factors(*pair, damping)) for pair in moments]
        links = list(zip(roots[:-1], zip(fan_in_cross, fan_out_cross, strict=True), roots[1:], strict=True))
        blocks = [*(conditional_inverse(*link) for link in links), roots[-1].inverse()]
        scaled = (replace(block, spectrum=scale * block.spectrum) for block in blocks)
        return cls(tuple(scaled), tuple(following.regress(*cross) for _, cross, following in links))

    @property
    def _lengths(self) -> list[int]:
        return [block.event_shape.numel() for block in self.conditionals]

    def _split(self, x: Tensor) -> list[Tensor]:
        pieces = x.split(self._lengths, dim=-1)
        return [piece.unflatten(-1, block.event_shape) for piece, block in zip(pieces, self.conditionals, strict=True)]

    def _join(self, layers: list[Tensor]) -> Tensor:
        return torch.cat([layer.flatten(-2) for layer in layers], dim=-1)

    def _pull(self, index: int, following: Tensor) -> Tensor:
        """``Ψ_{l,l+1} x_{l+1}``."""
        fan_in, fan_out = self.couplings[index]
        return fan_in @ following @ fan_out.mT

    def _push(self, index: int, this: Tensor) -> Tensor:
        """``Ψ_{l,l+1}ᵀ x_l``."""
        fan_in, fan_out = self.couplings[index]
        return fan_in.mT @ this @ fan_out

    def _spread(self, layers: list[Tensor]) -> Tensor:
        """``Ξᵀ x``."""
        pushed = [self._push(index, layer) for index, layer in enumerate(layers[:-1])]
        return self._join([layers[0], *(layer - push for layer, push in zip(layers[1:], pushed, strict=True))])

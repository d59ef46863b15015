"""Flipout: one draw of the weight, made nearly independent between examples by random signs."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bayesrule.contractions import Contraction
from bayesrule.contractions.contraction import example_signs
from bayesrule.errors import Unsupported
from bayesrule.estimators.estimator import Estimator, drawn
from bayesrule.posteriors import Posterior
from bayesrule.random import NoiseSource, by_example


@dataclass(frozen=True)
class Flipout(Estimator):
    """``op(x, mean) + op(x ∘ s, ΔW) ∘ r`` with a sign per example and channel   [Wen et al. 2018].

    ``ΔW ∘ (s rᵀ)`` has ΔW's law only if its entries are independent and symmetric: correlated posteriors are refused,
    since their covariance would come out wrong.
    """

    def output(self, posterior: Posterior, contraction: Contraction, x: Tensor, noise: NoiseSource) -> Tensor:
        """The output at the mean and the sign-flipped perturbation."""
        refuse_correlated(posterior, contraction)
        output = contraction(x, posterior.mean)
        change = drawn(posterior, noise) - posterior.mean
        noise = by_example(noise)
        input_signs = contraction.sign_shape(x)
        flipped = x if input_signs is None else x * noise(input_signs, "sign", x)
        signs = noise(example_signs(output, contraction.channel_dim, -contraction.channel_dim), "sign", output)
        return output + contraction(flipped, change) * signs


def refuse_correlated(posterior: Posterior, contraction: Contraction) -> None:
    """Random signs leave the law of independent, symmetric entries alone, and no other."""
    if not posterior.independent:
        other = "LocalReparam or WeightSample" if posterior.projects(contraction) else "WeightSample"
        raise Unsupported(
            "Flipout needs a posterior with independent entries, symmetric about their mean",
            got=posterior.structure,
            remedy=f"Use the {other} estimator, or the Diagonal or KTied family.",
        )

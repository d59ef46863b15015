"""Mixture of Gaussians: Bayesian by message passing, maximum likelihood by EM."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from bayesrule.algorithms import CompleteData
from bayesrule.expfam import (
    Categorical,
    Dirichlet,
    Expectation,
    FiniteMixture,
    GaussianFull,
    Natural,
    NormalWishart,
)
from bayesrule.inference.examples import check_inputs
from bayesrule.inference.model import Expectations, Factor, Model

Points = Float[Tensor, "examples dim"]


def complete_mixture(x: Points, components: int) -> CompleteData:
    """p(x, z | θ) of a Gaussian mixture with the labels z unseen, for EM: θ is λ of the pair's own family."""
    check_inputs("x", x)
    model = FiniteMixture(GaussianFull(), components)

    def statistics(mu: Expectation) -> Expectation:
        return model.expected_statistics(Categorical().probabilities(mu), x).map(lambda value: value.sum(0))

    return CompleteData(Categorical(), model, statistics, len(x))


def bayesian_mixture(x: Points, *, weights_prior: Natural, component_prior: Natural) -> Model:
    """Labels z_n, weights π ~ Dirichlet, and for each component (m_k, Λ_k) ~ Normal–Wishart.

    Args:
        x: The data.
        weights_prior: λ of the Dirichlet over the weights; its size is the number of components.
        component_prior: λ of one Normal–Wishart, the prior of every component.
    """
    check_inputs("x", x)
    families = {"labels": Categorical(), "weights": Dirichlet(), "components": NormalWishart()}
    half_dim = 0.5 * x.shape[-1] * torch.log(torch.tensor(2 * torch.pi)).to(x)

    def likelihood(mu: Expectations) -> Tensor:
        """Σ_nk P(z_n = k) E[log N(x_n; m_k, Λ_k⁻¹)], linear in the statistics of each component."""
        each = mu["components"]
        own = x.to(each["log"].dtype)
        quadratic = torch.einsum("ni,kij,nj->nk", own, each["precision"], own)
        log_density = 0.5 * (each["log"] - quadratic - each["quadratic"]) + own @ each["linear"].mT - half_dim
        return (Categorical().probabilities(mu["labels"]) * log_density).sum(-1)

    def labels(mu: Expectations) -> Tensor:
        return (Categorical().probabilities(mu["labels"]) * mu["weights"]["log"]).sum(-1)

    def weights(mu: Expectations) -> Tensor:
        return families["weights"].inner(weights_prior, mu["weights"])

    def components(mu: Expectations) -> Tensor:
        return families["components"].inner(component_prior, mu["components"])

    return Model(
        families,
        (
            Factor(("labels", "components"), likelihood),
            Factor(("labels", "weights"), labels),
            Factor(("weights",), weights),
            Factor(("components",), components),
        ),
    )

"""Hidden Markov model with Gaussian emissions, all parameters Bayesian, by message passing."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor

from bayesrule.expfam import ChainCategorical, Dirichlet, ExponentialFamily, Natural, NormalGamma
from bayesrule.inference.examples import check_vector
from bayesrule.inference.model import Expectations, Factor, Model


def hidden_markov(
    y: Float[Tensor, " length"], *, start_prior: Natural, transition_prior: Natural, emission_prior: Natural
) -> Model:
    """States z_t, P(z_1) ~ Dirichlet, rows of the transitions ~ Dirichlet, (m_k, τ_k) ~ Normal–Gamma.

    The states' posterior is a Markov chain of its own: its expectation parameters are those of forward–backward.

    Args:
        y: The observations.
        start_prior: λ of the Dirichlet over the first state.
        transition_prior: λ of the Dirichlets over the rows, the prior state as a batch dimension.
        emission_prior: λ of one Normal–Gamma, the prior of every state's emissions.
    """
    check_vector("y", y)
    chain, dirichlet, emission = ChainCategorical(), Dirichlet(), NormalGamma()

    def likelihood(mu: Expectations) -> Tensor:
        """Σ_tk P(z_t = k) E[log N(y_t; m_k, 1/τ_k)]."""
        each = mu["emissions"]
        column = y.to(each["log"].dtype).unsqueeze(-1)
        misfit = each["precision"] * column**2 - 2 * each["linear"] * column + each["quadratic"]
        log_density = 0.5 * (each["log"] - misfit - math.log(2 * math.pi))
        return (chain.states(mu["states"]) * log_density).sum()

    def path(mu: Expectations) -> Tensor:
        first = (chain.states(mu["states"])[0] * mu["start"]["log"]).sum()
        return first + (chain.pairs(mu["states"]).sum(0) * mu["transitions"]["log"]).sum()

    def prior(name: str, family: ExponentialFamily, natural: Natural) -> Factor:
        return Factor((name,), lambda mu: family.inner(natural, mu[name]))

    return Model(
        {"states": chain, "start": dirichlet, "transitions": dirichlet, "emissions": emission},
        (
            Factor(("states", "emissions"), likelihood),
            Factor(("states", "start", "transitions"), path),
            prior("start", dirichlet, start_prior),
            prior("transitions", dirichlet, transition_prior),
            prior("emissions", emission, emission_prior),
        ),
    )

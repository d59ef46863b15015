"""The closed KL against its definition, ``E_q[log q(w) − log p(w)]``, over the weights of a 100-50-10 network."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from scipy import stats
from torch import Tensor

from bayesrule.posteriors import (
    ClippedLowRank,
    Diagonal,
    Family,
    Full,
    KTied,
    MatrixNormal,
    MatrixNormalDiagonal,
    Point,
    Posterior,
)
from bayesrule.priors import GroupARD, LearnedNormal, Normal, Prior, total_kl

FAILURE_RATE = 1e-6
CHUNK = 500


@dataclass(frozen=True)
class Case:
    """A family over the weights of a network, and as many draws as show an error of 1 %."""

    family: Family
    shapes: tuple[tuple[int, int], ...] = ((100, 50), (50, 10))
    draws: int = 250


CASES = [
    Case(Diagonal(init_std=0.1, init_spread=0.5)),
    Case(KTied(rank=2, init_std=0.1, init_spread=0.5)),
    Case(ClippedLowRank(rank=2, floor=0.05, init_std=0.1)),
    Case(MatrixNormal(init_std=0.1)),
    Case(MatrixNormalDiagonal(diagonal="kronecker", init_std=0.1)),
    # A dense factor over the 5,000 entries of the first layer would fill 200 MB.
    Case(Full(init_std=0.1), shapes=((12, 8), (8, 5)), draws=4000),
]
PRIORS: list[Prior] = [Normal(0.5, mean=0.1), LearnedNormal(scope="model"), GroupARD("both")]


def random_posterior(family: Family, shape: tuple[int, int], generator: torch.Generator) -> Posterior:
    """A posterior whose parameters all differ from where the family starts them."""
    mean = 0.3 * torch.randn(shape, dtype=torch.float64, generator=generator)
    parameters = {
        name: value + 0.02 * torch.randn(value.shape, dtype=torch.float64, generator=generator)
        for name, value in family.init(mean, generator=generator).items()
    }
    return family.build(parameters, event_dim=2)


def log_ratios(posterior: Posterior, prior: Prior, draws: Tensor) -> Tensor:
    """``log q(w) − log p(w)``."""
    given = prior.given(posterior, {})
    log_prior = torch.distributions.Normal(given.mean, given.precision.rsqrt()).log_prob(draws)
    return torch.cat([posterior.log_prob(some) for some in draws.split(CHUNK)]) - log_prior.sum((-2, -1))


def test_every_family_with_a_density_is_here() -> None:
    own = {kind for kind in Family.__subclasses__() if kind.__module__.startswith("bayesrule.posteriors")}
    assert {type(case.family) for case in CASES} == own - {Point}


@pytest.mark.parametrize("prior", PRIORS, ids=lambda prior: type(prior).__name__)
@pytest.mark.parametrize("case", CASES, ids=lambda case: type(case.family).__name__)
def test_the_closed_kl_is_the_mean_log_ratio(case: Case, prior: Prior) -> None:
    generator = torch.Generator().manual_seed(11)
    posteriors = {str(shape): random_posterior(case.family, shape, generator) for shape in case.shapes}
    shared = prior.share(posteriors.values())
    ratios = torch.stack([
        log_ratios(posterior, shared, posterior.rsample((case.draws,), generator=generator))
        for posterior in posteriors.values()
    ]).sum(0)  # fmt: skip

    closed = total_kl(posteriors, prior).item()
    standard_error = ratios.std().item() / case.draws**0.5
    limit = float(stats.norm.isf(FAILURE_RATE / 2 / (len(CASES) * len(PRIORS)))) * standard_error
    assert abs(ratios.mean().item() - closed) < limit
    assert 2 * limit < 0.01 * closed, "too few draws: an error of 1 % could pass"

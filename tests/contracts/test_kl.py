"""One KL for every pair of posterior and prior: against dense multivariate normals, and by its properties."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import hypothesis
import pytest
import torch
from dense_oracle import dense
from examples import GAUSSIANS, Example, exported, families, family_example, noise
from hypothesis import strategies as st
from prior_examples import EXACT, PRIORS, PriorExample, every_prior
from scipy import optimize
from torch import Tensor
from torch.distributions import MultivariateNormal

from bayesrule.linalg import MatrixView
from bayesrule.posteriors import (
    Diagonal,
    Family,
    Full,
    GaussianPosterior,
    KTied,
    MatrixNormal,
    MatrixNormalDiagonal,
    Part,
    Point,
    PointPosterior,
    Posterior,
)
from bayesrule.priors import (
    ARD,
    DiagonalNormal,
    GroupARD,
    HeNormal,
    LearnedNormal,
    Normal,
    Prior,
    kl_divergence,
    total_kl,
)

BOUNDS = [example for example in GAUSSIANS if not example.operator.exact_logdet]
RANDOM_FAMILIES = [family for family in families() if not isinstance(family, Point)]


def dense_kl(posterior: Posterior, prior: DiagonalNormal) -> float:
    """By `torch.distributions`, from the posterior's dense matrix."""
    assert isinstance(posterior, GaussianPosterior)
    event = posterior.event_shape
    q = MultivariateNormal(posterior.mean.flatten(), torch.from_numpy(dense(posterior.covariance)))
    variance = prior.precision.detach().reciprocal().expand(event).flatten()
    p = MultivariateNormal(prior.mean.expand(event).flatten(), torch.diag(variance))
    return torch.distributions.kl_divergence(q, p).item()


def random_example(family: Family, shape: tuple[int, ...]) -> Example:
    example = family_example(family, shape)
    assert example is not None
    return example


def scaled(example: Example, seed: int, size: float) -> Posterior:
    """All parameters of an example moved by noise of a given size."""
    generator = torch.Generator().manual_seed(seed)
    moved = {name: value + size * noise(generator, *value.shape) for name, value in example.parameters.items()}
    return example.build(moved)


def test_every_family_is_compared() -> None:
    assert {type(family) for family in RANDOM_FAMILIES} == set(exported(Family)) - {Point}


@pytest.mark.parametrize("example", EXACT, ids=str)
def test_the_kl_is_that_of_dense_normals(example: Example) -> None:
    for prior in PRIORS:
        expected = dense_kl(example.posterior, prior.given(example.posterior))
        assert prior.kl(example.posterior).item() == pytest.approx(expected, rel=1e-9, abs=1e-9), prior.name


@pytest.mark.parametrize("family", [MatrixNormal(0.5), MatrixNormalDiagonal("kronecker", 0.5), KTied(3, 0.5)], ids=str)
@every_prior
def test_the_kl_of_a_wide_layer(family: Family, prior: PriorExample) -> None:
    posterior = random_example(family, (3, 7)).posterior
    assert prior.kl(posterior).item() == pytest.approx(dense_kl(posterior, prior.given(posterior)), rel=1e-9)


@pytest.mark.parametrize("shape", [(1,), (6,)], ids=str)
@pytest.mark.parametrize("family", [Diagonal(0.5), Full(0.5)], ids=str)
@every_prior
def test_the_kl_of_a_bias(family: Family, shape: tuple[int], prior: PriorExample) -> None:
    posterior = random_example(family, shape).posterior
    assert prior.kl(posterior).item() == pytest.approx(dense_kl(posterior, prior.given(posterior)), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("prior", [HeNormal(), GroupARD("channel"), GroupARD("row"), LearnedNormal()], ids=str)
@pytest.mark.parametrize("family", [MatrixNormal(0.5), Full(0.5)], ids=str)
def test_the_kl_of_a_weight_with_its_bias_as_a_row(family: Family, prior: Prior) -> None:
    parts = (Part("weight", MatrixView((3, 2, 2, 2))), Part("bias", (3,)))
    found = random_example(family, (9, 3)).posterior
    assert isinstance(found, GaussianPosterior)
    posterior = GaussianPosterior(found.mean, found.covariance, parts)
    expected = dense_kl(posterior, prior.given(posterior, {}))
    assert kl_divergence(posterior, prior).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("example", BOUNDS, ids=str)
@hypothesis.settings(max_examples=30)
@hypothesis.given(st.integers(0, 2**31), st.floats(0, 2))
def test_the_kl_of_a_free_diagonal_is_an_upper_bound(example: Example, seed: int, size: float) -> None:
    posterior = scaled(example, seed, size)
    prior = PRIORS[seed % len(PRIORS)]
    truth = dense_kl(posterior, prior.given(posterior))
    assert prior.kl(posterior).item() >= truth - 1e-9 * max(1.0, truth)


@pytest.mark.parametrize("example", GAUSSIANS, ids=str)
def test_a_batch_is_its_members_one_by_one(example: Example) -> None:
    batch = example.batch(2, 3)
    together = example.build(batch)
    for prior in PRIORS:
        kept = prior.hyperparameters(together)
        kl = kl_divergence(together, prior.make(tuple(together.event_shape)), kept)
        assert kl.shape == (2, 3)
        for i, j in ((0, 0), (0, 2), (1, 1)):
            one = example.build({name: value[i, j] for name, value in batch.items()})
            own = {name: value[i, j] for name, value in kept.items()}
            expected = kl_divergence(one, prior.make(tuple(one.event_shape)), own)
            torch.testing.assert_close(kl[i, j], expected, rtol=1e-10, atol=1e-10, msg=prior.name)


@every_prior
def test_a_point_contributes_nothing(prior: PriorExample) -> None:
    for batch in ((), (4,)):
        mean = noise(torch.Generator().manual_seed(0), *batch, 5, 3)
        kl = kl_divergence(PointPosterior(mean, event_dim=2), prior.make((5, 3)))
        assert kl.shape == batch
        assert kl.dtype == mean.dtype
        assert (kl == 0).all()


@every_prior
def test_points_beside_others_change_nothing(prior: PriorExample) -> None:
    posterior = random_example(MatrixNormal(0.5), (5, 3)).posterior
    point = PointPosterior(7 * torch.ones(5, 3, dtype=torch.float64), event_dim=2)
    kept = {"weight": prior.hyperparameters(posterior)}
    total = total_kl({"point": point, "weight": posterior}, prior.make((5, 3)), kept)
    torch.testing.assert_close(total, prior.kl(posterior), rtol=1e-14, atol=0)
    assert total_kl({"one": point, "two": point}, prior.make((5, 3))) == 0


@every_prior
def test_the_kl_is_a_sum_over_layers(prior: PriorExample) -> None:
    posterior = random_example(MatrixNormal(0.5), (5, 3)).posterior
    kept = {name: prior.hyperparameters(posterior) for name in ("one", "two")}
    twice = total_kl({"one": posterior, "two": posterior}, prior.make((5, 3)), kept)
    torch.testing.assert_close(twice, 2 * prior.kl(posterior), rtol=1e-14, atol=0)


@pytest.mark.parametrize("family", RANDOM_FAMILIES, ids=str)
def test_the_kl_is_a_sum_over_weights(family: Family) -> None:
    """n weights at the same distance from the prior have n times the KL of one of them."""
    without_spread = {"init_spread": 0.0} if "init_spread" in {field.name for field in fields(family)} else {}
    even = replace(family, **without_spread)
    posterior = even.build(even.init(torch.full((6, 8), 0.3, dtype=torch.float64)), event_dim=2)
    std = posterior.stddev[0, 0].item()
    one = math.log(0.7 / std) + (std**2 + 0.3**2) / (2 * 0.7**2) - 0.5
    assert kl_divergence(posterior, Normal(0.7)).item() == pytest.approx(48 * one, rel=1e-12)


@pytest.mark.parametrize("family", RANDOM_FAMILIES, ids=str)
def test_the_kl_to_itself_is_zero(family: Family) -> None:
    """Every family starts with independent entries, as the prior's are."""
    initial = family.init(noise(torch.Generator().manual_seed(0), 5, 6))
    posterior = family.build(initial, event_dim=2)
    kl = kl_divergence(posterior, Normal(posterior.stddev, mean=posterior.mean))
    assert kl.item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("family", RANDOM_FAMILIES, ids=str)
@hypothesis.settings(max_examples=30)
@hypothesis.given(st.integers(0, 2**31), st.floats(0, 2), st.floats(-3, 3))
def test_the_kl_is_never_negative(family: Family, seed: int, size: float, log_std: float) -> None:
    posterior = scaled(random_example(family, (4, 4)), seed, size)
    assert kl_divergence(posterior, Normal(math.exp(log_std))) >= 0
    for prior in (LearnedNormal(), ARD(), GroupARD("row"), GroupARD("both")):
        assert kl_divergence(posterior, prior) >= -1e-12, prior


@pytest.mark.parametrize("prior", [Normal(0.7), ARD(), GroupARD("row")], ids=str)
@pytest.mark.parametrize("family", RANDOM_FAMILIES, ids=str)
def test_gradients_in_the_unconstrained_parameters(family: Family, prior: Prior) -> None:
    example = random_example(family, (4, 4))
    names = list(example.parameters)

    def kl(*values: Tensor) -> Tensor:
        return kl_divergence(example.build(dict(zip(names, values, strict=True))), prior)

    values = [value.clone().requires_grad_() for value in example.parameters.values()]
    assert torch.autograd.gradcheck(kl, values)


@pytest.mark.parametrize("centre", [0.0, 0.3])
def test_one_learned_scale_for_a_model_is_the_best_for_all_its_layers(centre: float) -> None:
    posteriors: dict[str, Posterior] = {
        "weight": random_example(MatrixNormal(0.5), (5, 3)).posterior,
        "kernel": random_example(KTied(2, 0.2), (4, 6)).posterior,
        "bias": random_example(Diagonal(0.1), (3,)).posterior,
        "head": PointPosterior(torch.ones(3, 2, dtype=torch.float64), event_dim=2),
    }
    gaussians = [posterior for posterior in posteriors.values() if isinstance(posterior, GaussianPosterior)]

    def summed(log_std: float) -> float:
        prior = DiagonalNormal(
            torch.tensor(centre, dtype=torch.float64), torch.tensor(-2 * log_std, dtype=torch.float64).exp()
        )
        return sum(dense_kl(posterior, prior) for posterior in gaussians)

    best = optimize.minimize_scalar(summed, bracket=(-1.0, 0.0, 1.0), tol=1e-10)
    by_model = total_kl(posteriors, LearnedNormal("model", mean=centre)).item()
    assert by_model == pytest.approx(best.fun, abs=1e-8)
    assert total_kl(posteriors, LearnedNormal("layer", mean=centre)).item() < by_model - 0.1


def test_the_shared_scale_carries_gradients_to_every_layer() -> None:
    examples = [random_example(Diagonal(0.5), (4, 3)), random_example(MatrixNormal(0.2), (3, 2))]
    sizes = [len(example.parameters) for example in examples]
    values = [value.clone().requires_grad_() for example in examples for value in example.parameters.values()]

    def kl(*values: Tensor) -> Tensor:
        own = [dict(zip(examples[0].parameters, values[: sizes[0]], strict=True))]
        own += [dict(zip(examples[1].parameters, values[sizes[0] :], strict=True))]
        built = {
            str(index): example.build(mine) for index, (example, mine) in enumerate(zip(examples, own, strict=True))
        }
        return total_kl(built, LearnedNormal("model"))

    assert torch.autograd.gradcheck(kl, values)

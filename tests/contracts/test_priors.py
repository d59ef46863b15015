"""The contract every exported prior keeps: its law is the one defined, for every posterior, part and type."""

from __future__ import annotations

import inspect

import pytest
import torch
from dense_oracle import array
from examples import SHAPES
from prior_examples import BY_GRADIENT, FIXED, PRETRAINED, PRIORS, Array, PriorExample, Shape, every_prior, posterior_of
from scipy import integrate, stats

import bayesrule.priors as br
from bayesrule.errors import InvalidArgument
from bayesrule.linalg import MatrixView
from bayesrule.posteriors import Diagonal, GaussianPosterior, MatrixNormal, Part
from bayesrule.priors import HeNormal, LearnedNormal, Normal, Prior, kl_divergence


def test_every_exported_prior_has_an_example() -> None:
    exported = (getattr(br, name) for name in br.__all__)
    kinds = {each for each in exported if inspect.isclass(each) and issubclass(each, Prior)}
    assert {type(example.make((5, 3))) for example in PRIORS} == {
        kind for kind in kinds if not inspect.isabstract(kind)
    }


@pytest.mark.parametrize("shape", [*SHAPES, (4,)], ids=str)
@pytest.mark.parametrize("prior", FIXED, ids=str)
def test_a_fixed_prior_has_the_law_it_is_defined_by(prior: PriorExample, shape: Shape) -> None:
    posterior = posterior_of(Diagonal(), shape)
    given = prior.given(posterior)
    assert prior.std is not None
    for got, want in ((given.mean, prior.mean(shape)), (given.precision.rsqrt(), prior.std(shape))):
        expected = torch.as_tensor(want, dtype=torch.float64).expand(shape)
        torch.testing.assert_close(got.expand(shape), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("shape", [(2, 3), (3,)], ids=str)
@every_prior
def test_the_kl_is_the_integral_over_every_entry(prior: PriorExample, shape: Shape) -> None:
    posterior = posterior_of(Diagonal(init_std=0.5), shape)
    given = prior.given(posterior)
    values = (posterior.mean, posterior.stddev, given.mean, given.precision.rsqrt())
    mean, std, prior_mean, prior_std = (array(value.expand(shape)) for value in values)

    def integrand(standard: float) -> Array:
        w = mean + std * standard
        log_ratio = stats.norm.logpdf(w, mean, std) - stats.norm.logpdf(w, prior_mean, prior_std)
        return stats.norm.pdf(standard) * log_ratio

    total = integrate.quad_vec(integrand, -12, 12, epsabs=1e-12)[0].sum()
    assert prior.kl(posterior).item() == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize("shape", [(5, 3), (4,)], ids=str)
def test_a_prior_around_the_start_keeps_the_start(shape: Shape) -> None:
    start, later = posterior_of(Diagonal(init_std=0.5), shape), posterior_of(Diagonal(init_std=0.2), shape)
    moved_on = GaussianPosterior(later.mean + 1, later.covariance)
    prior = PRETRAINED.make(shape)
    kept = prior.hyperparameters(start)
    assert not any(value.requires_grad for value in kept.values())
    expected = kl_divergence(moved_on, Normal(0.4, mean=start.mean))
    torch.testing.assert_close(kl_divergence(moved_on, prior, kept), expected, rtol=1e-14, atol=0)


@pytest.mark.parametrize("prior", [*BY_GRADIENT, PRETRAINED], ids=str)
def test_a_prior_asks_for_what_the_caller_was_to_keep(prior: PriorExample) -> None:
    with pytest.raises(InvalidArgument, match="must be handed its hyper-parameters") as error:
        kl_divergence(posterior_of(Diagonal(), (5, 3)), prior.make((5, 3)))
    assert "prior.hyperparameters(posterior)" in error.value.remedy


def test_only_a_scale_for_the_whole_model_is_shared() -> None:
    alone = [prior.make((5, 3)) for prior in PRIORS if prior.name != "LearnedNormal around 0.3"]
    assert all(prior.sharing is None for prior in alone)
    assert LearnedNormal("model").sharing == LearnedNormal("model").sharing is not None
    assert LearnedNormal("model").sharing != LearnedNormal("model", mean=0.3).sharing


WEIGHT, BIAS = Part("weight", MatrixView((3, 2, 2, 2))), Part("bias", (3,))


def test_he_scales_a_bias_apart_from_the_weight_it_is_a_row_of() -> None:
    posterior = posterior_of(MatrixNormal(), (9, 3), (WEIGHT, BIAS))
    precision = HeNormal(gain=2.0, bias_std=0.5).given(posterior, {}).precision.expand(9, 3)
    expected = torch.tensor([8 / 4.0] * 8 + [4.0], dtype=torch.float64)[:, None].expand(9, 3)
    torch.testing.assert_close(precision, expected, rtol=1e-14, atol=0)


def test_he_scales_every_weight_of_a_vector_by_its_own_fan_in() -> None:
    parts = (WEIGHT, BIAS, Part("other", MatrixView((4, 3))))
    posterior = posterior_of(Diagonal(), (24 + 3 + 12,), parts)
    precision = HeNormal().given(posterior, {}).precision
    expected = torch.tensor([4.0] * 24 + [1.0] * 3 + [1.5] * 12, dtype=torch.float64)
    torch.testing.assert_close(precision, expected, rtol=1e-14, atol=0)


@every_prior
def test_a_prior_takes_the_type_of_its_posterior(prior: PriorExample) -> None:
    double = posterior_of(Diagonal(init_std=0.5), (5, 3))
    single = Diagonal().build({"mean": double.mean.float(), "log_std": double.stddev.log().float()}, event_dim=2)
    kl = kl_divergence(single, prior.make((5, 3)), {k: v.float() for k, v in prior.hyperparameters(double).items()})
    assert kl.dtype == torch.float32
    assert kl.item() == pytest.approx(prior.kl(double).item(), rel=1e-5)

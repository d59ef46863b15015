"""What is read off a prediction, for every likelihood, against scipy draw by draw."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

import bayesrule as br
from bayesrule.likelihoods import Likelihood
from predictive_cases import CASES, CLASSES, DRAWS, EXAMPLES, Case, close, gaussian, outputs_of


def test_shown_by_what_it_is_of() -> None:
    p = br.Predictive(torch.zeros(5, 4, 2), br.Categorical(), seed=3)
    assert repr(p) == "Predictive(5 draws of outputs (4, 2), likelihood=Categorical(), seed=3)"


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_moments_split_the_variance_of_the_mixture(case: Case) -> None:
    p = case.predictive
    means, variances = case.frozen.mean(), case.frozen.var()
    close(p.mean, means.mean(0))
    close(p.epistemic_std, means.std(0))
    close(p.aleatoric_std, np.sqrt(variances.mean(0)))
    close(p.std, np.sqrt((variances + means**2).mean(0) - means.mean(0) ** 2))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_log_prob_averages_densities(case: Case) -> None:
    y = case.targets.double().numpy()
    law = case.frozen
    densities = (law.logpmf(y) if isinstance(law.dist, stats.rv_discrete) else law.logpdf(y)).sum(-1)
    close(case.predictive.log_prob(case.targets), special.logsumexp(densities, axis=0) - math.log(DRAWS))


def test_log_prob_of_sure_draws_does_not_underflow() -> None:
    outputs = torch.tensor([[[1000.0]], [[-1000.0]]], dtype=torch.float64)
    close(br.Predictive(outputs, br.Bernoulli()).log_prob(torch.ones(1, 1)), [math.log(0.5)])
    far = br.Predictive(outputs, gaussian(0.1)).log_prob(torch.zeros(1, 1))
    close(far, stats.norm(0, 0.1).logpdf([1000.0]))


def test_categorical_probabilities_are_averaged_and_logits_are_not() -> None:
    outputs = outputs_of(4)
    p = br.Predictive(outputs, br.Categorical())
    probs = special.softmax(outputs.numpy(), axis=-1)
    close(p.probs, probs.mean(0))
    close(p.mean, probs.mean(0))
    close(p.std, np.sqrt(probs.mean(0) * (1 - probs.mean(0))))  # a one-hot entry is a Bernoulli variable
    close(p.epistemic_std, probs.std(0))
    close(p.log_prob(CLASSES), np.log(probs.mean(0)[np.arange(EXAMPLES), CLASSES]))
    assert (p.probs - outputs.mean(0).softmax(-1)).abs().max() > 0.05


@pytest.mark.parametrize("columns", [1, 3])
def test_bernoulli_probabilities_are_averaged_and_logits_are_not(columns: int) -> None:
    outputs = outputs_of(columns)
    p = br.Predictive(outputs, br.Bernoulli())
    close(p.probs, special.expit(outputs.numpy()).mean(0))
    assert p.probs.shape == (EXAMPLES, columns)
    assert (p.probs - outputs.mean(0).sigmoid()).abs().max() > 0.05


@given(seed=st.integers(0, 10**6), scale=st.floats(0.01, 30), draws=st.integers(1, 6), classes=st.integers(2, 5))
def test_entropy_and_mutual_information(seed: int, scale: float, draws: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(draws, 3, classes, generator=generator, dtype=torch.float64)
    p = br.Predictive(logits, br.Categorical())
    probs = special.softmax(logits.numpy(), axis=-1)
    total = stats.entropy(probs.mean(0), axis=-1)
    within = stats.entropy(probs, axis=-1).mean(0)
    close(p.entropy, total)
    close(p.mutual_information, np.maximum(total - within, 0))
    assert (p.mutual_information >= 0).all()
    assert (p.mutual_information <= min(math.log(draws), math.log(classes)) + 1e-12).all()


def test_one_logit_is_two_classes() -> None:
    logit = outputs_of(1)
    one = br.Predictive(logit, br.Bernoulli())
    two = br.Predictive(torch.cat([torch.zeros_like(logit), logit], -1), br.Categorical())
    close(one.entropy.squeeze(-1), two.entropy)
    close(one.mutual_information.squeeze(-1), two.mutual_information)
    close(one.probs.squeeze(-1), two.probs[:, 1])


def test_several_columns_have_an_entropy_each() -> None:
    outputs = outputs_of(3)
    p = br.Predictive(outputs, br.Bernoulli())
    for column in range(3):
        alone = br.Predictive(outputs[..., column : column + 1], br.Bernoulli())
        close(p.entropy[:, column], alone.entropy[:, 0])
        close(p.mutual_information[:, column], alone.mutual_information[:, 0])


@pytest.mark.parametrize("likelihood", [br.Categorical(), br.Bernoulli()])
def test_draws_that_agree_have_no_mutual_information(likelihood: Likelihood) -> None:
    agreeing = outputs_of(3)[:1].expand(9, -1, -1)
    p = br.Predictive(agreeing, likelihood)
    assert p.mutual_information.max() <= 1e-15
    assert p.epistemic_std.max() <= 1e-15
    assert p.entropy.min() > 0.01


@pytest.mark.parametrize("likelihood", [br.Categorical(), br.Bernoulli()])
def test_rounding_makes_no_mutual_information_negative(likelihood: Likelihood) -> None:
    agreeing = torch.randn(1, 1000, 3).expand(9, -1, -1)
    information = br.Predictive(agreeing, likelihood).mutual_information
    assert information.min() == 0
    assert information.max() < 1e-6


def test_sure_draws_that_disagree_have_nothing_else() -> None:
    outputs = torch.tensor([[[800.0, -800.0]], [[-800.0, 800.0]]], dtype=torch.float64)
    p = br.Predictive(outputs, br.Categorical())
    close(p.entropy, [math.log(2)])
    close(p.mutual_information, [math.log(2)])


def test_further_dimensions_are_examples() -> None:
    outputs = torch.randn(DRAWS, 3, 4, 2, dtype=torch.float64)
    flat = outputs.reshape(DRAWS, 12, 2)
    regression = [br.Predictive(each, gaussian(0.3)) for each in (outputs, flat)]
    levels = torch.tensor([0.1, 0.9], dtype=torch.float64)
    for name in ("mean", "std", "epistemic_std", "aleatoric_std"):
        got, expected = (getattr(p, name) for p in regression)
        close(got, expected.reshape(3, 4, 2).numpy())
    close(regression[0].quantile(levels), regression[1].quantile(levels).reshape(2, 3, 4, 2).numpy())
    targets = torch.randn(3, 4, 2, dtype=torch.float64)
    got = regression[0].log_prob(targets)
    close(got, regression[1].log_prob(targets.reshape(12, 2)).reshape(3, 4).numpy())
    classes = [br.Predictive(each, br.Categorical()) for each in (outputs, flat)]
    for name in ("probs", "entropy", "mutual_information"):
        got, expected = (getattr(p, name) for p in classes)
        close(got, expected.reshape(3, 4, *expected.shape[1:]).numpy())
    assert classes[0].samples().shape == (DRAWS, 3, 4)

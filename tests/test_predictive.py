"""What is read off a prediction, for every likelihood, against scipy draw by draw."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, special, stats
from torch import Tensor

import bayesrule as br
from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported
from bayesrule.likelihoods import GaussianGammaNoise, Likelihood, StudentT

DRAWS, EXAMPLES = 7, 5
FAILURE_RATE = 1e-6


@dataclass(frozen=True)
class Case:
    """A likelihood, outputs for it, targets, and scipy's law of a target at given outputs."""

    likelihood: Likelihood
    outputs: Tensor
    targets: Tensor
    law: Callable[[np.ndarray], Any]

    @property
    def predictive(self) -> br.Predictive:
        return br.Predictive(self.outputs, self.likelihood)

    @property
    def frozen(self) -> Any:
        """The laws of all the draws."""
        return self.law(self.outputs.numpy())


def gaussian(std: float, *, learn: bool = False) -> br.Gaussian:
    return br.Gaussian(torch.tensor(std, dtype=torch.float64), learn=learn)


def learned_gaussian() -> br.Gaussian:
    likelihood = gaussian(1.0, learn=True)
    with torch.no_grad():
        likelihood.log_noise_std.fill_(math.log(0.4))
    return likelihood.requires_grad_(False)


def updated_gamma_noise() -> GaussianGammaNoise:
    likelihood = GaussianGammaNoise().double()
    likelihood.update(3.0, 20)
    return likelihood


def heteroscedastic(outputs: np.ndarray) -> Any:
    mean, raw = np.split(outputs, 2, axis=-1)
    return stats.norm(mean, 1e-3 + np.log1p(np.exp(raw)))


def outputs_of(size: int, *, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 2 * torch.randn(DRAWS, EXAMPLES, size, generator=generator, dtype=torch.float64)


def cases() -> dict[str, Case]:
    numbers = outputs_of(2)[0] + 0.3
    stds = torch.tensor([0.3, 2.0], dtype=torch.float64)
    bits = torch.tensor([[0, 1], [1, 1], [0, 0], [1, 0], [0, 1]])
    counts = torch.tensor([[0.0, 1], [3, 0], [2, 9], [40, 1], [1, 1]])
    noise = updated_gamma_noise()
    gamma_std = math.sqrt((6 + 1.5) / (6 + 10))
    t = StudentT(torch.tensor(3.0, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64))
    return {
        "gaussian": Case(gaussian(0.3), outputs_of(2), numbers, lambda f: stats.norm(f, 0.3)),
        "gaussian per output": Case(br.Gaussian(stds), outputs_of(2), numbers, lambda f: stats.norm(f, stds.numpy())),
        "gaussian learned": Case(learned_gaussian(), outputs_of(2), numbers, lambda f: stats.norm(f, 0.4)),
        "gamma noise": Case(noise, outputs_of(2), numbers, lambda f: stats.norm(f, gamma_std)),
        "heteroscedastic": Case(br.HeteroscedasticGaussian(), outputs_of(4), numbers, heteroscedastic),
        "student t": Case(t, outputs_of(1), numbers[:, :1], lambda f: stats.t(6, f, math.sqrt(2 / 3))),
        "poisson": Case(br.Poisson(), outputs_of(2), counts, lambda f: stats.poisson(np.exp(f))),
        "bernoulli": Case(br.Bernoulli(), outputs_of(2), bits, lambda f: stats.bernoulli(special.expit(f))),
        "bernoulli, one column": Case(
            br.Bernoulli(), outputs_of(1), bits[:, :1], lambda f: stats.bernoulli(special.expit(f))
        ),
    }  # fmt: skip


CASES = cases()
GAUSSIAN = ["gaussian", "gaussian per output", "gaussian learned", "gamma noise", "heteroscedastic"]
CLASSES = torch.tensor([0, 3, 2, 1, 0])
LEVELS = (1e-4, 0.05, 0.5, 0.9, 0.9999)


def close(got: Tensor, expected: Any, tolerance: float = 1e-12) -> None:
    expected = torch.as_tensor(np.asarray(expected))
    assert got.dtype == torch.float64
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


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


@pytest.mark.parametrize("name", GAUSSIAN)
def test_gaussian_quantiles_are_those_of_the_mixture(name: str) -> None:
    case = CASES[name]
    got = case.predictive.quantile(torch.tensor(LEVELS, dtype=torch.float64))
    means, stds = (np.broadcast_to(each, (DRAWS, EXAMPLES, 2)) for each in (case.frozen.mean(), case.frozen.std()))
    for i, level in enumerate(LEVELS):
        for place in np.ndindex(EXAMPLES, 2):
            components = stats.norm(means[:, *place], stds[:, *place])

            def excess(y: float, components: Any = components, level: float = level) -> float:
                return components.cdf(y).mean() - level

            own = components.ppf(level)  # the mixture's quantile lies between those of its components
            root = optimize.brentq(excess, own.min() - 1, own.max() + 1, xtol=1e-13, rtol=1e-14)
            # Between far components the distribution function is flat: there its value is compared, not its argument.
            found = got[i, *place].item()
            assert abs(excess(found)) < 1e-14 or found == pytest.approx(root, rel=1e-9)
    close(case.predictive.quantile(0.05), got[1].numpy())


def test_the_quantile_of_far_components_lies_in_the_right_one() -> None:
    outputs = torch.tensor([-1e6, 0.0, 1e6], dtype=torch.float64).reshape(3, 1, 1)
    p = br.Predictive(outputs, gaussian(0.5))
    close(p.quantile(0.5), [[0.0]], 1e-9)
    close(p.quantile(1 / 6), [[-1e6]], 1e-9)
    close(p.quantile(5 / 6), [[1e6]], 1e-9)
    inside = -1e6 + 0.5 * stats.norm.ppf(0.3)
    close(p.quantile(0.1), [[inside]], 1e-12)


def test_one_draw_has_the_quantiles_of_its_normal() -> None:
    p = br.Predictive(outputs_of(2)[:1], gaussian(0.3))
    close(p.quantile(0.975), stats.norm(outputs_of(2)[0].numpy(), 0.3).ppf(0.975), 1e-10)


@pytest.mark.parametrize("name", ["poisson", "student t"])
def test_other_quantiles_are_those_of_the_samples(name: str) -> None:
    p = CASES[name].predictive
    levels = torch.tensor([0.1, 0.5, 0.8], dtype=torch.float64)
    close(p.quantile(levels), np.quantile(p.samples().numpy(), levels.numpy(), axis=0))
    close(p.quantile(0.3), np.quantile(p.samples().numpy(), 0.3, axis=0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("likelihood", [br.Gaussian(0.3), br.Poisson()])
def test_half_precision_outputs_keep_the_level(dtype: torch.dtype, likelihood: Likelihood) -> None:
    rough = outputs_of(2).to(dtype)
    got, expected = (br.Predictive(each, likelihood).quantile(0.999) for each in (rough, rough.float()))
    assert torch.equal(got, expected)


@pytest.mark.parametrize("case", [*CASES.values(), Case(br.Categorical(), outputs_of(4), CLASSES, stats.norm)])
def test_samples_are_one_target_for_each_draw_by_the_seed(case: Case) -> None:
    first, again = case.predictive.samples(), case.predictive.samples()
    other = br.Predictive(case.outputs, case.likelihood, seed=1).samples()
    assert first.shape == (DRAWS, *case.targets.shape)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    case.likelihood.log_prob(case.outputs, first)  # refuses values outside the support


def test_samples_leave_the_global_generator_alone() -> None:
    state = torch.get_rng_state()
    before = CASES["gaussian"].predictive.samples()
    torch.manual_seed(7)
    assert torch.equal(before, CASES["gaussian"].predictive.samples())
    torch.manual_seed(0)
    assert torch.equal(state, torch.get_rng_state())


def test_each_sample_follows_its_own_draw() -> None:
    outputs = outputs_of(2)
    sharp = br.Predictive(outputs, gaussian(1e-9)).samples()
    close(sharp, outputs.numpy(), 1e-7)
    sure = br.Predictive(1e3 * outputs, br.Categorical()).samples()
    assert torch.equal(sure, outputs.argmax(-1))


def test_samples_have_the_moments_of_the_mixture() -> None:
    generator = torch.Generator().manual_seed(3)
    outputs = torch.randn(20_000, 2, 1, generator=generator, dtype=torch.float64)
    p = br.Predictive(outputs, gaussian(0.7))
    samples, tests = p.samples(), 4
    z = stats.norm.isf(FAILURE_RATE / tests / 2)
    noise = (samples - outputs) / 0.7  # given the draws, independent standard normals
    assert noise.mean(0).abs().max() < z / math.sqrt(len(outputs))
    low, high = (stats.chi2(len(outputs)).ppf(q) for q in (FAILURE_RATE / tests / 2, 1 - FAILURE_RATE / tests / 2))
    assert low < noise.square().sum(0).min()
    assert noise.square().sum(0).max() < high


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


NEEDING_A_LIKELIHOOD = {
    **{name: lambda p, name=name: getattr(p, name) for name in (
        "mean", "std", "epistemic_std", "aleatoric_std", "probs", "entropy", "mutual_information"
    )},
    "log_prob": lambda p: p.log_prob(torch.zeros(EXAMPLES, 2)),
    "samples": lambda p: p.samples(),
    "quantile": lambda p: p.quantile(0.5),
}  # fmt: skip


@pytest.mark.parametrize("ask", NEEDING_A_LIKELIHOOD.values(), ids=NEEDING_A_LIKELIHOOD)
def test_without_a_likelihood_there_are_only_outputs(ask: Callable[[br.Predictive], Tensor]) -> None:
    p = br.Predictive(outputs_of(2), None)
    assert p.outputs.shape == (DRAWS, EXAMPLES, 2)
    with pytest.raises(InvalidArgument, match=r"needs a likelihood.*likelihood=br\.Categorical\(\)"):
        ask(p)


@pytest.mark.parametrize("ask", NEEDING_A_LIKELIHOOD.values(), ids=NEEDING_A_LIKELIHOOD)
def test_examples_are_never_read_as_entries_of_a_target(ask: Callable[[br.Predictive], Tensor]) -> None:
    squeezed = br.Predictive(outputs_of(2)[..., 0], br.Bernoulli())
    with pytest.raises(ShapeMismatch, match=r"\(draws, examples, …, outputs\).*\(7, 5\).*\(examples, 1\)"):
        ask(squeezed)


@pytest.mark.parametrize("name", [*GAUSSIAN, "poisson", "student t"])
def test_numbers_have_no_class_probabilities(name: str) -> None:
    p = CASES[name].predictive
    kind = type(p.likelihood).__name__
    with pytest.raises(Unsupported, match=rf"probs is defined for classes.*{kind}.*quantile"):
        _ = p.probs
    with pytest.raises(Unsupported, match="defined for classes"):
        _ = p.entropy
    with pytest.raises(Unsupported, match="mutual_information is defined for classes"):
        _ = p.mutual_information


@pytest.mark.parametrize("likelihood", [br.Categorical(), br.Bernoulli()])
def test_classes_have_no_quantiles(likelihood: Likelihood) -> None:
    with pytest.raises(Unsupported, match=r"Classes have no quantiles.*probs"):
        br.Predictive(outputs_of(2), likelihood).quantile(0.5)


@pytest.mark.parametrize("level", [0.0, 1.0, -0.1, 1.5, math.nan, torch.tensor([0.5, 1.0])])
def test_a_level_outside_the_unit_interval_is_refused(level: float | Tensor) -> None:
    for name in ("gaussian", "poisson"):
        with pytest.raises(InvalidArgument, match="strictly between 0 and 1"):
            CASES[name].predictive.quantile(level)


def test_levels_are_a_number_or_a_vector() -> None:
    for name in ("gaussian", "poisson"):
        with pytest.raises(ShapeMismatch, match=r"one number or a vector.*\(2, 2\)"):
            CASES[name].predictive.quantile(torch.full((2, 2), 0.5))


def test_targets_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="targets do not fit the outputs"):
        CASES["gaussian"].predictive.log_prob(torch.zeros(EXAMPLES + 1, 2))
    with pytest.raises(InvalidArgument, match="class indices from 0 to 3"):
        br.Predictive(outputs_of(4), br.Categorical()).log_prob(torch.full((EXAMPLES,), 4))

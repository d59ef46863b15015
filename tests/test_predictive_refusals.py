"""What a prediction refuses to tell."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import bayesrule as br
from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported
from bayesrule.likelihoods import Likelihood, StudentT
from predictive_cases import CASES, DRAWS, EXAMPLES, GAUSSIAN, outputs_of

NEEDING_A_LIKELIHOOD = {
    **{name: lambda p, name=name: getattr(p, name) for name in (
        "mean", "std", "epistemic_std", "aleatoric_std", "probs", "entropy", "mutual_information"
    )},
    "log_prob": lambda p: p.log_prob(torch.zeros(EXAMPLES, 2)),
    "samples": lambda p: p.samples(),
    "quantile": lambda p: p.quantile(0.5),
    "cdf": lambda p: p.cdf(torch.zeros(EXAMPLES, 2)),
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


@pytest.mark.parametrize("name", [*GAUSSIAN, "gaussian mixture", "poisson", "student t"])
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


@pytest.mark.parametrize("likelihood", [br.Categorical(), br.Bernoulli(), br.Poisson(), StudentT(3.0, 2.0)])
def test_only_normals_have_a_distribution_function(likelihood: Likelihood) -> None:
    with pytest.raises(Unsupported, match=rf"cdf is defined for Gaussian.*{type(likelihood).__name__}.*quantile"):
        br.Predictive(outputs_of(2), likelihood).cdf(torch.zeros(EXAMPLES, 2))


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
    for shape in ((EXAMPLES + 1, 2), (DRAWS, EXAMPLES, 2), (EXAMPLES,)):
        with pytest.raises(ShapeMismatch, match="targets do not fit the outputs"):
            CASES["gaussian"].predictive.cdf(torch.zeros(shape))
    with pytest.raises(InvalidArgument, match="finite numbers"):
        CASES["gaussian"].predictive.cdf(torch.full((EXAMPLES, 2), math.nan))
    with pytest.raises(InvalidArgument, match="class indices from 0 to 3"):
        br.Predictive(outputs_of(4), br.Categorical()).log_prob(torch.full((EXAMPLES,), 4))

"""Which scales, centres, options and posteriors a prior takes, and how it refuses the others."""

from __future__ import annotations

import math

import jaxtyping
import pytest
import torch
from examples import bernoulli, mixture
from prior_examples import PriorExample, Shape, every_prior, posterior_of
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported
from bayesrule.posteriors import Diagonal, Posterior
from bayesrule.priors import GroupARD, HeNormal, LearnedNormal, Normal, kl_divergence, total_kl

BAD_SCALES = [
    0.0, -1.0, math.nan, math.inf, torch.tensor([1.0, 0.0]), torch.tensor([-1.0]), torch.tensor([1.0, math.nan]),
    torch.tensor([[math.inf], [1.0]]),
]  # fmt: skip


@pytest.mark.parametrize("std", BAD_SCALES, ids=str)
def test_a_standard_deviation_must_be_positive_and_finite(std: float | Tensor) -> None:
    with pytest.raises(InvalidArgument, match="must be positive and finite") as error:
        Normal(std)
    assert "standard deviation" in error.value.remedy


@pytest.mark.parametrize("std", [0.0, -1.0, math.nan, math.inf])
def test_he_scales_must_be_positive_and_finite(std: float) -> None:
    with pytest.raises(InvalidArgument, match="gain must be positive and finite"):
        HeNormal(gain=std)
    with pytest.raises(InvalidArgument, match="bias_std must be positive and finite"):
        HeNormal(bias_std=std)


@pytest.mark.parametrize("shape", [(5,), (3, 5), (1, 4), (2, 5, 4)], ids=str)
def test_a_scale_or_centre_must_fit_the_weight(shape: Shape) -> None:
    posterior = posterior_of(Diagonal(), (5, 3))
    for name, prior in (("std", Normal(torch.ones(shape))), ("mean", Normal(1.0, mean=torch.ones(shape)))):
        with pytest.raises(ShapeMismatch, match=rf"{name} must broadcast .* \(5, 3\)") as error:
            kl_divergence(posterior, prior)
        assert error.value.got == shape


def test_a_scale_must_not_stretch_the_weight() -> None:
    with pytest.raises(ShapeMismatch, match=r"must broadcast .* \(1, 1\)"):
        kl_divergence(posterior_of(Diagonal(), (1, 1)), Normal(torch.ones(5, 3)))


def test_unknown_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # Off under test, as they are for a user: else they would speak before the library does.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(InvalidArgument, match='"row", "column", "both" or "channel"'):
        GroupARD("rows")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match='"closed-form" or "gradient"'):
        GroupARD(learn="em")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="iterations must be at least 1"):
        GroupARD(iterations=0)
    with pytest.raises(InvalidArgument, match='a number, a tensor or "pretrained"'):
        Normal(1.0, mean="zero")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match='"layer" or "model"'):
        LearnedNormal("network")  # type: ignore[arg-type]


@every_prior
@pytest.mark.parametrize(
    "posterior", [bernoulli((5, 3)).posterior, mixture((5, 3)).posterior], ids=lambda q: q.structure
)
def test_a_posterior_without_a_covariance_is_refused(prior: PriorExample, posterior: Posterior) -> None:
    for kl in (kl_divergence, lambda q, p: total_kl({"weight": q}, p)):
        with pytest.raises(Unsupported, match="for Gaussian posteriors") as error:
            kl(posterior, prior.make((5, 3)))
        assert error.value.got == posterior.structure
        assert error.value.remedy

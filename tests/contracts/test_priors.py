"""The contract every exported prior keeps: its law is the one defined, its learned scales are the best there are."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import hypothesis
import jaxtyping
import numpy as np
import pytest
import torch
from dense_oracle import array, dense
from examples import GAUSSIANS, SHAPES, Example, bernoulli, family_example, mixture, moved, noise
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, optimize, stats
from torch import Tensor

import bayesrule.priors as br
from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported
from bayesrule.linalg import MatrixView
from bayesrule.posteriors import Diagonal, Family, GaussianPosterior, KTied, MatrixNormal, Part, Posterior
from bayesrule.priors import ARD, GroupARD, HeNormal, LearnedNormal, Normal, Prior, kl_divergence, total_kl

Array = NDArray[np.float64]
Shape = tuple[int, ...]


def scales(*shape: int) -> Tensor:
    """Standard deviations between 0.3 and 1.3."""
    return 0.3 + torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def centres(*shape: int) -> Tensor:
    return noise(torch.Generator().manual_seed(4), *shape)


def column(shape: Shape) -> Shape:
    """One entry for each row."""
    return (shape[0], *(1,) * (len(shape) - 1))


def members(shape: Shape, axis: int) -> Array:
    """(entries, groups): 1 where an entry lies in a row (axis 0) or column (axis 1); a vector's entries stand alone."""
    size = shape[axis] if len(shape) > 1 else shape[0]
    labels = np.indices(shape)[axis if len(shape) > 1 else 0].ravel()
    return np.eye(size)[labels]


def rows_and_columns(shape: Shape) -> Array:
    """All columns but one, whose scale is that of the rows."""
    return members(shape, 0) if len(shape) == 1 else np.hstack([members(shape, 0), members(shape, 1)[:, 1:]])


@dataclass(frozen=True)
class PriorExample:
    """A prior for events of some shape, beside its definition.

    Attributes:
        name: Its name.
        make: The prior.
        std: The standard deviations of a fixed prior.
        mean: Their centre.
        design: The choice of a learned prior: its log-precisions are ``design @ h`` for some vector h.
    """

    name: str
    make: Callable[[Shape], Prior]
    std: Callable[[Shape], Tensor | float] | None = None
    mean: Callable[[Shape], Tensor | float] = lambda shape: 0.0
    design: Callable[[Shape], Array] | None = None

    def __str__(self) -> str:
        return self.name

    def hyperparameters(self, posterior: Posterior) -> dict[str, Tensor]:
        """Those the caller keeps, away from where they start."""
        start = self.make(tuple(posterior.event_shape)).hyperparameters(posterior)
        generator = torch.Generator().manual_seed(5)
        return {name: moved(value, generator, by=0.5) for name, value in start.items()}

    def kl(self, posterior: Posterior) -> Tensor:
        return kl_divergence(posterior, self.make(tuple(posterior.event_shape)), self.hyperparameters(posterior))

    def given(self, posterior: Posterior) -> br.DiagonalNormal:
        return self.make(tuple(posterior.event_shape)).given(posterior, self.hyperparameters(posterior))


FIXED = [
    PriorExample("Normal", lambda shape: Normal(0.7), std=lambda shape: 0.7),
    PriorExample("Normal by entry", lambda shape: Normal(scales(*shape)), std=lambda shape: scales(*shape)),
    PriorExample(
        "Normal by row", lambda shape: Normal(scales(*column(shape))), std=lambda shape: scales(*column(shape))
    ),
    PriorExample("Normal by column", lambda shape: Normal(scales(shape[-1])), std=lambda shape: scales(shape[-1])),
    PriorExample(
        "Normal around weights",
        lambda shape: Normal(0.4, mean=centres(*shape)),
        std=lambda shape: 0.4,
        mean=lambda shape: centres(*shape),
    ),
    PriorExample(
        "HeNormal", lambda shape: HeNormal(), std=lambda shape: math.sqrt(2 / shape[0]) if len(shape) > 1 else 1.0
    ),
    PriorExample(
        "HeNormal by gain",
        lambda shape: HeNormal(gain=0.8, bias_std=0.3),
        std=lambda shape: 0.8 / math.sqrt(shape[0]) if len(shape) > 1 else 0.3,
    ),
]
CLOSED_FORM = [
    PriorExample("LearnedNormal", lambda shape: LearnedNormal(), design=lambda shape: np.ones((math.prod(shape), 1))),
    PriorExample(
        "LearnedNormal around 0.3",
        lambda shape: LearnedNormal("model", mean=0.3),
        mean=lambda shape: 0.3,
        design=lambda shape: np.ones((math.prod(shape), 1)),
    ),
    PriorExample("ARD", lambda shape: ARD(), design=lambda shape: np.eye(math.prod(shape))),
    PriorExample("GroupARD row", lambda shape: GroupARD("row"), design=lambda shape: members(shape, 0)),
    PriorExample("GroupARD column", lambda shape: GroupARD("column"), design=lambda shape: members(shape, 1)),
    PriorExample("GroupARD both", lambda shape: GroupARD("both", iterations=200), design=rows_and_columns),
    PriorExample("GroupARD channel", lambda shape: GroupARD("channel"), design=lambda shape: members(shape, 0)),
]
BY_GRADIENT = [
    PriorExample(f"GroupARD {group} by gradient", lambda shape, group=group: GroupARD(group, learn="gradient"))
    for group in ("row", "column", "both", "channel")
]
PRETRAINED = PriorExample("Normal around the start", lambda shape: Normal(0.4, mean="pretrained"))
PRIORS = [*FIXED, *CLOSED_FORM, *BY_GRADIENT, PRETRAINED]
EXACT = [example for example in GAUSSIANS if example.operator.exact_logdet]


def posterior_of(family: Family, shape: Shape, parts: tuple[Part, ...] = ()) -> GaussianPosterior:
    example = family_example(family, shape)
    assert example is not None
    found = example.posterior
    assert isinstance(found, GaussianPosterior)
    return GaussianPosterior(found.mean, found.covariance, parts)


@dataclass(frozen=True)
class Optimum:
    """The least KL that a prior's choice allows, found numerically."""

    kl: float
    precision: Array

    @classmethod
    def of(cls, prior: PriorExample, posterior: GaussianPosterior) -> Optimum:
        """``min_h ½[−Σ log p + Σ p E[(w − m)²] − d − log det Σ]`` with ``log p = design h``: a convex function."""
        shape, covariance = tuple(posterior.event_shape), dense(posterior.covariance)
        assert prior.design is not None
        design = prior.design(shape)
        squares = np.diag(covariance) + (array(posterior.mean).ravel() - prior.mean(shape)) ** 2
        constant = len(squares) + np.linalg.slogdet(covariance)[1]

        def weighted(h: Array) -> Array:
            return np.exp(design @ h) * squares

        found = optimize.minimize(
            lambda h: 0.5 * (weighted(h).sum() - (design @ h).sum() - constant),
            np.zeros(design.shape[1]),
            jac=lambda h: 0.5 * design.T @ (weighted(h) - 1),
            hess=lambda h: 0.5 * design.T @ (weighted(h)[:, None] * design),
            method="trust-exact",
            options={"gtol": 1e-12},
        )
        return cls(float(found.fun), np.exp(design @ found.x).reshape(shape))


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
@pytest.mark.parametrize("prior", PRIORS, ids=str)
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


@pytest.mark.parametrize("example", EXACT, ids=str)
def test_learned_scales_are_the_best_of_their_kind(example: Example) -> None:
    posterior = example.posterior
    assert isinstance(posterior, GaussianPosterior)
    for prior in CLOSED_FORM:
        best = Optimum.of(prior, posterior)
        assert prior.kl(posterior).item() == pytest.approx(best.kl, abs=1e-8), prior.name
        precision = array(prior.given(posterior).precision.expand(posterior.event_shape))
        np.testing.assert_allclose(precision, best.precision, rtol=1e-6, err_msg=prior.name)


@pytest.mark.parametrize("shape", [(5, 3), (4,)], ids=str)
@pytest.mark.parametrize("prior", CLOSED_FORM, ids=str)
@hypothesis.settings(max_examples=30)
@hypothesis.given(st.integers(0, 2**31), st.floats(1e-4, 3))
def test_no_other_scales_are_better(prior: PriorExample, shape: Shape, seed: int, size: float) -> None:
    posterior = posterior_of(Diagonal(init_std=0.5), shape)
    assert prior.design is not None
    design = torch.from_numpy(prior.design(shape))
    step = size * (design @ noise(torch.Generator().manual_seed(seed), design.shape[1])).reshape(shape)
    given = prior.given(posterior)
    other = Normal((given.precision * step.exp()).rsqrt(), mean=given.mean)
    assert kl_divergence(posterior, other) >= prior.kl(posterior) - 1e-12


@pytest.mark.parametrize("family", [Diagonal(init_std=0.5), MatrixNormal(init_std=0.5)], ids=str)
@pytest.mark.parametrize("prior", CLOSED_FORM, ids=str)
def test_the_gradient_is_that_of_the_kl_with_its_scales_found_anew(prior: PriorExample, family: Family) -> None:
    example = family_example(family, (3, 4))
    assert example is not None
    generator = torch.Generator().manual_seed(8)
    parameters = {name: value.clone().requires_grad_() for name, value in example.parameters.items()}
    gradients = torch.autograd.grad(prior.kl(example.build(parameters)), list(parameters.values()))

    def best_kl(step: float, direction: list[Tensor]) -> float:
        pairs = zip(example.parameters.items(), direction, strict=True)
        posterior = example.build({name: value + step * along for (name, value), along in pairs})
        assert isinstance(posterior, GaussianPosterior)
        return Optimum.of(prior, posterior).kl

    for _ in range(3):
        direction = [noise(generator, *value.shape) for value in parameters.values()]
        analytic = sum((gradient * along).sum().item() for gradient, along in zip(gradients, direction, strict=True))
        numeric = (best_kl(1e-5, direction) - best_kl(-1e-5, direction)) / 2e-5
        assert analytic == pytest.approx(numeric, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("example", EXACT, ids=str)
def test_the_more_a_prior_may_choose_the_smaller_the_kl(example: Example) -> None:
    kl = {prior.name: prior.kl(example.posterior).item() for prior in CLOSED_FORM}
    for one in ("GroupARD row", "GroupARD column"):
        chain = [kl["ARD"], kl["GroupARD both"], kl[one], kl["LearnedNormal"]]
        assert all(smaller <= larger + 1e-9 for smaller, larger in pairwise(chain)), (one, chain)


@pytest.mark.parametrize("family", [Diagonal(init_std=0.5), KTied(rank=2, init_std=0.5)], ids=str)
def test_ard_of_a_diagonal_posterior(family: Family) -> None:
    posterior = posterior_of(family, (5, 3))
    signal_to_noise = array(posterior.mean.square() / posterior.variance)
    assert kl_divergence(posterior, ARD()).item() == pytest.approx(0.5 * np.log1p(signal_to_noise).sum(), rel=1e-12)


def test_ard_of_a_posterior_without_mass_is_finite() -> None:
    posterior = posterior_of(Diagonal(init_std=1e-200, init_spread=0.0), (2, 2))
    zero = GaussianPosterior(torch.zeros_like(posterior.mean), posterior.covariance)
    for prior in (ARD(), GroupARD("row"), GroupARD("both")):
        assert prior.given(zero, {}).precision.isfinite().all()


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


@pytest.mark.parametrize("prior", PRIORS, ids=str)
def test_a_prior_takes_the_type_of_its_posterior(prior: PriorExample) -> None:
    double = posterior_of(Diagonal(init_std=0.5), (5, 3))
    single = Diagonal().build({"mean": double.mean.float(), "log_std": double.stddev.log().float()}, event_dim=2)
    kl = kl_divergence(single, prior.make((5, 3)), {k: v.float() for k, v in prior.hyperparameters(double).items()})
    assert kl.dtype == torch.float32
    assert kl.item() == pytest.approx(prior.kl(double).item(), rel=1e-5)


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


@pytest.mark.parametrize("prior", PRIORS, ids=str)
@pytest.mark.parametrize(
    "posterior", [bernoulli((5, 3)).posterior, mixture((5, 3)).posterior], ids=lambda q: q.structure
)
def test_a_posterior_without_a_covariance_is_refused(prior: PriorExample, posterior: Posterior) -> None:
    for kl in (kl_divergence, lambda q, p: total_kl({"weight": q}, p)):
        with pytest.raises(Unsupported, match="for Gaussian posteriors") as error:
            kl(posterior, prior.make((5, 3)))
        assert error.value.got == posterior.structure
        assert error.value.remedy

"""The contract every registered likelihood keeps, and what each adds to it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import integrate, stats
from torch import Tensor
from torch.func import functional_call, grad, vmap

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.likelihoods import (
    LIKELIHOODS,
    Bernoulli,
    Categorical,
    GammaPrecision,
    Gaussian,
    GaussianGammaNoise,
    HeteroscedasticGaussian,
    Likelihood,
    PointLikelihood,
    Poisson,
    StudentT,
)
from bayesrule.random import Law, Replay, draw

Array = NDArray[np.float64]
FAILURE_RATE = 1e-6


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def scalar(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


def gamma_noise() -> GaussianGammaNoise:
    """Prior Gamma(6, 5), posterior Gamma(6 + 7, 5 + 3)."""
    likelihood = GaussianGammaNoise(scalar(6.0), scalar(5.0))
    likelihood.update(6.0, 14)
    return likelihood


def softplus(x: Array) -> Array:
    return np.log1p(np.exp(x))


def softmax(x: Array) -> Array:
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def categorical_log_prob(f: Array, y: Array) -> Array:
    return stats.multinomial.logpmf(np.eye(f.shape[-1])[y], n=1, p=softmax(f))


def student_log_prob(f: Array, y: Array) -> Array:
    law = stats.multivariate_t(loc=np.zeros(f.shape[-1]), shape=4.0 / 9.0 * np.eye(f.shape[-1]), df=18)
    return law.logpdf(y - f)


@dataclass(frozen=True)
class Case:
    """A likelihood with oracles in numpy: log density, mean and variance, from outputs ``f`` and targets ``y``."""

    name: str
    build: Callable[[], Likelihood]
    target_dim: int
    log_prob: Callable[[Array, Array], Array]
    mean: Callable[[Array], Array]
    variance: Callable[[Array], Array]

    def outputs(self, *leading: int) -> Tensor:
        size = self.build().output_size(self.target_dim)
        return torch.randn(*leading, size, dtype=torch.float64)

    def targets(self, *examples: int) -> Tensor:
        """Valid targets, from laws other than the model's."""
        likelihood, shape = self.build(), (*examples, self.target_dim)
        if isinstance(likelihood, Categorical):
            return torch.randint(0, self.target_dim, examples)
        if isinstance(likelihood, Bernoulli):
            return torch.randint(0, 2, shape).double()
        if isinstance(likelihood, Poisson):
            return torch.randint(0, 9, shape).double()
        return torch.randn(shape, dtype=torch.float64)


def std_of(raw: Array) -> Array:
    return 0.01 + softplus(raw)


CASES = (
    Case(
        "gaussian",
        lambda: Gaussian(scalar(0.7)),
        3,
        lambda f, y: stats.norm.logpdf(y, f, 0.7).sum(-1),
        lambda f: f,
        lambda f: np.full_like(f, 0.49),
    ),
    Case(
        "gaussian-one-target",
        lambda: Gaussian(scalar(0.3), learn=True),
        1,
        lambda f, y: stats.norm.logpdf(y, f, 0.3).sum(-1),
        lambda f: f,
        lambda f: np.full_like(f, 0.09),
    ),
    Case(
        "gaussian-learned-per-entry",
        lambda: Gaussian(double(0.5, 2.0), learn=True),
        2,
        lambda f, y: stats.norm.logpdf(y, f, [0.5, 2.0]).sum(-1),
        lambda f: f,
        lambda f: np.broadcast_to([0.25, 4.0], f.shape),
    ),
    Case(
        "gaussian-gamma-noise",
        gamma_noise,
        2,
        lambda f, y: stats.norm.logpdf(y, f, math.sqrt(8 / 13)).sum(-1),
        lambda f: f,
        lambda f: np.full_like(f, 8 / 13),
    ),
    Case(
        "heteroscedastic",
        lambda: HeteroscedasticGaussian(min_std=0.01),
        2,
        lambda f, y: stats.norm.logpdf(y, f[..., :2], std_of(f[..., 2:])).sum(-1),
        lambda f: f[..., :2],
        lambda f: std_of(f[..., 2:]) ** 2,
    ),
    Case(
        "student-t",
        lambda: StudentT(scalar(9.0), scalar(4.0)),
        3,
        student_log_prob,
        lambda f: f,
        lambda f: np.full_like(f, 0.5),
    ),
    Case(
        "categorical",
        Categorical,
        4,
        categorical_log_prob,
        softmax,
        lambda f: softmax(f) - softmax(f) ** 2,
    ),
    Case(
        "bernoulli",
        Bernoulli,
        3,
        lambda f, y: stats.bernoulli.logpmf(y, sigmoid(f)).sum(-1),
        sigmoid,
        lambda f: sigmoid(f) - sigmoid(f) ** 2,
    ),
    Case(
        "poisson",
        Poisson,
        2,
        lambda f, y: stats.poisson.logpmf(y, np.exp(f)).sum(-1),
        np.exp,
        np.exp,
    ),
)
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def assert_equal(actual: Tensor, expected: Array | Tensor | float, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(
        actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=tolerance, atol=tolerance, check_device=False
    )


# ---------------------------------------------------------------------------------------------------- the contract


def test_every_registered_likelihood_has_a_case() -> None:
    assert {type(case.build()) for case in CASES} == set(LIKELIHOODS)


@pytest.mark.parametrize("family", LIKELIHOODS)
def test_no_concrete_method_is_overridden(family: type[Likelihood]) -> None:
    for base in (Likelihood, PointLikelihood):
        if issubclass(family, base):
            concrete = {
                name
                for name, value in vars(base).items()
                if callable(value) and not name.startswith("__") and not getattr(value, "__isabstractmethod__", False)
            }
            assert not concrete & set(vars(family))


@every_case
def test_log_prob_equals_the_oracle(case: Case) -> None:
    outputs, targets = case.outputs(5), case.targets(5)
    assert_equal(case.build().log_prob(outputs, targets), case.log_prob(outputs.numpy(), targets.numpy()))


@every_case
@pytest.mark.parametrize("leading", [(), (2, 3)])
def test_log_prob_has_the_leading_shape_of_the_outputs(case: Case, leading: tuple[int, ...]) -> None:
    outputs, targets = case.outputs(*leading), case.targets(*leading)
    expected = case.log_prob(outputs.numpy(), targets.numpy())
    assert_equal(case.build().log_prob(outputs, targets), np.asarray(expected).reshape(leading))


@every_case
def test_leading_draws_meet_every_target(case: Case) -> None:
    outputs, targets = case.outputs(2, 3, 5), case.targets(5)
    expected = np.stack([[case.log_prob(f.numpy(), targets.numpy()) for f in row] for row in outputs])
    assert_equal(case.build().log_prob(outputs, targets), expected)


@every_case
def test_moments_equal_the_oracle(case: Case) -> None:
    outputs = case.outputs(2, 5)
    mean, variance = case.build().moments(outputs)
    assert mean.shape == variance.shape == (2, 5, case.target_dim)
    assert_equal(mean, case.mean(outputs.numpy()))
    assert_equal(variance, np.array(case.variance(outputs.numpy())))


@every_case
def test_samples_have_the_stated_moments(case: Case) -> None:
    draws = 100_000
    outputs = case.outputs()
    samples = case.build().sample(outputs.expand(draws, -1), generator=torch.Generator().manual_seed(1))
    values = np.eye(case.target_dim)[samples.numpy()] if samples.ndim == 1 else samples.numpy()
    assert values.shape == (draws, case.target_dim)
    mean, variance = case.mean(outputs.numpy()), case.variance(outputs.numpy())
    quantile = stats.norm.isf(FAILURE_RATE / 2 / (2 * case.target_dim))  # shared by all means and all variances
    squares = (values - mean) ** 2
    assert (np.abs(values.mean(0) - mean) < quantile * np.sqrt(variance / draws)).all()
    assert (np.abs(squares.mean(0) - variance) < quantile * squares.std(0) / math.sqrt(draws)).all()


@every_case
def test_samples_are_targets_without_gradient_and_follow_their_generator(case: Case) -> None:
    likelihood, outputs = case.build(), case.outputs(2, 5).requires_grad_()
    first, second = (likelihood.sample(outputs, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)
    assert not first.requires_grad
    assert likelihood.log_prob(outputs, first).isfinite().all()
    torch.manual_seed(3)
    assert torch.equal(likelihood.sample(outputs), first)


@every_case
def test_predictive_moments_are_those_of_the_mixture(case: Case) -> None:
    outputs = case.outputs(4, 5)
    means, variances = case.mean(outputs.numpy()), np.array(case.variance(outputs.numpy()))
    predictive = case.build().predictive_moments(outputs)
    mixture_mean = means.sum(0) / 4
    second_moment = (variances + means**2).sum(0) / 4
    assert_equal(predictive.mean, mixture_mean)
    assert_equal(predictive.epistemic_variance, ((means - mixture_mean) ** 2).sum(0) / 4)
    assert_equal(predictive.aleatoric_variance, variances.sum(0) / 4)
    assert_equal(predictive.total_variance, second_moment - mixture_mean**2)


@every_case
def test_one_draw_has_no_epistemic_variance(case: Case) -> None:
    assert (case.build().predictive_moments(case.outputs(1, 5)).epistemic_variance == 0).all()


@every_case
def test_mixture_log_prob_averages_densities(case: Case) -> None:
    outputs, targets = case.outputs(4, 5), case.targets(5)
    densities = np.exp([case.log_prob(f.numpy(), targets.numpy()) for f in outputs])
    assert_equal(case.build().mixture_log_prob(outputs, targets), np.log(densities.sum(0) / 4))


@every_case
def test_mixture_accepts_one_draw_of_one_example(case: Case) -> None:
    likelihood, outputs, targets = case.build(), case.outputs(1, 1), case.targets(1)
    assert_equal(likelihood.mixture_log_prob(outputs, targets), likelihood.log_prob(outputs[0], targets))


@every_case
def test_nll_is_a_mean_over_examples_and_draws(case: Case) -> None:
    likelihood, outputs, targets = case.build(), case.outputs(3, 5), case.targets(5)
    expected = sum(likelihood.expected_log_prob(f, y) for row in outputs for f, y in zip(row, targets, strict=True))
    assert_equal(likelihood.nll(outputs, targets), -expected / 15)


@every_case
def test_gradients_equal_finite_differences(case: Case) -> None:
    likelihood, outputs, targets = case.build(), case.outputs(2, 3).requires_grad_(), case.targets(3)
    for name in ("log_prob", "expected_log_prob"):
        assert torch.autograd.gradcheck(lambda f, name=name: getattr(likelihood, name)(f, targets), outputs)
    assert torch.autograd.gradgradcheck(lambda f: likelihood.expected_log_prob(f, targets), outputs)


@every_case
def test_per_example_gradients_by_vmap_equal_a_loop(case: Case) -> None:
    likelihood, outputs, targets = case.build(), case.outputs(5), case.targets(5)
    batched = vmap(grad(likelihood.expected_log_prob))(outputs, targets)
    leaf = outputs.clone().requires_grad_()
    likelihood.expected_log_prob(leaf, targets).sum().backward()
    assert_equal(batched, leaf.grad)


@dataclass
class Recorder:
    """Fresh noise, kept."""

    noises: list[Tensor]

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        self.noises.append(draw(shape, law, like))
        return self.noises[-1]


@every_case
def test_samples_are_a_function_of_the_noise_also_under_vmap(case: Case) -> None:
    likelihood, outputs, noises = case.build(), case.outputs(4, 5), []
    samples = likelihood.sample(outputs, Recorder(noises))
    replayed = vmap(lambda f, *rows: likelihood.sample(f, Replay(list(rows))))(outputs, *noises)
    assert torch.equal(replayed, samples)


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_outputs_are_lifted_to_float32(case: Case, dtype: torch.dtype) -> None:
    likelihood, outputs, targets = case.build().float(), case.outputs(5).to(dtype), case.targets(5)
    for method in (likelihood.log_prob, likelihood.expected_log_prob):
        assert method(outputs, targets).dtype == torch.float32
        assert_equal(method(outputs, targets), method(outputs.float(), targets), tolerance=0)
    assert likelihood.moments(outputs).variance.dtype == torch.float32
    sample = likelihood.sample(outputs)
    assert sample.dtype == (torch.int64 if isinstance(likelihood, Categorical) else torch.float32)


@every_case
def test_float32_outputs_stay_float32_beside_float64_noise(case: Case) -> None:
    likelihood, outputs, targets = case.build(), case.outputs(5).float(), case.targets(5)
    for rows in ((outputs, targets), (outputs[0], targets[0])):
        assert likelihood.log_prob(*rows).dtype == torch.float32
        assert likelihood.expected_log_prob(*rows).dtype == torch.float32
    assert {m.dtype for m in likelihood.moments(outputs)} == {torch.float32}


@every_case
def test_nothing_off_the_cpu_waits_for_values(case: Case) -> None:
    """Tensors of the meta device have no values: a look at one, which on a GPU would be a wait, raises."""
    likelihood = case.build().to("meta")
    outputs, targets = case.outputs(3, 5).to("meta"), case.targets(5).to("meta")
    assert likelihood.nll(outputs, targets).shape == ()
    assert likelihood.mixture_log_prob(outputs, targets).shape == (5,)
    assert likelihood.predictive_moments(outputs).mean.shape == (5, case.target_dim)
    assert likelihood.sample(outputs).shape[:2] == (3, 5)
    assert likelihood.kl().shape == ()


@pytest.mark.gpu
@every_case
def test_cuda_equals_cpu(case: Case) -> None:
    likelihood, outputs, targets = case.build(), case.outputs(3, 5), case.targets(5)
    on_gpu = copy.deepcopy(likelihood).cuda()
    for method in ("log_prob", "expected_log_prob", "mixture_log_prob", "nll"):
        expected = getattr(likelihood, method)(outputs, targets)
        assert_equal(getattr(on_gpu, method)(outputs.cuda(), targets.cuda()).cpu(), expected)
    assert on_gpu.log_prob(outputs.cuda(), on_gpu.sample(outputs.cuda())).isfinite().all()
    assert_equal(on_gpu.kl().cpu(), likelihood.kl())


@every_case
def test_state_travels_in_the_state_dict_and_in_copies(case: Case) -> None:
    source, outputs, targets = case.build(), case.outputs(5), case.targets(5)
    with torch.no_grad():
        for state in source.state_dict().values():
            state.mul_(1.25)
    fresh = case.build()
    fresh.load_state_dict(source.state_dict())
    for other in (fresh, copy.deepcopy(source)):
        assert torch.equal(other.expected_log_prob(outputs, targets), source.expected_log_prob(outputs, targets))


@every_case
def test_only_a_likelihood_with_its_own_posterior_has_a_kl(case: Case) -> None:
    likelihood = case.build()
    assert likelihood.kl().shape == ()
    assert (likelihood.kl() > 0) == isinstance(likelihood, GaussianGammaNoise)


# ------------------------------------------------------------------------------------------------- shapes and values

NUMERIC = (Gaussian(), GaussianGammaNoise(), HeteroscedasticGaussian(), StudentT(3.0, 2.0), Bernoulli(), Poisson())
every_numeric = pytest.mark.parametrize("likelihood", NUMERIC, ids=lambda x: type(x).__name__)


@every_numeric
@pytest.mark.parametrize("leading", [(1,), (6,), (3, 6), (6, 6), (3, 1)])
def test_one_number_per_example_may_lack_its_dimension(likelihood: Likelihood, leading: tuple[int, ...]) -> None:
    outputs = torch.randn(*leading, likelihood.output_size(1))
    column = torch.randint(0, 2, (leading[-1], 1))
    assert torch.equal(likelihood.log_prob(outputs, column[:, 0]), likelihood.log_prob(outputs, column))
    assert torch.equal(likelihood.nll(outputs, column[:, 0]), likelihood.nll(outputs, column))


@every_numeric
@pytest.mark.parametrize(
    ("leading", "target_dim", "shape"),
    [
        ((6,), 1, (5,)),
        ((6,), 1, (6, 6)),
        ((6,), 1, (1, 6)),
        ((6,), 2, (6,)),
        ((6,), 2, (6, 1)),
        ((6,), 2, (1, 2)),
        ((6,), 2, (4, 6, 2)),
        ((6, 3), 1, (6, 3)),
        ((6,), 3, ()),
    ],
)
def test_other_shapes_are_refused(
    likelihood: Likelihood, leading: tuple[int, ...], target_dim: int, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ShapeMismatch, match="targets do not fit the outputs"):
        likelihood.log_prob(torch.randn(*leading, likelihood.output_size(target_dim)), torch.zeros(shape))


@pytest.mark.parametrize("shape", [(6, 1), (5,), (6, 3), (2, 6)])
def test_class_indices_of_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ShapeMismatch, match="targets do not fit the outputs"):
        Categorical().log_prob(torch.randn(6, 3), torch.zeros(shape, dtype=torch.int64))


def test_a_mean_needs_examples() -> None:
    with pytest.raises(ShapeMismatch, match="needs an example dimension"):
        Gaussian().nll(torch.randn(6), torch.randn(6))
    with pytest.raises(ShapeMismatch, match="needs an example dimension"):
        Gaussian().nll(torch.randn(6, 6), torch.randn(6))
    with pytest.raises(InvalidArgument, match="zero examples"):
        Categorical().nll(torch.randn(0, 3), torch.zeros(0, dtype=torch.int64))


def test_a_mixture_needs_draws() -> None:
    for outputs in (torch.randn(6, 2), torch.randn(0, 6, 2)):
        with pytest.raises(ShapeMismatch, match="leading dimension of one or more posterior draws"):
            Gaussian().mixture_log_prob(outputs, torch.randn(6, 2))
    for outputs in (torch.randn(6), torch.randn(0, 6)):
        with pytest.raises(ShapeMismatch, match="leading dimension of one or more posterior draws"):
            Gaussian().predictive_moments(outputs)


def test_outputs_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="outputs must be floating point"):
        Categorical().moments(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ShapeMismatch, match="needs 2 outputs for each number"):
        HeteroscedasticGaussian().sample(torch.randn(4, 3))
    with pytest.raises(ShapeMismatch, match="needs 1 outputs for each number"):
        Gaussian().moments(torch.tensor(1.0))
    with pytest.raises(ShapeMismatch, match="Use Bernoulli"):
        Categorical().log_prob(torch.randn(4, 1), torch.zeros(4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("likelihood", "targets", "message"),
    [
        (Gaussian(), [[0.0, math.nan]], "finite numbers. Got: 1 other values, the first of them nan"),
        (Bernoulli(), [[0.5, 1.0]], "0 or 1. Got: 1 other values, the first of them 0.5"),
        (Bernoulli(), [[-1, 1]], "0 or 1"),
        (Poisson(), [[3, -1]], "whole numbers from 0. Got: 1 other values, the first of them -1"),
        (Poisson(), [[2.5, 1.0]], "whole numbers from 0"),
        (Poisson(), [[math.inf, 1.0]], "whole numbers from 0"),
        (Categorical(), [2], "class indices from 0 to 1. Got: 1 other values, the first of them 2"),
        (Categorical(), [-100], "class indices from 0 to 1"),
        (Categorical(), [1.0], "class indices must be int64 or int32"),
        (Categorical(), [True], "class indices must be int64 or int32"),
    ],
)
def test_impossible_targets_are_refused(likelihood: Likelihood, targets: list[float], message: str) -> None:
    outputs, values = torch.zeros(1, 2), torch.tensor(targets)
    for method in (likelihood.log_prob, likelihood.expected_log_prob, likelihood.nll):
        with pytest.raises(InvalidArgument, match=message):
            method(outputs, values)
    with pytest.raises(InvalidArgument, match=message):
        vmap(likelihood.log_prob)(outputs, values)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool, torch.float32])
def test_numeric_targets_may_have_any_dtype(dtype: torch.dtype) -> None:
    targets = torch.tensor([[1, 0]]).to(dtype)
    for likelihood in NUMERIC:
        outputs = torch.randn(1, likelihood.output_size(2), dtype=torch.float64)
        assert torch.equal(likelihood.log_prob(outputs, targets), likelihood.log_prob(outputs, targets.double()))


def test_int32_classes_equal_int64() -> None:
    outputs, targets = torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0])
    assert torch.equal(Categorical().log_prob(outputs, targets.int()), Categorical().log_prob(outputs, targets))


def test_noise_and_generator_exclude_each_other() -> None:
    with pytest.raises(InvalidArgument, match="noise and generator both given"):
        Gaussian().sample(torch.zeros(2, 1), Replay([torch.zeros(2, 1)]), generator=torch.Generator())


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_scales_must_be_positive(value: float, as_tensor: bool) -> None:
    given = torch.tensor(value) if as_tensor else value
    for name, build in (
        ("noise_std", lambda: Gaussian(given)),
        ("prior_shape", lambda: GaussianGammaNoise(given, 1.0)),
        ("prior_rate", lambda: GaussianGammaNoise(1.0, given)),
        ("shape", lambda: StudentT(given, 1.0)),
        ("rate", lambda: StudentT(1.0, given)),
        ("min_std", lambda: HeteroscedasticGaussian(value)),
    ):
        with pytest.raises(InvalidArgument, match=f"{name} must be positive and finite"):
            build()


def test_scales_of_another_kind_are_refused() -> None:
    with pytest.raises(ShapeMismatch, match="at most 1 dimensions"):
        Gaussian(torch.ones(2, 2))
    with pytest.raises(ShapeMismatch, match="at most 0 dimensions"):
        GaussianGammaNoise(torch.ones(2), 1.0)
    with pytest.raises(ShapeMismatch, match="and an entry"):
        Gaussian(torch.ones(0))
    with pytest.raises(InvalidArgument, match="floating point"):
        Gaussian(torch.tensor(1))
    for call in (Gaussian(torch.ones(3)).moments, Gaussian(torch.ones(3)).sample):
        with pytest.raises(ShapeMismatch, match="one entry for each entry of the target"):
            call(torch.zeros(5, 2))


# ------------------------------------------------------------------------------------------------ each one's own


def test_gaussian_learns_its_noise_only_if_asked() -> None:
    fixed, learned = Gaussian(noise_std=0.5), Gaussian(noise_std=0.5, learn=True)
    assert not list(fixed.parameters())
    assert [name for name, _ in learned.named_parameters()] == ["log_noise_std"]
    assert fixed.state_dict().keys() == learned.state_dict().keys()
    assert_equal(learned.noise_std, 0.5, 1e-6)


def test_the_learned_noise_that_fits_best_is_the_residuals_root_mean_square() -> None:
    residuals = torch.randn(50, 2, dtype=torch.float64) * double(0.5, 3.0)
    best = Gaussian(residuals.square().mean(0).sqrt(), learn=True)
    best.nll(torch.zeros_like(residuals), residuals).backward()
    assert_equal(best.log_noise_std.grad, torch.zeros(2))
    assert torch.autograd.gradcheck(
        lambda log_std: functional_call(_Nll(best), {"likelihood.log_noise_std": log_std}, (residuals,)),
        double(0.1, -0.4).requires_grad_(),
    )


class _Nll(torch.nn.Module):
    def __init__(self, likelihood: Likelihood) -> None:
        super().__init__()
        self.likelihood = likelihood

    def forward(self, targets: Tensor) -> Tensor:
        return self.likelihood.nll(torch.zeros_like(targets), targets)


def test_output_size_counts_means_and_scales() -> None:
    assert HeteroscedasticGaussian().output_size(3) == 6
    assert Gaussian().output_size(3) == Categorical().output_size(3) == 3


def test_heteroscedastic_noise_is_bounded_below_and_grows_linearly() -> None:
    likelihood = HeteroscedasticGaussian(min_std=0.01)
    outputs = torch.tensor([[0.0, -1e4], [0.0, 1e4]], requires_grad=True)
    value = likelihood.log_prob(outputs, torch.zeros(2, 1))
    assert_equal(value, stats.norm.logpdf(0.0, 0.0, [0.01, 1e4 + 0.01]), 1e-6)
    value.sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()


def test_bernoulli_keeps_the_digits_of_a_sure_prediction() -> None:
    value = Bernoulli().log_prob(double(50.0), double(1.0)).item()
    assert value == pytest.approx(-math.exp(-50.0), rel=1e-12, abs=0.0)


def test_categorical_sample_inverts_the_distribution_function() -> None:
    logits = torch.tensor([-1e4, 0.0, 0.0, -1e4]).expand(5, -1)
    uniform = torch.tensor([0.0, 0.49, 0.5, 0.99, 1 - 2**-24])
    assert Categorical().sample(logits, Replay([uniform])).tolist() == [1, 1, 2, 2, 2]


def test_probabilities_are_averaged_and_not_logits() -> None:
    outputs = double(-2.0, 2.0, 4.0).reshape(3, 1, 1)
    mean, epistemic, aleatoric = Bernoulli().predictive_moments(outputs)
    assert_equal(mean, sigmoid(np.array([-2.0, 2.0, 4.0])).mean().reshape(1, 1))
    assert_equal(epistemic + aleatoric, mean * (1 - mean))


def test_poisson_sample_inverts_the_distribution_function() -> None:
    rate, uniform = np.meshgrid(np.logspace(-6, 5, 23), np.array([1e-9, 0.001, 0.3, 0.7, 0.999, 1 - 1e-9]))
    noise = Replay([torch.from_numpy(uniform)])
    assert_equal(Poisson().sample(torch.from_numpy(rate).log(), noise), stats.poisson.ppf(uniform, rate), 0.0)


def test_poisson_samples_of_a_vanishing_rate_are_zero() -> None:
    assert (Poisson().sample(torch.full((100, 1), -1e4)) == 0).all()


@pytest.mark.parametrize("shape", [0.4, 2.5])
def test_student_samples_have_the_joint_law(shape: float) -> None:
    """Marginals are t; the squared radius over d follows F(d, 2a), which independent t entries would not."""
    samples = StudentT(scalar(shape), scalar(3.0)).sample(torch.zeros(20_000, 3, dtype=torch.float64)).numpy()
    standard = samples / math.sqrt(3.0 / shape)
    for entry in standard.T:
        assert stats.kstest(entry, stats.t(2 * shape).cdf).pvalue > FAILURE_RATE / 8
    assert stats.kstest((standard**2).mean(-1), stats.f(3, 2 * shape).cdf).pvalue > FAILURE_RATE / 8


def test_student_variance_is_infinite_for_heavy_tails() -> None:
    assert StudentT(1.0, 2.0).moments(torch.zeros(2, 1)).variance.isinf().all()


# ------------------------------------------------------------------------------------------------ Gamma noise


def gamma_density(posterior: GammaPrecision) -> Callable[[float], float]:
    return stats.gamma(posterior.shape.item(), scale=1 / posterior.rate.item()).pdf


def integral(integrand: Callable[[float], float]) -> float:
    return integrate.quad(integrand, 0.0, np.inf, epsabs=1e-13, epsrel=1e-12, limit=200)[0]


def test_expected_log_prob_equals_quadrature_over_the_precision() -> None:
    likelihood, outputs, targets = gamma_noise(), double(0.3, -1.2), double(1.0, -0.4)
    density = gamma_density(likelihood.posterior)
    residuals = (targets - outputs).numpy()
    expected = integral(lambda t: density(t) * stats.norm.logpdf(residuals, 0.0, t**-0.5).sum() if t > 0 else 0.0)
    assert_equal(likelihood.expected_log_prob(outputs, targets), expected, 1e-9)


def test_student_t_equals_quadrature_over_the_precision() -> None:
    likelihood, outputs, targets = gamma_noise(), double(0.3, -1.2), double(1.0, -0.4)
    density = gamma_density(likelihood.posterior)
    residuals = (targets - outputs).numpy()
    expected = integral(lambda t: density(t) * np.prod(stats.norm.pdf(residuals, 0.0, t**-0.5)) if t > 0 else 0.0)
    assert_equal(likelihood.student_t().log_prob(outputs, targets).exp(), expected, 1e-9)


def test_update_equals_the_normalised_posterior_on_a_grid() -> None:
    """Residuals of a known weight, so that the posterior over the precision is prior times likelihood, normalised."""
    outputs, targets = torch.randn(10, 2, dtype=torch.float64), torch.randn(10, 2, dtype=torch.float64)
    likelihood = GaussianGammaNoise(scalar(6.0), scalar(6.0))
    likelihood.update(likelihood.squared_residuals(outputs, targets).sum(), 20)
    precision = np.linspace(1e-6, 8.0, 40_001)
    residuals = (targets - outputs).numpy().ravel()
    log_joint = stats.gamma(6.0, scale=1 / 6.0).logpdf(precision)
    log_joint += stats.norm.logpdf(residuals[:, None], 0.0, precision**-0.5).sum(0)
    joint = np.exp(log_joint - log_joint.max())
    posterior = joint / integrate.simpson(joint, x=precision)
    np.testing.assert_allclose(gamma_density(likelihood.posterior)(precision), posterior, rtol=1e-9, atol=1e-9)


def test_update_solves_the_objective_in_the_noise() -> None:
    """The derivative of ``Σ E[log p] − KL`` in (a, b) vanishes at the updated posterior; weights are averaged over."""
    outputs, targets = torch.randn(7, 10, 2, dtype=torch.float64), torch.randn(10, 2, dtype=torch.float64)
    likelihood = GaussianGammaNoise(scalar(3.0), scalar(2.0))
    likelihood.update(likelihood.squared_residuals(outputs, targets).mean(0).sum(), 20)
    for buffer in (likelihood.posterior_shape, likelihood.posterior_rate):
        buffer.requires_grad_()
    (-10 * likelihood.nll(outputs, targets) - likelihood.kl()).backward()
    assert_equal(likelihood.posterior_shape.grad, 0.0)
    assert_equal(likelihood.posterior_rate.grad, 0.0)


def test_squared_residuals_are_summed_for_each_example() -> None:
    outputs, targets = torch.randn(3, 5, 2, dtype=torch.float64), torch.randn(5, 2, dtype=torch.float64)
    expected = [[sum((y - f) ** 2) for f, y in zip(draw, targets.numpy(), strict=True)] for draw in outputs.numpy()]
    assert_equal(GaussianGammaNoise().squared_residuals(outputs, targets), np.array(expected))


def test_update_starts_from_the_prior_and_may_go_part_of_the_way() -> None:
    likelihood = GaussianGammaNoise(scalar(6.0), scalar(5.0))
    for _ in range(2):
        likelihood.update(scalar(4.0), 10)
    assert (likelihood.posterior_shape.item(), likelihood.posterior_rate.item()) == (11.0, 7.0)
    likelihood.update(0.0, 0, step_size=0.25)
    assert (likelihood.posterior_shape.item(), likelihood.posterior_rate.item()) == (9.75, 6.5)


@pytest.mark.parametrize(
    ("squares", "count", "step_size"),
    [(-1.0, 3, 1.0), (math.nan, 3, 1.0), (1.0, -3, 1.0), (1.0, 3, 0.0), (1.0, 3, 1.5), (torch.ones(2), 3, 1.0)],
)
def test_impossible_updates_are_refused(squares: float | Tensor, count: int, step_size: float) -> None:
    with pytest.raises(InvalidArgument):
        GaussianGammaNoise().update(squares, count, step_size=step_size)


def test_kl_equals_torch_distributions_and_is_zero_at_the_prior() -> None:
    likelihood = gamma_noise()
    posterior, prior = (torch.distributions.Gamma(g.shape, g.rate) for g in (likelihood.posterior, likelihood.prior))
    assert_equal(likelihood.kl(), torch.distributions.kl_divergence(posterior, prior))
    assert GaussianGammaNoise(scalar(3.0), scalar(2.0)).kl() == 0


def test_float32_keeps_its_digits_after_many_examples() -> None:
    """With a shape of half a million, ``log Γ`` in float32 is off by whole units."""
    single, exact = GaussianGammaNoise(6.0, 6.0), GaussianGammaNoise(scalar(6.0), scalar(6.0))
    for likelihood in (single, exact):
        likelihood.update(123_456.0, 1_000_000)
    outputs, targets = torch.zeros(1, 3), torch.tensor([[0.25, -0.5, 0.0]])
    assert_equal(single.kl(), exact.kl(), 1e-6)
    expected = exact.student_t().log_prob(outputs.double(), targets)
    assert_equal(single.student_t().log_prob(outputs, targets), expected, 1e-6)
    expected = exact.expected_log_prob(outputs.double(), targets)
    assert_equal(single.expected_log_prob(outputs, targets), expected, 1e-6)


def test_the_prior_bounds_the_precision() -> None:
    likelihood = GaussianGammaNoise(scalar(6.0), scalar(6.0))
    likelihood.update(0.0, 100)
    assert_equal(likelihood.posterior.mean, 56 / 6)
    assert_equal(likelihood.noise_std, math.sqrt(6 / 56))

"""What every estimator owes, on every layer and posterior: the law of ``op(x, W)``, or a refusal that names a remedy.

Given its signs an output is affine in its standard normals, ``y = c + R ε``. So its law is read off exactly: the mean
is ``c`` and the covariance ``R Rᵀ``, to be compared with ``J vec(mean)`` and ``J Σ Jᵀ`` where ``op(x, W) = J vec W``.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial

import pytest
import torch
from examples import (
    Example,
    bernoulli,
    clipped,
    eigen_kronecker,
    exported,
    families,
    family_example,
    mixture,
    restricted,
)
from layers import NAMES, Layer, layer
from scipy import stats
from torch import Tensor
from torch.testing import assert_close

from bayesrule import estimators
from bayesrule.contractions import Contraction
from bayesrule.errors import Unsupported
from bayesrule.estimators import Auto, Estimator, Flipout, LocalReparam, Mean, WeightSample
from bayesrule.posteriors import (
    BlockTridiagonalCovariance,
    CovarianceOperator,
    DiagonalCovariance,
    Family,
    GaussianPosterior,
    KTied,
    MatrixNormal,
    PointPosterior,
    Posterior,
)
from bayesrule.random import FromGenerator, Law, Replay, draw

EXACT = {"rtol": 1e-10, "atol": 1e-12}
FAILURE_RATE = 1e-6
GAUSSIAN = (GaussianPosterior, PointPosterior)
ANY = (Posterior,)
Shape = tuple[int, int]
every_layer = pytest.mark.parametrize("layer_name", NAMES)

ESTIMATORS = {name: getattr(estimators, name)() for name in estimators.__all__ if name != "Estimator"}


def rank(family: Family) -> int:
    return family.rank if isinstance(family, KTied) else 0


POSTERIORS: dict[str, Callable[[Shape], Example | None]] = {
    **{str(family): partial(family_example, family) for family in families() if rank(family) <= 2},
    "ClippedLowRank": clipped,
    "EigenKronecker": eigen_kronecker,
    "Restricted(KTied)": lambda shape: restricted(KTied(1, 0.5), (shape[0] + 2, shape[1]), 1, shape[0]),
    "Restricted(MatrixNormal)": lambda shape: restricted(MatrixNormal(0.5), (shape[0] + 2, shape[1]), 1, shape[0]),
    "Mixture": mixture,
    "Bernoulli": bernoulli,
}
"""Every posterior over a matrix, for a matrix of any shape; None where a rank is above it."""


@dataclass
class Tape:
    """Fresh noise, kept with its law."""

    noises: list[Tensor] = field(default_factory=list)
    laws: list[Law] = field(default_factory=list)

    def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
        self.noises.append(draw(shape, law, like))
        self.laws.append(law)
        return self.noises[-1]

    @property
    def normals(self) -> int:
        return sum(noise.numel() for noise, law in zip(self.noises, self.laws, strict=True) if law == "normal")


@cache
def posterior_of(name: str, layer_name: str) -> Posterior | None:
    fan_in, fan_out = layer(layer_name).matrix.shape
    example = POSTERIORS[name]((fan_in, fan_out))
    return None if example is None else example.posterior


@cache
def weight_law(name: str, layer_name: str) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the whole flattened output, by the dense covariance of the weight."""
    posterior, linear_map = posterior_of(name, layer_name), layer(layer_name).linear_map
    mean = linear_map @ posterior.mean.flatten()
    linear_map = linear_map.masked_fill(layer(layer_name).fixed[:, None], 0)
    if isinstance(posterior, PointPosterior):
        return mean, torch.zeros(len(mean), len(mean), dtype=torch.float64)
    return mean, linear_map @ posterior.covariance.dense() @ linear_map.mT


@cache
def output_law(estimator: str, name: str, layer_name: str) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the estimator's flattened output, given its signs."""
    posterior, example, tape = posterior_of(name, layer_name), layer(layer_name), Tape()
    torch.manual_seed(0)
    drawn = ESTIMATORS[estimator](posterior, example.contraction, example.x, tape).flatten()
    sizes = [n.numel() for n, law in zip(tape.noises, tape.laws, strict=True) if law == "normal"]

    def output(normals: Tensor) -> Tensor:
        pieces = iter(normals.split(sizes))
        given = [
            next(pieces).reshape(noise.shape) if law == "normal" else noise
            for noise, law in zip(tape.noises, tape.laws, strict=True)
        ]
        return ESTIMATORS[estimator](posterior, example.contraction, example.x, Replay(given)).flatten()

    if not sum(sizes):
        return drawn, drawn.new_zeros(len(drawn), len(drawn))
    mean = output(drawn.new_zeros(sum(sizes)))
    root = torch.func.vmap(output)(torch.eye(sum(sizes), dtype=torch.float64)).mT - mean[:, None]
    normals = torch.cat([n.flatten() for n, law in zip(tape.noises, tape.laws, strict=True) if law == "normal"])
    assert_close(drawn, mean + root @ normals, **EXACT)
    return mean, root @ root.mT


def refuses(estimator: str, posterior: Posterior, contraction: Contraction) -> bool:
    """What `test_what_is_refused` pins, structure by structure."""
    if estimator == "Flipout":
        return not posterior.independent
    return estimator == "LocalReparam" and not posterior.projects(contraction)


def blocks(matrix: Tensor, positions: Tensor) -> Tensor:
    """(position, channel, channel): the covariance over the channels of each output row."""
    return matrix[positions[:, :, None], positions[:, None, :]]


def close(got: Tensor, wanted: Tensor, name: str) -> None:
    assert_close(got, wanted, **EXACT, msg=lambda detail: f"{name}: {detail}")


def accepted(estimator: str, layer_name: str, kinds: tuple[type[Posterior], ...] = GAUSSIAN) -> list[str]:
    """Posteriors an estimator takes on a layer, without ranks above the matrix and without refusals."""
    made = {name: posterior_of(name, layer_name) for name in POSTERIORS}
    contraction = layer(layer_name).contraction
    return [name for name, q in made.items() if isinstance(q, kinds) and not refuses(estimator, q, contraction)]


def test_every_exported_estimator_takes_part() -> None:
    kinds = {getattr(estimators, name) for name in estimators.__all__}
    concrete = {kind for kind in kinds if issubclass(kind, Estimator) and not inspect.isabstract(kind)}
    assert {type(estimator) for estimator in ESTIMATORS.values()} == concrete


def test_every_exported_posterior_takes_part() -> None:
    made = [posterior_of(name, "conv2d-groups") for name in POSTERIORS]
    kinds = {type(posterior) for posterior in made} | {
        type(p.covariance) for p in made if p.event_dim == 2 and gauss(p)
    }
    elsewhere = {BlockTridiagonalCovariance}  # over a vector of several layers: no one layer's weight
    assert kinds == {*exported(Posterior), *exported(CovarianceOperator)} - elsewhere


def gauss(posterior: Posterior) -> bool:
    return isinstance(posterior, GaussianPosterior)


@every_layer
@pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if name != "Mean"])
def test_mean_and_covariance_over_the_channels_of_an_output_row(estimator: str, layer_name: str) -> None:
    positions = layer(layer_name).positions
    for name in accepted(estimator, layer_name):
        (got_mean, got), (mean, wanted) = output_law(estimator, name, layer_name), weight_law(name, layer_name)
        close(got_mean, mean, name)
        close(blocks(got, positions), blocks(wanted, positions), name)


@every_layer
def test_weight_sampling_keeps_the_covariance_of_the_whole_output(layer_name: str) -> None:
    for name in accepted("WeightSample", layer_name):
        close(output_law("WeightSample", name, layer_name)[1], weight_law(name, layer_name)[1], name)


@every_layer
def test_local_noise_is_independent_between_output_rows(layer_name: str) -> None:
    positions = layer(layer_name).positions
    for name in accepted("LocalReparam", layer_name):
        covariance = output_law("LocalReparam", name, layer_name)[1].clone()
        covariance[positions[:, :, None], positions[:, None, :]] = 0
        assert not covariance.any(), name


@every_layer
def test_flipout_keeps_the_covariance_between_the_positions_of_an_example(layer_name: str) -> None:
    example = layer(layer_name)
    inside = torch.arange(example.output.numel()).reshape(len(example.x) if example.batched else 1, -1)
    for name in accepted("Flipout", layer_name):
        got, wanted = output_law("Flipout", name, layer_name)[1], weight_law(name, layer_name)[1]
        close(blocks(got, inside), blocks(wanted, inside), name)


@every_layer
def test_the_mean_draws_nothing(layer_name: str) -> None:
    example = layer(layer_name)
    for name in accepted("Mean", layer_name, ANY):
        posterior, tape = posterior_of(name, layer_name), Tape()
        output = Mean()(posterior, example.contraction, example.x, tape)
        close(output.flatten(), example.linear_map @ posterior.mean.flatten(), name)
        assert tape.noises == [], name


@every_layer
def test_weight_sampling_is_the_layer_at_the_draw(layer_name: str) -> None:
    example = layer(layer_name)
    for name in accepted("WeightSample", layer_name, ANY):
        posterior, tape = posterior_of(name, layer_name), Tape()
        output = WeightSample()(posterior, example.contraction, example.x, tape)
        (noise,) = tape.noises
        assert tape.laws == [posterior.noise_law], name
        wanted = example.linear_map @ drawn_weight(posterior, example, noise).flatten()
        close(output.flatten(), torch.where(example.fixed, example.linear_map @ posterior.mean.flatten(), wanted), name)


def drawn_weight(posterior: Posterior, example: Layer, noise: Tensor) -> Tensor:
    """The weight of this noise; independent entries are drawn only in the rows that indices use."""
    if noise.shape == posterior.noise_shape:
        return posterior.from_noise(noise)
    assert posterior.independent
    used, weight = sorted(set(example.x.flatten().tolist())), posterior.mean.clone()
    weight[used] += posterior.variance[used].sqrt() * noise
    return weight


@every_layer
def test_a_point_has_no_noise_under_any_estimator(layer_name: str) -> None:
    example = layer(layer_name)
    point = PointPosterior(example.matrix, event_dim=2)
    for name, estimator in ESTIMATORS.items():
        close(estimator(point, example.contraction, example.x), example.output, name)


# Flipout


def sign_matrix(example: Layer, input_signs: Tensor, output_signs: Tensor) -> Tensor:
    """``s rᵀ`` of one example on the fan-in × fan-out matrix: a sign per input channel, and one per output."""
    groups, (fan_in, fan_out) = example.contraction.groups, example.matrix.shape
    by_group = input_signs.reshape(groups, -1)  # a group's outputs see its own input channels
    rows = by_group.repeat_interleave(fan_in // by_group.shape[1], dim=1)
    return rows.mT.repeat_interleave(fan_out // groups, dim=1) * output_signs


@every_layer
def test_flipout_is_a_sign_flipped_weight_for_every_example(layer_name: str) -> None:
    """``op(x_b, mean + ΔW ∘ s_b r_bᵀ)``, whose weight has ΔW's law where its entries are independent and symmetric."""
    example, op = layer(layer_name), layer(layer_name).contraction
    for name in accepted("Flipout", layer_name, ANY):
        posterior, tape = posterior_of(name, layer_name), Tape()
        output = Flipout()(posterior, op, example.x, tape)
        weight_noise, *signs = tape.noises
        assert tape.laws == [posterior.noise_law, *["sign"] * len(signs)]
        perturbation = posterior.from_noise(weight_noise) - posterior.mean
        output_signs = signs[-1].reshape(-1, op.view.fan_out)
        input_signs = (
            signs[0].reshape(len(output_signs), -1) if len(signs) == 2 else output_signs.new_ones(1, op.groups)
        )
        inputs, outputs = (example.x, output) if example.batched else ([example.x], [output])
        for index, (x, got) in enumerate(zip(inputs, outputs, strict=True)):
            flips = sign_matrix(example, input_signs[index % len(input_signs)], output_signs[index])
            wanted = op(x, posterior.mean + perturbation * flips)
            close(got, op.settle(x, wanted, posterior.mean), name)


def test_flipout_leaves_examples_uncorrelated() -> None:
    """Turning all output signs of one example turns its covariance with the others, so it is zero on average."""
    example, posterior = layer("linear"), posterior_of("Diagonal(init_std=0.5, init_spread=0.1)", "linear")
    tape = Tape()
    output = Flipout()(posterior, example.contraction, example.x, tape)
    turned = tape.noises[-1].clone()
    turned[0] *= -1
    mean = Mean()(posterior, example.contraction, example.x)
    again = Flipout()(posterior, example.contraction, example.x, Replay([*tape.noises[:-1], turned]))
    assert_close(again[0] - mean[0], -(output[0] - mean[0]), **EXACT)
    assert_close(again[1:], output[1:], **EXACT)


def test_flipout_moments_by_sampling() -> None:
    """Fails by chance at a rate of 1e-6 in all, were the seed not fixed."""
    draws, example = 40_000, layer("linear")
    name = "KTied(rank=2, init_std=0.5, init_spread=0.1)"
    posterior, op, x = posterior_of(name, "linear"), example.contraction, example.x
    shapes: list[tuple[tuple[int, ...], Law]] = [
        (tuple(posterior.noise_shape), "normal"), (op.sign_shape(x), "sign"), (tuple(example.output.shape), "sign")
    ]  # fmt: skip
    noises = [draw((draws, *shape), law, posterior.mean) for shape, law in shapes]
    outputs = torch.func.vmap(lambda *given: Flipout()(posterior, op, x, Replay(list(given))).flatten())(*noises)
    mean, covariance = weight_law(name, "linear")
    same_example = torch.block_diag(*torch.ones(len(x), op.view.fan_out, op.view.fan_out)).double()
    centred = outputs - mean
    products = centred[:, :, None] * centred[:, None, :]
    errors = torch.cat([centred.mean(0), (products.mean(0) - covariance * same_example).flatten()])
    deviations = torch.cat([centred.std(0), products.std(0).flatten()]) / math.sqrt(draws)
    assert (errors.abs() / deviations).max() < stats.norm.isf(FAILURE_RATE / 2 / len(errors))


# Refusals


def structure(posterior: Posterior) -> str:
    return posterior.structure.removesuffix("Covariance").removesuffix("Posterior")


INDEPENDENT = {"Point", "Diagonal", "KTied", "ClippedLowRank"}
FACTORED = {"MatrixNormal", "MatrixNormalFreeDiagonal", "MatrixNormalKroneckerDiagonal", "EigenKronecker"}
UNPROJECTED = {"Full", "Mixture", "Bernoulli", "Restricted"}


@every_layer
def test_what_is_refused(layer_name: str) -> None:
    """A structure that is in none of the three sets decides here what it refuses."""
    op = layer(layer_name).contraction
    for name in POSTERIORS:
        if (posterior := posterior_of(name, layer_name)) is None:
            continue
        kind = structure(posterior)
        assert kind in INDEPENDENT | FACTORED | UNPROJECTED
        independent = kind in INDEPENDENT or name == "Restricted(KTied)"
        assert refuses("Flipout", posterior, op) is not independent
        projects = kind in INDEPENDENT or (kind in FACTORED and op.groups == 1)
        assert refuses("LocalReparam", posterior, op) is not projects


@pytest.mark.parametrize("estimator", ["Flipout", "LocalReparam"])
@pytest.mark.parametrize(
    "layer_name", ["linear", "conv2d-groups", "conv-transpose2d-groups", "augmented-conv2d-groups"]
)
def test_a_refusal_names_a_remedy_that_works(estimator: str, layer_name: str) -> None:
    example = layer(layer_name)
    refused = set(accepted("WeightSample", layer_name, ANY)) - set(accepted(estimator, layer_name, ANY))
    assert refused
    for name in refused:
        posterior = posterior_of(name, layer_name)
        with pytest.raises(Unsupported) as refusal:
            ESTIMATORS[estimator](posterior, example.contraction, example.x)
        remedies = [other for other in ESTIMATORS if other in refusal.value.remedy]
        assert "WeightSample" in remedies, name
        for remedy in remedies:
            assert ESTIMATORS[remedy](posterior, example.contraction, example.x).shape == example.output.shape, name


# Auto


@every_layer
def test_auto_draws_as_few_normals_as_it_can(layer_name: str) -> None:
    example = layer(layer_name)
    for name in accepted("Auto", layer_name, ANY):
        posterior, counts = posterior_of(name, layer_name), {}
        for estimator in ("Auto", "WeightSample", "LocalReparam"):
            if not refuses(estimator, posterior, example.contraction):
                tape = Tape()
                ESTIMATORS[estimator](posterior, example.contraction, example.x, tape)
                counts[estimator] = tape.normals
        assert counts.pop("Auto") == min(counts.values()), name


def test_auto_takes_local_noise_below_fan_in_rows() -> None:
    linear, conv = layer("linear"), layer("conv2d-valid")  # fan-in 4; fan-in 12 at 4 positions an example
    for example, few, many in ((linear, linear.x[:3], linear.x[:4]), (conv, conv.x, conv.x.expand(3, -1, -1, -1))):
        posterior = GaussianPosterior(example.matrix, DiagonalCovariance(torch.ones_like(example.matrix)))
        assert Auto().choose(posterior, example.contraction, few) == LocalReparam()
        assert Auto().choose(posterior, example.contraction, many) == WeightSample()


@pytest.mark.parametrize(
    ("name", "layer_name"),
    [("Full(init_std=0.5, max_entries=20000)", "linear"), ("MatrixNormal(init_std=0.5)", "conv1d-groups")],
)
def test_auto_samples_the_weight_where_nothing_else_is_offered(name: str, layer_name: str) -> None:
    posterior, example = posterior_of(name, layer_name), layer(layer_name)
    one = example.x[:1]
    assert example.contraction.rows(one) < example.contraction.view.fan_in
    assert Auto().choose(posterior, example.contraction, one) == WeightSample()


# Noise, gradients and batches


def test_noise_is_the_callers() -> None:
    class Empty(list[Tensor]):
        """A source that is false as a condition."""

        def __call__(self, shape: tuple[int, ...], law: Law, like: Tensor) -> Tensor:
            return torch.zeros(shape, dtype=like.dtype)

    example, posterior = layer("linear"), posterior_of("Diagonal(init_std=0.5, init_spread=0.1)", "linear")
    for estimator in (WeightSample(), LocalReparam(), Auto()):
        silent = estimator(posterior, example.contraction, example.x, Empty())
        assert_close(silent, Mean()(posterior, example.contraction, example.x), **EXACT)


@pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if name != "Mean"])
def test_noise_is_fresh_and_can_be_seeded(estimator: str) -> None:
    example, posterior = layer("linear"), posterior_of("Diagonal(init_std=0.5, init_spread=0.1)", "linear")

    def output(noise: FromGenerator | None = None) -> Tensor:
        return ESTIMATORS[estimator](posterior, example.contraction, example.x, noise)

    assert (output() != output()).all()
    seeded = [output(FromGenerator(torch.Generator().manual_seed(seed))) for seed in (1, 1, 2)]
    assert torch.equal(seeded[0], seeded[1])
    assert (seeded[0] != seeded[2]).all()


@pytest.mark.parametrize("layer_name", ["linear", "augmented-linear", "conv2d-stride", "conv2d-groups"])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients_are_finite_where_an_input_is_zero(estimator: str, layer_name: str) -> None:
    fan_in, fan_out = layer(layer_name).matrix.shape
    for name in accepted(estimator, layer_name):
        made, x = POSTERIORS[name]((fan_in, fan_out)), layer(layer_name).x.clone()
        x[0] = 0
        leaves = {key: value.requires_grad_() for key, value in made.parameters.items()} | {"x": x.requires_grad_()}
        output = ESTIMATORS[estimator](made.build(leaves), layer(layer_name).contraction, x)
        gradients = torch.autograd.grad(output.square().sum(), list(leaves.values()), allow_unused=estimator == "Mean")
        for key, gradient in zip(leaves, gradients, strict=True):
            if gradient is not None:  # the mean's output does not depend on a covariance
                assert gradient.isfinite().all(), (name, key)
                assert gradient.any(), (name, key)


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_padding_is_fixed_and_passes_no_gradient(estimator: str) -> None:
    example = layer("embedding-padding")
    fan_in, fan_out = example.matrix.shape
    for name in accepted(estimator, "embedding-padding", ANY):
        made = POSTERIORS[name]((fan_in, fan_out))
        leaves = {key: value.requires_grad_() for key, value in made.parameters.items()}
        posterior = made.build(leaves)
        output = ESTIMATORS[estimator](posterior, example.contraction, example.x)
        padding = example.x == example.contraction.padding_idx
        assert padding.sum() == 2
        close(output[padding], posterior.mean[example.contraction.padding_idx].expand(2, -1), name)
        if not output.requires_grad:  # binary weights have no gradient at all
            continue
        gradients = torch.autograd.grad(output[padding].sum(), list(leaves.values()), allow_unused=True)
        assert not any(gradient.any() for gradient in gradients if gradient is not None), name


@pytest.mark.parametrize("layer_name", ["linear", "augmented-linear"])
@pytest.mark.parametrize("estimator", [name for name in ESTIMATORS if name != "Flipout"])
def test_many_posteriors_at_once(estimator: str, layer_name: str) -> None:
    """A dense layer under many posteriors is the layer under each. Flipout's signs count examples, not members."""
    example = layer(layer_name)
    fan_in, fan_out = example.matrix.shape
    for name in accepted(estimator, layer_name, ANY):
        made, tape = POSTERIORS[name]((fan_in, fan_out)), Tape()
        parameters = made.batch(3)
        together = ESTIMATORS[estimator](made.build(parameters), example.contraction, example.x, tape)
        for member, output in enumerate(together):
            alone = made.build({key: value[member] for key, value in parameters.items()})
            noises = [noise[member] if noise.numel() else noise for noise in tape.noises]
            close(output, ESTIMATORS[estimator](alone, example.contraction, example.x, Replay(noises)), name)

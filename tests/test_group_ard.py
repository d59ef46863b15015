"""Group ARD: the alternation, its fixed point, the groups of a convolution, and learning by gradient."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from bayesrule.linalg import MatrixView
from bayesrule.posteriors import Diagonal, Family, GaussianPosterior, KTied, MatrixNormal, Part, PointPosterior
from bayesrule.priors import ARD, GroupARD, kl_divergence
from bayesrule.priors.group_ard import Group

FAMILIES: list[Family] = [Diagonal(init_std=0.5), MatrixNormal(init_std=0.5)]
GROUPS: list[Group] = ["row", "column", "both", "channel"]
CONVOLUTION = Part("weight", MatrixView((3, 2, 2, 2)))

every_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
every_group = pytest.mark.parametrize("group", GROUPS)


def random_posterior(family: Family, shape: tuple[int, ...], parts: tuple[Part, ...] = ()) -> GaussianPosterior:
    """Neither its means nor its variances have a structure by rows and columns."""
    generator = torch.Generator().manual_seed(2)
    mean = torch.randn(shape, dtype=torch.float64, generator=generator)
    parameters = {
        name: value + 0.3 * torch.randn(value.shape, dtype=torch.float64, generator=generator)
        for name, value in family.init(mean, generator=generator).items()
    }
    posterior = family.build(parameters, event_dim=len(shape), parts=parts)
    assert isinstance(posterior, GaussianPosterior)
    return posterior


def expected_squares(posterior: GaussianPosterior) -> Tensor:
    """``M² + s``, with s off the dense matrix."""
    return posterior.covariance.dense().diagonal().reshape(posterior.event_shape) + posterior.mean**2


def close(got: Tensor, want: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(got, want.expand(got.shape), rtol=tolerance, atol=tolerance)


@every_family
def test_alternating_never_raises_the_kl(family: Family) -> None:
    posterior = random_posterior(family, (6, 4))
    kls = [kl_divergence(posterior, GroupARD("both", iterations=count)).item() for count in range(1, 30)]
    assert all(later <= earlier + 1e-12 for earlier, later in pairwise(kls))
    assert kls[-1] < kls[0] - 1e-4


@every_family
def test_the_fixed_point_has_unit_row_and_column_means(family: Family) -> None:
    posterior = random_posterior(family, (6, 4))
    scaled = GroupARD("both", iterations=300).given(posterior, {}).precision * expected_squares(posterior)
    close(scaled.mean(0), torch.ones(4, dtype=torch.float64))
    close(scaled.mean(1), torch.ones(6, dtype=torch.float64))


@every_family
def test_the_kl_at_the_optimum(family: Family) -> None:
    posterior = random_posterior(family, (6, 4))
    kept = GroupARD("both", learn="gradient", iterations=300).hyperparameters(posterior)
    logdet = torch.linalg.slogdet(posterior.covariance.dense()).logabsdet
    expected = 0.5 * (-4 * kept["log_tau"].sum() - 6 * kept["log_gamma"].sum() - logdet)
    close(kl_divergence(posterior, GroupARD("both", iterations=300)), expected)


def test_one_alternation_is_enough_where_squares_are_a_product() -> None:
    tied = random_posterior(KTied(rank=1, init_std=0.5), (6, 4))
    posterior = GaussianPosterior(torch.zeros_like(tied.mean), tied.covariance)
    prior = GroupARD("both", iterations=1)
    close(prior.given(posterior, {}).precision, posterior.variance.reciprocal(), tolerance=1e-12)
    close(kl_divergence(posterior, prior), torch.zeros((), dtype=torch.float64), tolerance=1e-12)


def test_only_the_product_is_learned_and_the_columns_have_geometric_mean_one() -> None:
    posterior = random_posterior(Diagonal(init_std=0.5), (6, 4))
    prior = GroupARD("both", learn="gradient")
    kept = prior.hyperparameters(posterior)
    close(kept["log_gamma"].mean(), torch.zeros((), dtype=torch.float64), tolerance=1e-14)
    kl = kl_divergence(posterior, prior, kept)
    close(kl_divergence(posterior, prior, kept | {"log_gamma": kept["log_gamma"] + 0.7}), kl)
    assert kl_divergence(posterior, prior, kept | {"log_tau": kept["log_tau"] + 0.7}) > kl + 0.1


@every_family
@every_group
def test_learning_by_gradient_starts_at_the_closed_form(family: Family, group: Group) -> None:
    posterior = random_posterior(family, (8, 3), (CONVOLUTION,))
    prior = GroupARD(group, learn="gradient", iterations=300)
    kept = prior.hyperparameters(posterior)
    kl = kl_divergence(posterior, prior, kept)
    close(kl, kl_divergence(posterior, GroupARD(group, iterations=300)), tolerance=1e-12)
    for gradient in torch.autograd.grad(kl, list(kept.values())):
        close(gradient, torch.zeros_like(gradient))


@every_group
def test_learning_by_gradient_reaches_the_closed_form_from_elsewhere(group: Group) -> None:
    posterior = random_posterior(MatrixNormal(init_std=0.5), (8, 3), (CONVOLUTION,))
    prior = GroupARD(group, learn="gradient")
    kept = {name: torch.zeros_like(value).requires_grad_() for name, value in prior.hyperparameters(posterior).items()}
    optimizer = torch.optim.LBFGS(
        list(kept.values()), max_iter=200, tolerance_grad=1e-10, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        kl = kl_divergence(posterior, prior, kept)
        kl.backward()
        return kl

    best = kl_divergence(posterior, GroupARD(group, iterations=300))
    assert closure() > best + 0.1
    optimizer.step(closure)
    close(closure(), best)


@pytest.mark.parametrize(
    ("group", "shapes"),
    [
        ("row", {"log_tau": (8, 1)}),
        ("column", {"log_gamma": (1, 3)}),
        ("both", {"log_tau": (8, 1), "log_gamma": (1, 3)}),
        ("channel", {"log_tau": (2, 1)}),
    ],
)
def test_only_what_a_grouping_uses_is_learned(group: Group, shapes: dict[str, tuple[int, int]]) -> None:
    posterior = random_posterior(Diagonal(), (8, 3), (CONVOLUTION,))
    kept = GroupARD(group, learn="gradient").hyperparameters(posterior)
    assert {name: tuple(value.shape) for name, value in kept.items()} == shapes
    assert all(isinstance(value, torch.nn.Parameter) for value in kept.values())
    assert GroupARD(group).hyperparameters(posterior) == {}


@pytest.mark.parametrize(
    ("view", "channel_axis"),
    [
        (MatrixView((3, 2)), 1),
        (MatrixView((3, 2, 2)), 1),
        (MatrixView((3, 2, 2, 3)), 1),
        (MatrixView((2, 3, 2, 3), fan_out_axis=1), 0),
    ],
    ids=["linear", "1d", "2d", "transposed 2d"],
)
def test_the_rows_of_one_input_channel_share_a_variance(view: MatrixView, channel_axis: int) -> None:
    posterior = random_posterior(Diagonal(init_std=0.5), (view.fan_in, view.fan_out), (Part("weight", view),))
    precision = view.weight(GroupARD("channel").given(posterior, {}).precision.expand(posterior.event_shape))
    squares = view.weight(expected_squares(posterior)).movedim(channel_axis, 0)
    expected = squares.flatten(1).mean(1).reciprocal()
    close(precision.movedim(channel_axis, 0).flatten(1), expected[:, None])


@pytest.mark.parametrize("learn", ["closed-form", "gradient"])
def test_a_bias_that_is_a_row_of_its_weight_is_a_group_of_its_own(learn: str) -> None:
    posterior = random_posterior(MatrixNormal(init_std=0.5), (9, 3), (CONVOLUTION, Part("bias", (3,))))
    prior = GroupARD("channel", learn=learn)  # type: ignore[arg-type]
    precision = prior.given(posterior, prior.hyperparameters(posterior)).precision.expand(9, 3)
    groups = expected_squares(posterior).split([4, 4, 1])
    expected = torch.cat([group.mean().reciprocal().expand(group.shape) for group in groups])
    close(precision, expected)


@every_group
def test_a_vector_has_no_groups(group: Group) -> None:
    posterior = random_posterior(Diagonal(init_std=0.5), (5,))
    close(kl_divergence(posterior, GroupARD(group)), kl_divergence(posterior, ARD()), tolerance=1e-14)
    by_gradient = GroupARD(group, learn="gradient")
    assert by_gradient.hyperparameters(posterior) == {}
    close(kl_divergence(posterior, by_gradient), kl_divergence(posterior, ARD()), tolerance=1e-14)


@every_group
def test_a_point_has_nothing_to_learn(group: Group) -> None:
    assert GroupARD(group, learn="gradient").hyperparameters(PointPosterior(torch.ones(5, 3), event_dim=2)) == {}

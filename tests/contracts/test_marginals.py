"""Groups of parameters: draws cut into parts, and marginals against the dense sub-block."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from dense_oracle import array, dense
from examples import bernoulli, block_tridiagonal, eigen_kronecker, family_example, mixture
from torch import Tensor
from torch.distributions import MultivariateNormal

from bayesrule.errors import InvalidArgument, ShapeMismatch, Unsupported
from bayesrule.linalg import MatrixView
from bayesrule.posteriors import (
    BernoulliPosterior,
    Diagonal,
    Family,
    Full,
    GaussianPosterior,
    KTied,
    MatrixNormal,
    MatrixNormalDiagonal,
    MixturePosterior,
    Part,
    Variational,
    restricted,
)

LINEAR = (Part("weight", MatrixView((3, 4))), Part("bias", (3,)))
CONVOLUTION = (Part("weight", MatrixView((3, 2, 2, 1))), Part("bias", (3,)))
FAMILIES = [
    Diagonal(0.5),
    KTied(2, 0.5),
    MatrixNormal(0.5),
    MatrixNormalDiagonal(init_std=0.5),
    Full(0.5),
]


def group(family: Family, parts: tuple[Part, ...]) -> GaussianPosterior:
    example = family_example(family, (5, 3))
    return family.build(example.parameters, event_dim=2, parts=parts)


def kronecker(parts: tuple[Part, ...]) -> GaussianPosterior:
    posterior = eigen_kronecker((5, 3)).posterior
    return GaussianPosterior(posterior.mean, posterior.covariance, parts)


GROUPS: list[Callable[[tuple[Part, ...]], GaussianPosterior]] = [
    *(lambda parts, family=family: group(family, parts) for family in FAMILIES),
    kronecker,
]


@pytest.mark.parametrize("parts", [LINEAR, CONVOLUTION], ids=["linear", "conv"])
@pytest.mark.parametrize("build", GROUPS)
def test_split_gives_each_parameter_its_layout(
    build: Callable[[tuple[Part, ...]], GaussianPosterior], parts: tuple[Part, ...]
) -> None:
    event = torch.randn(2, 5, 3, dtype=torch.float64)
    pieces = build(parts).split(event)
    assert list(pieces) == ["weight", "bias"]
    for sample in range(2):
        assert torch.equal(pieces["bias"][sample], event[sample, 4])
        for index in np.ndindex(*parts[0].shape):
            row = np.ravel_multi_index(index[1:], parts[0].shape[1:])
            assert pieces["weight"][(sample, *index)] == event[sample, row, index[0]]


@pytest.mark.parametrize("build", GROUPS)
@pytest.mark.parametrize(("name", "rows"), [("weight", slice(0, 4)), ("bias", slice(4, 5))])
def test_marginal_is_the_dense_sub_block(
    build: Callable[[tuple[Part, ...]], GaussianPosterior], name: str, rows: slice
) -> None:
    whole = build(LINEAR)
    marginal = whole.marginal(name)
    kept = np.arange(15).reshape(5, 3)[rows].ravel()
    block = dense(whole.covariance)[np.ix_(kept, kept)]
    assert [part.name for part in marginal.parts] == [name]
    assert torch.equal(marginal.mean, whole.mean[rows])
    np.testing.assert_allclose(array(marginal.covariance.dense()), block, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(array(marginal.variance).ravel(), np.diag(block), rtol=1e-9)
    normal = MultivariateNormal(marginal.mean.flatten(), torch.tensor(block))
    value = torch.randn(2, *marginal.mean.shape, dtype=torch.float64)
    torch.testing.assert_close(marginal.log_prob(value), normal.log_prob(value.flatten(-2)), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(marginal.entropy(), normal.entropy(), rtol=1e-9, atol=1e-9)
    noise = torch.randn(whole.noise_shape, dtype=torch.float64)
    assert torch.equal(marginal.from_noise(noise), whole.from_noise(noise)[rows])
    assert marginal.split(marginal.rsample())[name].shape == {"weight": (3, 4), "bias": (3,)}[name]


def test_a_chain_of_layers_splits_into_matrices_with_their_bias_rows() -> None:
    """Layers of 2 × 3, 3 × 2 and 2 × 1 in row-major order: the last row of the second is its bias."""
    posterior = block_tridiagonal(((2, 3), (3, 2), (2, 1))).posterior
    views = MatrixView((3, 2)), MatrixView((2, 2)), MatrixView((1, 2))
    parts = (
        Part("0.weight", views[0]), Part("1.weight", views[1]), Part("1.bias", (2,)),
        Part("2.weight", views[2]),
    )  # fmt: skip
    chain = GaussianPosterior(posterior.mean, posterior.covariance, parts)
    pieces = chain.split(chain.mean)
    assert torch.equal(pieces["0.weight"], chain.mean[:6].reshape(2, 3).T)
    assert torch.equal(pieces["1.weight"], chain.mean[6:10].reshape(2, 2).T)
    assert torch.equal(pieces["1.bias"], chain.mean[10:12])
    assert torch.equal(pieces["2.weight"], chain.mean[12:].reshape(2, 1).T)
    marginal = chain.marginal("1.weight")
    np.testing.assert_allclose(array(marginal.covariance.dense()), dense(chain.covariance)[6:10, 6:10], rtol=1e-12)
    assert torch.equal(marginal.split(marginal.mean)["1.weight"], pieces["1.weight"])


def test_a_mixture_and_a_bernoulli_have_marginals() -> None:
    components = tuple(
        GaussianPosterior(each.mean, each.covariance, LINEAR) for each in mixture((5, 3)).posterior.components
    )
    mixed = MixturePosterior(mixture((5, 3)).posterior.logits, components)
    binary = BernoulliPosterior(bernoulli((5, 3)).parameters["natural"], 2, LINEAR)
    for posterior in (mixed, binary):
        for name, rows in (("weight", slice(0, 4)), ("bias", slice(4, 5))):
            marginal = posterior.marginal(name)
            torch.testing.assert_close(marginal.mean, posterior.mean[rows], rtol=1e-12, atol=1e-12)
            torch.testing.assert_close(marginal.variance, posterior.variance[rows], rtol=1e-12, atol=1e-12)
            assert marginal.split(marginal.rsample())[name].shape == {"weight": (3, 4), "bias": (3,)}[name]


def test_the_marginal_of_a_mixture_has_its_density() -> None:
    posterior = mixture((5, 3)).posterior
    components = tuple(GaussianPosterior(each.mean, each.covariance, LINEAR) for each in posterior.components)
    value = torch.randn(2, 4, 3, dtype=torch.float64)
    blocks = [torch.tensor(dense(each.covariance)[:12, :12]) for each in components]
    normals = [
        MultivariateNormal(each.mean[:4].flatten(), block) for each, block in zip(components, blocks, strict=True)
    ]
    densities = torch.stack([normal.log_prob(value.flatten(-2)) for normal in normals], dim=-1)
    want = torch.logsumexp(posterior.logits.log_softmax(-1) + densities, dim=-1)
    got = MixturePosterior(posterior.logits, components).marginal("weight").log_prob(value)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


def test_a_group_of_one_is_its_own_marginal() -> None:
    posterior = Variational(Diagonal(), torch.randn(3, 4), LINEAR[:1])()
    assert posterior.marginal("weight") is posterior


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidArgument, match=r"no parameter 'gain'.*weight.*bias"):
        kronecker(LINEAR).marginal("gain")


def test_an_event_that_the_parts_do_not_fill_is_refused() -> None:
    with pytest.raises(ShapeMismatch, match="take 5"):
        kronecker(LINEAR).split(torch.zeros(6, 3, dtype=torch.float64))


@pytest.mark.parametrize("operation", ["solve", "logdet"])
def test_a_large_marginal_refuses_what_needs_a_dense_matrix(monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    covariance = kronecker(LINEAR).marginal("weight").covariance
    arguments: list[Tensor] = [torch.ones(4, 3, dtype=torch.float64)] if operation == "solve" else []
    getattr(covariance, operation)(*arguments)
    monkeypatch.setattr(restricted, "DENSE_LIMIT", 11)
    with pytest.raises(Unsupported, match="whole group"):
        getattr(covariance, operation)(*arguments)
    assert covariance.diagonal().shape == (4, 3)

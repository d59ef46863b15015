"""What a caller can get wrong in projections, Laplace's data and packed files is refused, with what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.linalg import MatrixView
from bayesrule.optim import PackedNetwork
from bayesrule.posteriors import FullCovariance, GaussianPosterior, Part


@pytest.fixture(autouse=True)
def as_users_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the run-time checker of the tests, which would refuse first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def whole_network() -> GaussianPosterior:
    """A weight of 3 × 2 (2 × 3 as a matrix) with its bias, as one vector."""
    root = torch.randn(9, 20, dtype=torch.float64)
    parts = Part("0.weight", MatrixView((3, 2))), Part("0.bias", (3,))
    mean = torch.randn(9, dtype=torch.float64)
    return GaussianPosterior(mean, FullCovariance(torch.linalg.cholesky(root @ root.mT / 20), (9,)), parts)


@pytest.mark.parametrize("by", ["kl", "moments"])
@pytest.mark.parametrize("onto", [br.KTied(1), br.MatrixNormal(), "kronecker"])
def test_a_marginal_of_a_whole_network_is_projected_as_a_matrix(onto: Any, by: Any) -> None:
    whole = whole_network()
    with pytest.raises(InvalidArgument, match=r"matrices.*marginal\('0.weight'\)"):
        br.project(whole, onto, by)
    found = br.project(whole.marginal("0.weight"), onto, by)
    block = torch.linalg.cholesky(whole.covariance.dense()[:6, :6])
    wanted = br.project(GaussianPosterior(whole.mean[:6].reshape(2, 3), FullCovariance(block, (2, 3))), onto, by)
    torch.testing.assert_close(found.kl, wanted.kl, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(found.posterior.variance, wanted.posterior.variance, rtol=1e-9, atol=1e-10)
    split = found.posterior.split(found.posterior.mean)
    assert torch.equal(split["0.weight"], whole.split(whole.mean)["0.weight"])
    with pytest.raises(InvalidArgument, match=r"\(3,\).*Diagonal"):
        br.project(whole.marginal("0.bias"), onto, by)


def test_independent_entries_are_projected_as_a_matrix_of_any_size() -> None:
    view = Part("weight", MatrixView((60, 100)))
    wide = br.Diagonal().build({"mean": torch.zeros(6000), "log_std": torch.randn(6000)}, event_dim=1, parts=(view,))
    found = br.project(wide, br.KTied(2), by="moments")
    assert found.posterior.mean.shape == (100, 60)
    assert found.kl_from > 0


@pytest.mark.parametrize("onto", ["kron", "Diagonal", br.Diagonal, None, 3])
def test_what_is_no_family_is_refused_with_the_known(onto: Any) -> None:
    with pytest.raises(InvalidArgument, match=r'no such family.*Diagonal\(\), .*"kronecker"'):
        br.project(whole_network(), onto)


def test_a_family_without_projections_is_refused_for_vectors_too() -> None:
    with pytest.raises(Unsupported, match="no projection onto this family"):
        br.project(whole_network(), br.Point())


def test_only_one_posterior_is_projected() -> None:
    with pytest.raises(InvalidArgument, match=r"one posterior.*dict.*'0.weight'"):
        br.project({"0.weight": whole_network()}, br.Diagonal())  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"one posterior.*Linear"):
        br.project(nn.Linear(2, 2), br.Diagonal())  # type: ignore[arg-type]


def test_laplace_takes_one_pair_as_one_batch() -> None:
    net, x, y = nn.Linear(2, 2).double(), torch.randn(30, 2, dtype=torch.float64), torch.arange(30) % 2
    for data in ((x, y), [x, y]):
        got = br.laplace(net, data, likelihood=br.Categorical())
        wanted = br.laplace(net, [(x, y)], likelihood=br.Categorical())
        assert got.n_data == 30
        assert torch.equal(got.posteriors()["weight"].variance, wanted.posteriors()["weight"].variance)


@pytest.mark.parametrize("bad", [torch.zeros(4, 2), [torch.zeros(4, 2)], [{"x": torch.zeros(4, 2)}], [(1, 2)]])
def test_laplace_refuses_what_are_no_batches(bad: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"\(x, y\)"):
        br.laplace(nn.Linear(2, 2), bad, likelihood=br.Categorical())


def test_files_that_are_no_packed_networks_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.npz"

    def refused() -> None:
        with pytest.raises(InvalidArgument, match=r"not a packed network.*net.npz.*save") as caught:
            PackedNetwork.load(path)
        assert "pickle" not in str(caught.value)
        assert caught.value.__context__ is None or caught.value.__suppress_context__

    for junk in (b"", b"junk", b"\x80\x04N.", b"PK\x03\x04 and no more"):
        path.write_bytes(junk)
        refused()
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    refused()
    bits, shape, odd = np.zeros(1, np.uint8), np.array([2, 3]), np.array([{}], dtype=object)
    for arrays in (
        {"weights": bits}, {"bits:a": bits}, {"bits:a": bits, "shape:b": shape},
        {"bits:a": bits, "shape:a": np.array([20, 3])}, {"other:a": odd},
    ):  # fmt: skip
        with path.open("wb") as file:
            np.savez(file, **arrays)
        refused()
    with path.open("wb") as file:
        np.savez(file, **{"bits:a": bits, "shape:a": shape})
    assert (PackedNetwork.load(path).weights("a") == -np.ones((2, 3))).all()
    with pytest.raises(FileNotFoundError):
        PackedNetwork.load(tmp_path / "none.npz")

"""Laplace after training: against laplace-torch, conjugate regression, dense Jacobians and a general optimizer."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bayesrule as br
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.inference import Laplace
from bayesrule.posteriors import KTiedCovariance
from bayesrule.typing import Drawable
from optim_problems import LinearGaussian, network

STRUCTURES = ["diagonal", "kfac", "ktied", "full", "last-layer"]
structures = pytest.mark.parametrize("structure", STRUCTURES)


def problem(classes: bool, bias: bool = True) -> tuple[nn.Module, DataLoader, br.likelihoods.Likelihood]:
    """A small trained network, its data in batches, and its likelihood."""
    torch.manual_seed(0)
    x = torch.randn(40, 3, dtype=torch.float64)
    if classes:
        y = (x[:, 0] + 0.3 * x[:, 1] > 0).long() + (x[:, 2] > 1).long()
    else:
        y = torch.stack([x.sum(-1).sin(), x[:, 0] * x[:, 1]], -1)
    layers = [nn.Linear(3, 5, bias=bias), nn.Tanh(), nn.Linear(5, 3 if classes else 2, bias=bias)]
    net = nn.Sequential(*layers).double()
    likelihood = br.Categorical() if classes else br.Gaussian(torch.tensor(0.4, dtype=torch.float64))
    optimizer = torch.optim.Adam(net.parameters(), lr=0.05, weight_decay=0.01)
    for _ in range(60):
        optimizer.zero_grad()
        likelihood.nll(net(x), y).backward()
        optimizer.step()
    return net, DataLoader(TensorDataset(x, y), batch_size=16), likelihood


def theirs(net: nn.Module, loader: DataLoader, classes: bool, prior: float, **options):
    """laplace-torch, by the closed-form backend it has for each structure."""
    package = pytest.importorskip("laplace", reason="laplace-torch is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = package.Laplace(
            copy.deepcopy(net), "classification" if classes else "regression", prior_precision=prior,
            sigma_noise=1.0 if classes else 0.4, **options,
        )  # fmt: skip
        found.fit(loader)
    return found


def our_variances(fitted: Laplace) -> Tensor:
    """In the order of the network's parameters."""
    split = {}
    for posterior in fitted.posteriors().values():
        split |= posterior.split(posterior.variance)
    return torch.cat([split[name].flatten() for name, _ in fitted.net.named_parameters() if name in split])


likelihoods = pytest.mark.parametrize("classes", [True, False], ids=["classes", "numbers"])


@likelihoods
def test_the_diagonal_is_that_of_laplace_torch(classes: bool) -> None:
    net, loader, likelihood = problem(classes)
    fitted = br.laplace(net, loader, "diagonal", likelihood=likelihood, prior_std=0.5)
    other = theirs(net, loader, classes, 4.0, subset_of_weights="all", hessian_structure="diag")
    torch.testing.assert_close(our_variances(fitted), other.posterior_variance, rtol=1e-4, atol=1e-8)
    ours, reference = fitted.log_marginal_likelihood(), other.log_marginal_likelihood().squeeze()
    torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-6)


@likelihoods
def test_the_kronecker_factored_is_that_of_laplace_torch(classes: bool) -> None:
    """Without biases, which laplace-torch takes for blocks of their own."""
    net, loader, likelihood = problem(classes, bias=False)
    fitted = br.laplace(net, loader, "kfac", likelihood=likelihood, prior_std=0.5)
    other = theirs(net, loader, classes, 4.0, subset_of_weights="all", hessian_structure="kron")
    dense = torch.linalg.inv(other.posterior_precision.to_matrix())
    torch.testing.assert_close(our_variances(fitted), dense.diagonal(), rtol=1e-4, atol=1e-8)
    ours, reference = fitted.log_marginal_likelihood(), other.log_marginal_likelihood().squeeze()
    torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-6)


@likelihoods
@pytest.mark.parametrize("structure", ["full", "last-layer"])
def test_the_full_ones_are_those_of_laplace_torch(classes: bool, structure: str) -> None:
    net, loader, likelihood = problem(classes)
    subset = "all" if structure == "full" else "last_layer"
    fitted = br.laplace(net, loader, structure, likelihood=likelihood, prior_std=0.5)
    other = theirs(net, loader, classes, 4.0, subset_of_weights=subset, hessian_structure="full")
    torch.testing.assert_close(our_variances(fitted), other.posterior_covariance.diagonal(), rtol=1e-4, atol=1e-8)
    if structure == "full":
        ours, reference = fitted.log_marginal_likelihood(), other.log_marginal_likelihood().squeeze()
        torch.testing.assert_close(ours, reference, rtol=1e-4, atol=1e-6)
    x = loader.dataset.tensors[0][:7]
    law = fitted.outputs(x)
    mean, covariance = other._glm_predictive_distribution(x)
    torch.testing.assert_close(law.mean, mean, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(law.covariance, covariance, rtol=1e-4, atol=1e-8)
    if classes:
        torch.testing.assert_close(law.probs, other(x, link_approx="probit"), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("structure", ["diagonal", "full"])
def test_tuning_finds_the_maximum_of_the_other_librarys_marginal_likelihood(structure: str) -> None:
    net, loader, likelihood = problem(True)
    fitted = br.laplace(net, loader, structure, likelihood=likelihood, tune=True)
    name = "diag" if structure == "diagonal" else structure
    other = theirs(net, loader, True, 1.0, subset_of_weights="all", hessian_structure=name)
    best = minimize_scalar(
        lambda log: -other.log_marginal_likelihood(torch.tensor(float(np.exp(log)), dtype=torch.float64)).item(),
        bounds=(-8, 8), method="bounded", options={"xatol": 1e-9},
    )  # fmt: skip
    assert fitted.prior_std["0.weight"] == pytest.approx(np.exp(-best.x / 2), rel=1e-4)


@structures
@pytest.mark.parametrize("per_group", [False, True])
def test_tuning_finds_the_maximum_of_its_own_marginal_likelihood(structure: str, per_group: bool) -> None:
    net, loader, likelihood = problem(True)
    fitted = br.laplace(net, loader, structure, likelihood=likelihood)
    tuned = fitted.tuned(per_group=per_group)
    assert tuned.log_marginal_likelihood() > fitted.log_marginal_likelihood()
    assert fitted.prior_std == dict.fromkeys(fitted.groups, 1.0)
    assert len(set(tuned.prior_std.values())) == (len(tuned.groups) if per_group else 1)

    def at(scale: float) -> float:
        moved = {name: copy.copy(each) for name, each in tuned.groups.items()}
        for each in moved.values():
            object.__setattr__(each, "precision", each.precision * scale)
        return Laplace(net, likelihood, moved, tuned.log_likelihood, tuned.n_data).log_marginal_likelihood().item()

    assert at(1.0) > max(at(1.001), at(0.999))
    assert 0.5 * (at(np.exp(1e-4)) - at(np.exp(-1e-4))) / 1e-4 == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("structure", ["kfac", "full", "last-layer"])
def test_on_a_linear_gaussian_model_it_is_the_exact_posterior(structure: str) -> None:
    known = LinearGaussian.make()
    net = nn.Linear(3, 2, dtype=torch.float64)
    with torch.no_grad():
        net.weight.copy_(torch.from_numpy(known.mean[:3].T))
        net.bias.copy_(torch.from_numpy(known.mean[3]))
    likelihood = br.Gaussian(torch.tensor(known.noise_std, dtype=torch.float64))
    data = [(known.x[:25], known.y[:25]), (known.x[25:], known.y[25:])]
    fitted = br.laplace(net, data, structure, likelihood=likelihood, prior_std=known.prior_std)
    (posterior,) = fitted.posteriors().values()
    want = np.kron(np.linalg.inv(known.precision), np.eye(2))
    np.testing.assert_allclose(posterior.covariance.dense(), want, rtol=1e-9, atol=1e-12)
    assert fitted.n_data == 40
    # The marginal likelihood of conjugate regression, which Laplace has exactly.
    design = known.design
    covariance = known.prior_std**2 * design @ design.T + known.noise_std**2 * np.eye(40)
    exact = torch.distributions.MultivariateNormal(torch.zeros(40, dtype=torch.float64), torch.from_numpy(covariance))
    evidence = sum(exact.log_prob(known.y[:, j]) for j in range(2))
    torch.testing.assert_close(fitted.log_marginal_likelihood(), evidence, rtol=1e-10, atol=0)


def test_the_tied_one_is_the_projection_of_the_diagonal_one() -> None:
    net, loader, likelihood = problem(True)
    free, tied = (br.laplace(net, loader, name, likelihood=likelihood, rank=2) for name in ("diagonal", "ktied"))
    for name, posterior in tied.posteriors().items():
        assert isinstance(posterior.covariance, KTiedCovariance)
        want = br.project(free.posteriors()[name], br.KTied(2)).posterior
        torch.testing.assert_close(posterior.variance, want.variance)


@structures
@likelihoods
def test_predictions(structure: str, classes: bool) -> None:
    net, loader, likelihood = problem(classes)
    before = copy.deepcopy(net.state_dict())
    fitted = br.laplace(net, loader, structure, likelihood=likelihood, tune=True)
    x, y = loader.dataset.tensors
    assert isinstance(fitted, Drawable)
    assert isinstance(fitted.linearized(), Drawable)
    drawn = br.predict(fitted, x, samples=16)
    assert drawn.outputs.shape == (16, 40, 3 if classes else 2)
    assert (drawn.outputs.std(0) > 0).all()
    if classes:
        accuracy = (fitted.outputs(x).probs.argmax(-1) == y).double().mean()
        assert accuracy > 0.8
    assert torch.equal(fitted.at({}, x), net(x))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert net.training
    assert all(parameter.requires_grad for parameter in net.parameters())


@structures
def test_linearized_draws_have_the_law_in_closed_form(structure: str) -> None:
    """1,000 draws: means and standard deviations of the outputs, at a failure rate of 1e-6."""
    net, loader, likelihood = problem(False)
    fitted = br.laplace(net, loader, structure, likelihood=likelihood, prior_std=0.3)
    x, draws = loader.dataset.tensors[0][:5], 1000
    law = fitted.outputs(x)
    outputs = br.predict(fitted.linearized(), x, samples=draws).outputs
    assert ((outputs.mean(0) - law.mean).abs() < 5.5 * law.std / draws**0.5).all()
    assert ((outputs.std(0) / law.std - 1).abs() < 5.5 / (2 * draws) ** 0.5).all()
    torch.testing.assert_close(law.target_std.square(), law.std.square() + 0.16)


def test_the_linearized_outputs_are_those_of_the_jacobian() -> None:
    net, loader, likelihood = problem(True)
    fitted = br.laplace(net, loader, "diagonal", likelihood=likelihood)
    x = loader.dataset.tensors[0][:4]
    drawn = {}
    for posterior in fitted.posteriors().values():
        drawn |= posterior.split(posterior.rsample())
    step = 1e-6
    moved = {name: p.detach() + step * (drawn[name] - p.detach()) for name, p in net.named_parameters()}
    slope = (torch.func.functional_call(net, moved, (x,)) - net(x)) / step
    torch.testing.assert_close(fitted.linearized().at(drawn, x), net(x) + slope, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fisher", ["sampled", "empirical"])
def test_other_fishers(fisher: str) -> None:
    net, loader, likelihood = problem(True)
    fitted = br.laplace(net, loader, "diagonal", likelihood=likelihood, fisher=fisher, seed=3)
    x, y = loader.dataset.tensors
    if fisher == "empirical":
        squares = torch.zeros_like(net[2].weight)
        for one, target in zip(x, y, strict=True):
            loss = -likelihood.log_prob(net(one[None]), target[None]).sum()
            squares += torch.autograd.grad(loss, net[2].weight)[0].square()
        want = 1 / (squares + 1)
        got = fitted.posteriors()["2.weight"]
        torch.testing.assert_close(got.split(got.variance)["2.weight"], want.detach())
    again = br.laplace(net, loader, "diagonal", likelihood=likelihood, fisher=fisher, seed=3)
    assert torch.equal(our_variances(fitted), our_variances(again))


def test_convolutions_and_norm_layers() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 2)).double()
    images = torch.randn(6, 1, 3, 3, dtype=torch.float64)
    for structure in STRUCTURES:
        fitted = br.laplace(net, [(images, torch.arange(6) % 2)], structure, likelihood=br.Categorical())
        assert "1.weight" not in {part.name for q in fitted.posteriors().values() for part in q.parts}
        assert br.predict(fitted, images, samples=3).probs.shape == (6, 2)
        assert (fitted.outputs(images).std > 0).all()


def test_a_convolutions_diagonal_is_that_of_its_jacobian() -> None:
    """Positions are summed before squares are taken."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 2)).double()
    images = torch.randn(4, 1, 3, 3, dtype=torch.float64)

    def outputs(weight: Tensor, x: Tensor) -> Tensor:
        return torch.func.functional_call(net, {"0.weight": weight}, (x[None],))[0]

    hessian = torch.zeros_like(net[0].weight)
    for x, p in zip(images, net(images).softmax(-1), strict=True):
        jacobian = torch.func.jacrev(outputs)(net[0].weight.detach(), x)
        hessian += torch.einsum("cabij,cd,dabij->abij", jacobian, torch.diag(p) - torch.outer(p, p), jacobian)
    fitted = br.laplace(net, [(images, torch.arange(4) % 2)], "diagonal", likelihood=br.Categorical())
    posterior = fitted.posteriors()["0.weight"]
    torch.testing.assert_close(posterior.split(posterior.variance)["0.weight"], 1 / (hessian.detach() + 1))


def test_what_cannot_be_is_refused() -> None:
    net, loader, likelihood = problem(False)
    with pytest.raises(InvalidArgument, match="no data"):
        br.laplace(net, [], "diagonal", likelihood=likelihood)
    with pytest.raises(InvalidArgument, match="prior_std"):
        br.laplace(net, loader, likelihood=likelihood, prior_std=0.0)
    with pytest.raises(InvalidArgument, match="dense matrix"):
        br.laplace(network(200, 200, 2), loader, "full", likelihood=likelihood)
    with pytest.raises(InvalidArgument, match="no trainable"):
        br.laplace(nn.BatchNorm1d(3), loader, likelihood=likelihood)
    with pytest.raises(Unsupported, match="of classes"):
        _ = br.laplace(net, loader, likelihood=likelihood).outputs(torch.zeros(2, 3, dtype=torch.float64)).probs

"""The negative ELBO against torch's own losses and distributions, and the schedules of its KL weight."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

import bayesrule as br
from bayesrule.errors import InvalidArgument
from bayesrule.nn.annealing import Constant, Exponential, LinearOverEpochs, LinearPerBatch

X = torch.linspace(-1, 1, 24, dtype=torch.float64).reshape(6, 4)
PRIOR = Normal(torch.zeros((), dtype=torch.float64), torch.tensor(0.7, dtype=torch.float64))
LABELS = torch.tensor([0, 2, 1, 1, 0, 2])


def model() -> br.nn.BayesianModule:
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    return br.bayesianize(net, br.Diagonal(0.3), br.Normal(0.7), likelihood=br.Categorical())


def expected_kl(bnn: br.nn.BayesianModule) -> Tensor:
    """Entry by entry, from the parameters alone."""
    total = torch.zeros((), dtype=torch.float64)
    for home in bnn.homes().values():
        std = home.posterior.log_std.exp()
        mean = home.mean.T if home.mean.ndim == 2 else home.mean  # spreads are kept fan-in first
        total = total + kl_divergence(Normal(mean, std), PRIOR).sum()
    return total


def test_is_the_mean_nll_and_the_kl_over_the_data_set() -> None:
    bnn = model()
    outputs = bnn(X)
    loss = br.NegativeELBO(bnn, n_data=50)(outputs, LABELS)
    nll, kl = F.cross_entropy(outputs, LABELS), expected_kl(bnn)
    torch.testing.assert_close(loss.nll, nll, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.kl, kl, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.total, nll + kl / 50, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.negative_elbo, nll + kl / 50, rtol=1e-12, atol=0)
    want = torch.autograd.grad(nll + kl / 50, list(bnn.parameters()), retain_graph=True)
    got = torch.autograd.grad(loss.total, list(bnn.parameters()))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_annealing_and_temperature_change_what_is_minimised_not_what_is_reported() -> None:
    bnn = model()
    outputs, plain = bnn(X), expected_kl(bnn)
    objective = br.NegativeELBO(bnn, 50, annealing=LinearPerBatch(0.001), temperature=0.2)
    loss = objective(outputs, LABELS, step=399)
    assert loss.kl_weight == pytest.approx(0.3, rel=1e-12)
    nll = F.cross_entropy(outputs, LABELS)
    torch.testing.assert_close(loss.total, nll + 0.2 * 0.3 * plain / 50, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.negative_elbo, nll + plain / 50, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss.kl, plain, rtol=1e-12, atol=0)


def test_at_weight_zero_no_gradient_comes_from_the_prior() -> None:
    bnn = model()
    outputs = bnn(X)
    loss = br.NegativeELBO(bnn, 50, annealing=LinearPerBatch(0.001))(outputs, LABELS, step=99)
    want = torch.autograd.grad(F.cross_entropy(outputs, LABELS), list(bnn.parameters()), retain_graph=True)
    for a, b in zip(torch.autograd.grad(loss.total, list(bnn.parameters())), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def test_the_likelihood_given_comes_before_the_models_own() -> None:
    bnn, targets = model(), torch.ones(6, 3, dtype=torch.float64)
    outputs = bnn(X)
    std = torch.tensor(0.5, dtype=torch.float64)
    loss = br.NegativeELBO(bnn, 50, br.Gaussian(std))(outputs, targets)
    want = -Normal(outputs, std).log_prob(targets).sum(-1).mean()
    torch.testing.assert_close(loss.nll, want, rtol=1e-12, atol=0)


def test_the_bound_does_not_depend_on_how_the_data_is_batched() -> None:
    """Losses are means: two half batches average to the whole one at the same draw."""
    bnn = model()
    objective = br.NegativeELBO(bnn, 50)
    outputs = bnn(X)
    halves = [objective(outputs[part], LABELS[part]).total for part in (slice(0, 3), slice(3, 6))]
    torch.testing.assert_close(sum(halves) / 2, objective(outputs, LABELS).total, rtol=1e-12, atol=0)


SCHEDULES = {
    "constant": (Constant(), {0: 1.0, 7: 1.0}),
    "per batch": (LinearPerBatch(5e-5), {0: 0.0, 99: 0.0, 100: 0.005, 199: 0.005, 14_700: 0.735, 10**9: 1.0}),
    "small steps": (LinearPerBatch(0.25, every=1), {0: 0.0, 1: 0.25, 3: 0.75, 4: 1.0, 5: 1.0}),
    "over epochs": (LinearOverEpochs(50, 391), {0: 0.0, 391: 0.02, 9_775: 0.5, 19_550: 1.0, 30_000: 1.0}),
    "half an epoch": (LinearOverEpochs(0.5, 10), {0: 0.0, 1: 0.2, 5: 1.0, 6: 1.0}),
    "exponential": (Exponential(300, 1e-4), {0: 1e-4, 75: 1e-3, 150: 1e-2, 300: 1.0, 301: 1.0}),
}


@pytest.mark.parametrize("case", SCHEDULES)
def test_schedules_have_their_values(case: str) -> None:
    schedule, values = SCHEDULES[case]
    for step, weight in values.items():
        assert schedule(step) == pytest.approx(weight, rel=1e-12, abs=0)
    weights = [schedule(step) for step in range(0, 20_000, 50)]
    assert weights == sorted(weights)
    assert 0 <= weights[0] <= weights[-1] <= 1


@pytest.mark.parametrize(
    "make",
    [
        lambda: LinearPerBatch(0.0), lambda: LinearPerBatch(1e-3, every=0), lambda: LinearOverEpochs(0, 10),
        lambda: LinearOverEpochs(5, -1), lambda: Exponential(0), lambda: Exponential(10, start=0.0),
        lambda: LinearPerBatch(float("nan")),
    ],
)  # fmt: skip
def test_schedules_refuse_what_is_not_positive(make: object) -> None:
    with pytest.raises(InvalidArgument, match="must be positive"):
        make()

"""Options of the optimizers: Fisher, noise, priors, intervals, param groups, and many models at once."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.curvature import Tapped
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.likelihoods import GaussianGammaNoise
from bayesrule.optim import OGN, VOGN, Message, NoisyAdam, NoisyEKFAC, NoisyFull, NoisyKFAC, PriorTerm, due
from bayesrule.optim.natural_gradient import NaturalGradientOptimizer
from optim_problems import NAMES, OPTIMIZERS, TAPPING, make, network, regression, silent, step

every = pytest.mark.parametrize("kind", OPTIMIZERS, ids=NAMES)
tapping = pytest.mark.parametrize("kind", TAPPING, ids=lambda kind: kind.__name__)
X, Y = regression()


def test_intervals_double_up_to_their_length() -> None:
    assert [k for k in range(1, 31) if due(k, 10)] == [1, 2, 4, 8, 10, 20, 30]
    assert [k for k in range(1, 4) if due(k, 1)] == [1, 2, 3]


@tapping
def test_curvature_is_gathered_and_inverted_at_its_intervals(kind) -> None:
    optimizer = make(kind, T_stats=4, T_inv=100)
    passes = []
    optimizer.model.register_forward_hook(lambda *_: passes.append(len(optimizer.model[0]._forward_hooks)))
    for _ in range(8):
        step(optimizer, lambda: optimizer.nll(optimizer.model(X), Y))
    assert [bool(each) for each in passes] == [k in (1, 2, 4, 8) for k in range(1, 9)]
    assert {state.estimates for state in optimizer.states.values()} == {4}


@tapping
def test_the_empirical_fisher_is_said_once(kind) -> None:
    if kind in (OGN, VOGN):  # theirs is the empirical one, by definition
        kind(network(3, 4, 2), n_data=50)
        return
    with pytest.warns(UserWarning, match="empirical Fisher"):
        kind(network(3, 4, 2), n_data=50)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kind(network(3, 4, 2), n_data=50, fisher="empirical")
    with pytest.raises(InvalidArgument, match="needs a likelihood"):
        kind(network(3, 4, 2), n_data=50, fisher="sampled")


def test_the_sampled_fisher_does_not_see_the_labels() -> None:
    """Labels that are all wrong change the empirical factors, and not the sampled ones, of the same noise."""
    found = {}
    for fisher in ("sampled", "empirical"):
        for shift in (0.0, 100.0):
            optimizer = make(NoisyKFAC, fisher=fisher, lr=0.0)
            step(optimizer, lambda o=optimizer, shift=shift: o.nll(o.model(X), Y + shift), noise=silent)
            found[fisher, shift] = optimizer.states["2.weight"].fan_out
    assert torch.equal(found["sampled", 0.0], found["sampled", 100.0])
    assert (found["empirical", 100.0] / found["empirical", 0.0]).abs().min() > 10


@every
def test_noise_precision_is_updated_by_its_conjugate_step(kind) -> None:
    likelihood = GaussianGammaNoise()
    optimizer = make(kind, likelihood=likelihood, noise_lr=0.25, lr=0.0)
    before = likelihood.posterior_shape.item(), likelihood.posterior_rate.item()
    step(optimizer, lambda: optimizer.nll(optimizer.model(X), Y), noise=silent)
    residuals = (optimizer.model(X) - Y).square().sum().item()
    conjugate = 6 + 0.5 * 50 * 2, 6 + 0.5 * residuals / 12 * 50
    for name, old, new in zip(("shape", "rate"), before, conjugate, strict=True):
        got = getattr(likelihood, f"posterior_{name}").item()
        assert got == pytest.approx(0.75 * old + 0.25 * new, rel=1e-6)
    with pytest.raises(InvalidArgument, match=r"opt\.nll"):
        step(optimizer, lambda: (optimizer.model(X) - Y).square().mean())


def test_a_learned_noise_scale_is_trained_by_adam() -> None:
    likelihood = br.Gaussian(1.0, learn=True)
    optimizer = make(NoisyKFAC, likelihood=likelihood)
    assert optimizer.plan["likelihood.log_noise_std"].rule == "Adam"
    before = likelihood.noise_std.item()
    step(optimizer, lambda: optimizer.nll(optimizer.model(X), Y))
    assert likelihood.noise_std.item() != before


@every
def test_a_learned_prior_follows_the_posterior(kind) -> None:
    """With rate 1 its variance is that which minimises the KL: the mean of E[w²] over the group."""
    options = {"beta": 1.0} if issubclass(kind, NaturalGradientOptimizer) else {}
    optimizer = make(kind, prior=br.LearnedNormal(), lr=0.0, **options)
    loss = lambda: optimizer.nll(optimizer.model(X), Y)  # noqa: E731
    step(optimizer, loss)
    posteriors = optimizer.posteriors()
    before = {name: each.precision for name, each in optimizer.priors.current.items()}
    step(optimizer, loss)
    rate = options.get("beta", 0.01)
    for name, q in posteriors.items():
        best = 1 / (q.variance + q.mean.square()).mean()
        want = (1 - rate) * before[name].squeeze() + rate * best
        torch.testing.assert_close(optimizer.priors.current[name].precision.squeeze(), want, rtol=1e-9, atol=0)
    assert optimizer.kl() > 0


@every
def test_the_kl_is_the_one_of_the_library(kind) -> None:
    optimizer = make(kind)
    step(optimizer, lambda: optimizer.nll(optimizer.model(X), Y))
    want = sum(br.priors.kl_divergence(q, br.Normal(0.8)) for q in br.posteriors(optimizer).values())
    torch.testing.assert_close(optimizer.kl(), want, rtol=1e-10, atol=0)


def test_priors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(Unsupported, match="spherical"):
        make(NoisyKFAC, prior=br.HeNormal())
    for kind in (NoisyAdam, NoisyFull):
        optimizer = make(kind, prior=br.HeNormal())
        (posterior, *_) = optimizer.posteriors().values()
        std = posterior.stddev.flatten()  # before any data: the prior's own
        torch.testing.assert_close(std[0], torch.tensor((2 / 3) ** 0.5, dtype=torch.float64))
        torch.testing.assert_close(std[3 * 4], torch.tensor(1.0, dtype=torch.float64))


def test_a_prior_centred_on_pretrained_weights_pulls_there() -> None:
    net = network(3, 4, 2)
    start = [p.detach().clone() for p in net.parameters()]
    optimizer = make(NoisyKFAC, net, prior=br.Normal(0.8, mean="pretrained"))
    step(optimizer, lambda: 0 * optimizer.nll(net(X), Y))
    assert all(torch.equal(a, b) for a, b in zip(start, net.parameters(), strict=True))


def test_param_groups_have_options_of_their_own() -> None:
    net = network(3, 4, 2)
    first = [p.detach().clone() for p in net.parameters()]
    groups = [{"params": net[0].parameters(), "lr": 0.0, "beta": 0.5}]
    optimizer = make(NoisyKFAC, net, param_groups=groups, beta=0.25, warm_up=False)
    assert len(optimizer.param_groups) == 2
    assert [optimizer.rule_of(group).beta for group in optimizer.groups.values()] == [0.5, 0.25]
    step(optimizer, lambda: optimizer.nll(net(X), Y))
    moved = [not torch.equal(a, b) for a, b in zip(first, net.parameters(), strict=True)]
    assert moved == [False, False, True, True]
    with pytest.raises(InvalidArgument, match="one param group"):
        make(NoisyKFAC, net, param_groups=[{"params": [net[0].weight], "lr": 0.1}])


@pytest.mark.parametrize("kind", [NoisyAdam, NoisyKFAC, NoisyEKFAC])
def test_noise_for_each_example_has_the_law_of_its_own_draw(kind) -> None:
    """Outputs of one layer at 40,000 copies of an input: mean and covariance those of xᵀW, at a rate of 1e-6."""
    torch.manual_seed(0)
    net = nn.Linear(3, 2).double()
    optimizer = make(kind, net, noise="example")
    step(optimizer, lambda: optimizer.nll(net(X), Y))
    x = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    with optimizer.sampled_params(), torch.no_grad():
        outputs = net(x.expand(40_000, 3))
    (posterior,) = optimizer.posteriors().values()
    jacobian = torch.kron(torch.cat([x, torch.ones(1, dtype=torch.float64)])[None], torch.eye(2, dtype=torch.float64))
    covariance = jacobian @ posterior.covariance.dense() @ jacobian.T
    spread = covariance.diagonal().sqrt()
    assert ((outputs.mean(0) - net(x)).abs() < 5.5 * spread / 200).all()
    got = torch.cov(outputs.T)
    assert ((got - covariance).abs() < 5.5 * 2**0.5 * spread[:, None] * spread / 200).all()
    assert torch.equal(net.weight.T, posterior.mean[:3])


def test_noise_for_each_example_trains_and_refuses_what_has_none() -> None:
    for kind in (NoisyAdam, NoisyKFAC, NoisyEKFAC):
        optimizer = make(kind, noise="example")
        losses = [step(optimizer, lambda o=optimizer: o.nll(o.model(X), Y)) for _ in range(30)]
        assert sum(losses[-5:]) < sum(losses[:5])
    with pytest.raises(Unsupported, match="correlates layers"):
        make(NoisyFull, noise="example")


@every
def test_mirrored_draws_cancel_in_pairs(kind) -> None:
    if kind is OGN:
        with pytest.raises(InvalidArgument, match="Leave out mirrored"):
            kind(network(3, 4, 2), n_data=50, mirrored=True)
        return
    optimizer = make(kind, warm_up=False, mirrored=True)
    mean = [p.detach().clone() for p in optimizer.model.parameters()]
    seen = []
    for _ in range(4):
        with optimizer.sampled_params():
            seen.append([p.detach().clone() for p in optimizer.model.parameters()])
    for pair in ((seen[0], seen[1]), (seen[2], seen[3])):
        for left, right, centre in zip(*pair, mean, strict=True):
            torch.testing.assert_close((left + right) / 2, centre, rtol=1e-12, atol=1e-13)
    assert not any(torch.equal(a, b) for a, b in zip(seen[0], seen[2], strict=True))
    with optimizer.sampled_params():
        first = [p.detach().clone() for p in optimizer.model.parameters()]
    resumed = make(kind, warm_up=False, mirrored=True)
    resumed.load_state_dict(optimizer.state_dict())
    with resumed.sampled_params():
        for left, right, centre in zip(first, resumed.model.parameters(), mean, strict=True):
            torch.testing.assert_close((left + right.detach()) / 2, centre, rtol=1e-12, atol=1e-13)


RULES = [
    br.optim.NoisyAdamRule(warm_up=True),
    br.optim.NoisyKFACRule(beta=0.3),
    br.optim.NoisyKFACRule(beta=0.3, damping="exact", momentum=0.5, max_kl=1e-4),
    br.optim.NoisyEKFACRule(beta=0.3),
    br.optim.NoisyFullRule(beta=0.3, extra_damping=0.01),
    br.optim.NoisyBlockTridiagonalRule(beta=0.3),
    br.optim.OGNRule(warm_up=True),
    br.optim.VOGNRule((0.5, 0.7), max_kl=1e-4),
    br.optim.KTiedVONRule(1, (0.5, 0.7), "squares", max_kl=1e-4),
    br.optim.KTiedVONRule(2, (0.5, 0.7), "squares"),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_rules_update_many_models_at_once(rule) -> None:
    """A batch of states in front equals one model after another, also with a damping and a step size for each."""
    shapes = [(3, 2), (2, 2)] if rule.joint else [(3, 2)]
    event = (10,) if rule.joint else (3, 2)
    damping, lr = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64), torch.tensor([0.1, 0.3, 0.2], dtype=torch.float64)

    def run(index: int | None) -> Tensor:
        generator = torch.Generator().manual_seed(7)
        pick = (lambda t: t) if index is None else (lambda t: t[index])
        mean = pick(torch.randn(3, *event, dtype=torch.float64, generator=generator))
        gamma, rate = (each.reshape(-1, *(1,) * len(event)) if index is None else each[index] for each in (damping, lr))
        state = rule.init(mean, shapes, gamma)
        for k in range(1, 4):
            tapped = [Tapped(pick(torch.randn(3, 6, 1, m, dtype=torch.float64, generator=generator)),
                             pick(torch.randn(3, 1, 6, 1, n, dtype=torch.float64, generator=generator)), 6)
                      for m, n in shapes]  # fmt: skip
            gradient = pick(torch.randn(3, *event, dtype=torch.float64, generator=generator))
            message = Message(gradient, rule.curvature(state, tapped))
            prior = PriorTerm(gamma, torch.zeros((), dtype=torch.float64))
            mean, state = rule.update(mean, state, message, prior, lr=rate, refresh=k != 2)
        variance = rule.covariance(state, gamma, 0.01).diagonal()
        return torch.stack([mean, variance])

    together = run(None)
    for index in range(3):
        torch.testing.assert_close(together[:, index], run(index), rtol=1e-9, atol=1e-11)

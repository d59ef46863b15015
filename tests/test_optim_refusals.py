"""What an optimizer refuses, and says: layers frozen late, param groups and outputs that make no sense."""

from __future__ import annotations

import copy
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.curvature import sampled_cotangents
from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.optim import NoisyAdam, NoisyKFAC
from bayesrule.random import FromGenerator
from optim_problems import EVERY, contents, held, make, network, refused, regression, step

every = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
X, Y = regression()


@every
def test_a_layer_frozen_late_is_named_and_nothing_is_lost(kind) -> None:
    optimizer, untouched = make(kind), make(kind)
    net = optimizer.model
    for each in (optimizer, untouched):
        step(each, lambda each=each: each.nll(each.model(X), Y))
        with each.sampled_params():
            each.nll(each.model(X), Y).backward()
    before, gradients = held(optimizer), [contents(p.grad) for p in net.parameters()]
    net[0].requires_grad_(False)
    refused(
        lambda: optimizer.sampled_params().__enter__(), r"frozen after.*requires_grad=False of 0\.weight.*before the"
    )
    refused(lambda: optimizer.step(lambda: optimizer.nll(net(X), Y)), "frozen after")
    assert held(optimizer) == before
    assert [contents(p.grad) for p in net.parameters()] == gradients
    net[0].requires_grad_(True)
    for each in (optimizer, untouched):
        with each.sampled_params():
            each.nll(each.model(X), Y).backward()
        each.step()
    assert held(optimizer) == held(untouched)


@every
def test_frozen_weights_can_be_evaluated(kind) -> None:
    net = network(3, 4, 2)
    optimizer = make(kind, net)
    step(optimizer, lambda: optimizer.nll(net(X), Y))
    net[0].requires_grad_(False)
    with torch.no_grad(), optimizer.sampled_params():
        assert net(X).isfinite().all()
    net.requires_grad_(False)
    with optimizer.sampled_params():
        assert not net(X).requires_grad
    assert br.predict(optimizer, X, samples=2).outputs.shape == (2, *Y.shape)


def test_at_most_a_few_frozen_names_are_shown() -> None:
    net = network(3, 3, 3, 3, 3, 2)
    optimizer = make(NoisyKFAC, net)
    for parameter in list(net.parameters())[:-1]:
        parameter.requires_grad_(False)
    error = refused(lambda: optimizer.sampled_params().__enter__(), "and 5 more")
    assert str(error).count(".weight") == str(error).count(".bias") == 2


def test_both_remedies_for_frozen_layers_hold() -> None:
    """Frozen before, a layer is a constant; in plain, it may be frozen at any time."""
    for plain in ((), ("0",)):
        net = network(3, 4, 2)
        net[0].requires_grad_(bool(plain))
        optimizer = make(NoisyKFAC, net, plain=plain)
        net[0].requires_grad_(False)
        start = net[0].weight.clone()
        step(optimizer, lambda o=optimizer: o.nll(o.model(X), Y))
        assert torch.equal(net[0].weight, start)
        assert list(optimizer.posteriors()) == ["2.weight"]


ACCEPTED = {
    "names of a module": lambda net: ["0"],
    "one name": lambda net: "0",
    "names of parameters": lambda net: ["0.weight", "0.bias"],
    "a name twice": lambda net: ["0", "0.bias"],
    "a module": lambda net: net[0],
    "modules": lambda net: [net[0], net[1]],
    "parameters": lambda net: net[0].parameters(),
    "named parameters": lambda net: net[0].named_parameters(),
    "a dict of them": lambda net: dict(list(net.named_parameters())[:2]),
}


@pytest.mark.parametrize("params", ACCEPTED.values(), ids=ACCEPTED)
def test_params_of_a_group_may_be_named(params) -> None:
    net = network(3, 4, 2)
    optimizer = make(NoisyKFAC, net, lr=0.05, param_groups=[{"params": params(net), "lr": 1e-3}])
    assert [(group["lr"], len(group["params"])) for group in optimizer.param_groups] == [(1e-3, 2), (0.05, 2)]
    assert optimizer.param_groups[0]["params"][0] is net[0].weight
    assert [optimizer.lr_of(name) for name in ("0.weight", "0.bias", "2.weight")] == [1e-3, 1e-3, 0.05]


def test_a_list_will_do_for_a_pair_of_options() -> None:
    optimizer = make(NoisyAdam, param_groups=[{"params": "0", "betas": [0.5, 0.75]}])
    assert optimizer.rule_of(optimizer.groups["0.weight"]).betas == (0.5, 0.75)


def test_the_likelihoods_parameters_and_frozen_ones_may_be_in_a_group() -> None:
    net = network(3, 4, 2)
    net[0].requires_grad_(False)
    likelihood = br.Gaussian(0.5, learn=True)
    (own,) = dict(likelihood.named_parameters())
    groups = [{"params": [net[0], f"likelihood.{own}"], "lr": 0.2}]
    optimizer = make(NoisyKFAC, net, likelihood=likelihood, param_groups=groups)
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 2]
    assert optimizer.lr_of(f"likelihood.{own}") == 0.2


REFUSED = {
    "a dict in place of the list": (lambda net: {"params": net[0].parameters(), "lr": 0.1}, "list of dicts.*type dict"),
    "a number": (lambda net: 3, "list of dicts.*type int"),
    "a string": (lambda net: "0", "list of dicts.*type str"),
    "bare parameters": (lambda net: list(net.parameters()), "is a dict that has.*type Parameter"),
    "no params": (lambda net: [{"lr": 0.1}], r"is a dict that has.*\['lr'\]"),
    "an unknown name": (lambda net: [{"params": ["0.wieght"]}], "names modules.*Did you mean '0.weight'"),
    "the root": (lambda net: [{"params": ""}], "names modules or parameters"),
    "a misspelt option": (lambda net: [{"params": "0", "lrr": 0.1}], "no such option. Got: lrr. Did you mean 'lr'"),
    "an option of another": (lambda net: [{"params": "0", "weight_decay": 0.1}], "weight_decay.*It may have lr, beta"),
    "a negative lr": (lambda net: [{"params": "0", "lr": -0.1}], "lr of a param group.*negative.*-0.1"),
    "lr NaN": (lambda net: [{"params": "0", "lr": float("nan")}], "lr of a param group.*nan"),
    "lr in words": (lambda net: [{"params": "0", "lr": "0.1"}], "lr of a param group is a number.*'0.1'"),
    "an option that makes no sense": (lambda net: [{"params": "0", "beta": 2.0}], "beta lies in"),
    "another network's": (lambda net: [{"params": copy.deepcopy(net)[0]}], r"not the network's.*\(4, 3\)"),
    "params of no kind": (lambda net: [{"params": 3}], '"params" of a param group.*type int'),
    "params of mixed kinds": (lambda net: [{"params": ["0", None]}], '"params" of a param group.*NoneType'),
    "half a posterior": (lambda net: [{"params": "0.weight", "lr": 0.1}], "must be in one param group.*0.bias"),
}


@pytest.mark.parametrize(("given", "match"), REFUSED.values(), ids=REFUSED)
def test_param_groups_that_make_no_sense(given, match: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # the checks of the test suite would speak first
    net = network(3, 4, 2)
    with pytest.raises(InvalidArgument, match=match):
        make(NoisyKFAC, net, param_groups=given(net))


BLAMED = {
    "Gaussian": (br.Gaussian(0.5), Y),
    "Poisson": (br.Poisson(), Y.abs().round()),
}


@pytest.mark.parametrize("samples", [1, 2])
@pytest.mark.parametrize(("likelihood", "targets"), BLAMED.values(), ids=BLAMED)
def test_nan_in_the_inputs_is_not_blamed_on_the_targets(likelihood, targets: Tensor, samples: int) -> None:
    optimizer = make(NoisyKFAC, likelihood=likelihood, fisher_samples=samples)
    before, x = held(optimizer)[1], X.clone()
    x[3, 1] = float("nan")
    error = refused(
        lambda: step(optimizer, lambda: optimizer.nll(optimizer.model(x), targets)),
        rf"outputs are not finite. Got: 2 of {Y.numel()} numbers. Look for NaN in the batch's inputs.*lower lr",
    )
    assert "targets" not in str(error)
    assert held(optimizer)[1] == before
    step(optimizer, lambda: optimizer.nll(optimizer.model(X), targets))
    assert optimizer.steps == 1


def test_bad_targets_of_finite_outputs_are_still_named() -> None:
    class Odd(br.Gaussian):
        def _sample(self, outputs: Tensor, noise: Any) -> Tensor:
            return torch.full_like(outputs, torch.inf)

    with pytest.raises(InvalidArgument, match="targets must be finite"):
        sampled_cotangents(Odd(0.5), X, FromGenerator(None))


@every
def test_a_gradient_that_is_not_finite_points_at_the_batch_first(kind) -> None:
    optimizer = make(kind, likelihood=br.Categorical())
    x, classes = X.clone(), Y.argmax(-1)
    x[0, 0] = float("nan")
    error = refused(
        lambda: step(optimizer, lambda: optimizer.nll(optimizer.model(x), classes)), "A gradient is not finite"
    )
    assert error.remedy.index("NaN in the batch") < error.remedy.index("lower lr") < error.remedy.index("clip")


@pytest.mark.parametrize("fisher", ["sampled", "exact"])
def test_one_output_is_no_class(fisher: str) -> None:
    """Whose softmax is 1: the loss could not fall, and the curvature is zero."""
    optimizer = make(NoisyKFAC, network(3, 4, 1), likelihood=br.Categorical(), fisher=fisher)
    for loss in (
        lambda: torch.nn.functional.cross_entropy(optimizer.model(X), torch.zeros(len(X), dtype=torch.int64)),
        lambda: optimizer.nll(optimizer.model(X), torch.zeros(len(X), dtype=torch.int64)),
    ):
        refused(lambda loss=loss: step(optimizer, loss), "classes need two or more outputs", ShapeMismatch)


@pytest.mark.parametrize("kind", ["IVON", "VOGN", "OGN", "KTiedVON", "NoisyAdam", "NoisyKFAC", "NoisyEKFAC"])
@pytest.mark.parametrize("spoiled", ["mended", "too large"])
def test_a_posterior_that_would_not_be_finite_is_refused_and_nothing_changes(kind: str, spoiled: str) -> None:
    """Gradients that were mended after their curvature was taken, and finite ones whose squares are not."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    options = {} if kind in ("IVON", "KTiedVON") else {"fisher": "empirical"}
    opt = getattr(br.optim, kind)(net, n_data=50, likelihood=br.Categorical(), seed=0, **options)
    x, y = torch.randn(6, 3), torch.tensor([0, 1, 0, 1, 0, 1])

    def block(factor: float) -> None:
        with opt.sampled_params():
            opt.zero_grad()
            (nn.functional.cross_entropy(net(x), y) * factor).backward()

    block(1.0)
    opt.step()
    before = [parameter.detach().clone() for parameter in net.parameters()]
    variances = [posterior.variance.clone() for posterior in opt.posteriors().values()]
    block(float("nan") if spoiled == "mended" else 1e30)
    if spoiled == "mended":
        for parameter in net.parameters():
            parameter.grad.data.nan_to_num_(0.0)  # type: ignore[union-attr]
    with pytest.raises(InvalidArgument, match="not finite"):
        opt.step()
    assert all(torch.equal(now, then) for now, then in zip(net.parameters(), before, strict=True))
    posteriors = opt.posteriors().values()
    assert all(torch.equal(now.variance, then) for now, then in zip(posteriors, variances, strict=True))
    block(1.0)
    opt.step()
    assert all(bool(parameter.isfinite().all()) for parameter in net.parameters())
    assert all(bool((posterior.variance > 0).all()) for posterior in opt.posteriors().values())


def test_an_option_that_makes_no_sense_is_refused_for_a_param_group_too() -> None:
    net = nn.Linear(3, 2)
    with pytest.raises(InvalidArgument, match="warm_up"):
        br.optim.IVON(net, n_data=5, param_groups=[{"params": net.parameters(), "warm_up": True}])

"""Binary weights, convolutions with groups, and the verbs for converted models: what optimizers do with each."""

from __future__ import annotations

import jaxtyping
import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule.errors import InvalidArgument, Unsupported
from bayesrule.optim import IVON, STE, BayesBiNN, NoisyAdam, NoisyKFAC
from optim_problems import BINARY, EVERY, OPTIMIZERS, TAPPING, loss_of, make, network, regression, step, values

all_kinds = pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.__name__)
gaussian = pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda kind: kind.__name__)
X, _ = regression()


@pytest.fixture(autouse=True)
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the shape checks of the test suite, which would speak first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def test_the_kl_of_binary_weights_is_to_the_uniform_law() -> None:
    optimizer = make(BayesBiNN)
    step(optimizer, lambda: loss_of(optimizer))
    want = torch.zeros((), dtype=torch.float64)
    for posterior in optimizer.posteriors().values():
        law = torch.distributions.Bernoulli(logits=2 * posterior.natural)
        uniform = torch.distributions.Bernoulli(torch.full_like(posterior.natural, 0.5))
        want += torch.distributions.kl_divergence(law, uniform).sum()
    assert want > 0.1
    torch.testing.assert_close(optimizer.kl(), want, rtol=1e-12, atol=1e-12)
    with pytest.raises(Unsupported, match=r"have no KL.*Use BayesBiNN"):
        make(STE).kl()


def grouped_network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 2, groups=2), nn.Flatten(), nn.Linear(16, 2)).double()


@all_kinds
def test_a_convolution_with_groups(kind) -> None:
    """Refused where it would be tapped, and then trained by Adam once its module or its parameters are named."""
    net, images = grouped_network(), torch.randn(5, 2, 3, 3, dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 0, 1])
    options = {"likelihood": br.Categorical()}
    if kind in TAPPING:
        with pytest.raises(Unsupported, match=r"'0' has groups.*inputs that all.*plain=\('0',\).*IVON"):
            make(kind, net, **options)
    else:
        assert make(kind, net, **options).plan["0.weight"].rule == kind.__name__
    plains = [["0"], ["0.weight", "0.bias"], *([()] if kind not in TAPPING else [])]
    for plain in plains:
        optimizer = make(kind, grouped_network(), plain=plain, **options)
        before = values(optimizer)
        assert (optimizer.plan["0.weight"].rule == "Adam") == bool(plain)
        for _ in range(2):
            step(optimizer, lambda: optimizer.nll(optimizer.model(images), labels))  # noqa: B023, called here
        posteriors = br.posteriors(optimizer)
        assert all(posterior.variance.isfinite().all() for posterior in posteriors.values())
        assert kind in BINARY or not torch.equal(values(optimizer)[0], before[0])
        assert br.predict(optimizer, images, samples=3).probs.shape == (5, 2)


def test_frozen_groups_need_no_name() -> None:
    net = grouped_network()
    net[0].requires_grad_(False)
    assert make(NoisyKFAC, net, likelihood=br.Categorical()).plan["0.weight"].note == "frozen"


def test_curvature_of_a_convolution_with_groups_is_that_of_its_own_weights() -> None:
    """Line 4 of Shen et al. (2024), entry by entry, in the weight's own layout."""
    images, labels = torch.randn(5, 2, 3, 3, dtype=torch.float64), torch.tensor([0, 1, 1, 0, 1])
    optimizer = make(IVON, grouped_network(), likelihood=br.Categorical(), betas=(0.0, 0.5), max_kl=None)
    weight, bias = (parameter.detach().clone() for parameter in optimizer.model[0].parameters())
    drawn: dict[str, torch.Tensor] = {}
    with optimizer.sampled_params():
        loss = optimizer.nll(optimizer.model(images), labels)
        loss.backward()
        drawn |= {
            "weight": optimizer.model[0].weight.detach() - weight,
            "bias": optimizer.model[0].bias.detach() - bias,
        }
        gradients = {name: p.grad.clone() for name, p in optimizer.model[0].named_parameters()}
    optimizer.step()
    gamma, start, rate = 1 / (50 * 0.8**2), 0.1, 0.5
    state = optimizer.states["0.weight"].curvature
    got = {"weight": state[:-1].mT.reshape(weight.shape), "bias": state[-1]}
    for name, gradient in gradients.items():
        estimate = gradient * drawn[name] * 50 * (start + gamma)
        moved = (1 - rate) * start + rate * estimate + 0.5 * rate**2 * (start - estimate) ** 2 / (start + gamma)
        torch.testing.assert_close(got[name], moved, rtol=1e-10, atol=1e-12)


@gaussian
def test_verbs_for_converted_models_say_what_an_optimizer_has_instead(kind, tmp_path) -> None:
    optimizer = make(kind)
    for verb, remedy in (
        (br.kl, r"Use opt\.kl\(\)"),
        (lambda each: br.save(each, tmp_path), r"Keep opt\.state_dict\(\) and the network's"),
        (br.mean_module, "the network itself"),
        (lambda each: br.compress(each, 1), "KTiedVON"),
        (lambda each: br.NegativeELBO(each, 50), r"opt\.nll"),
    ):
        with pytest.raises(InvalidArgument, match=remedy) as error:
            verb(optimizer)
        assert "bayesianize" not in str(error.value)
    with pytest.raises(InvalidArgument, match="Use br"):
        br.kl(optimizer.model)


def test_verbs_take_a_compiled_model(tmp_path) -> None:
    bnn = br.bayesianize(network(3, 4, 2), br.Diagonal(), likelihood=br.Gaussian(0.5))
    compiled = torch.compile(bnn, backend="eager")
    assert torch.equal(br.kl(compiled), br.kl(bnn))
    assert torch.equal(br.mean_module(compiled)(X), br.mean_module(bnn)(X))
    assert br.NegativeELBO(compiled, 50).bnn is bnn
    loaded = br.load(br.save(compiled, tmp_path), network(3, 4, 2))
    assert torch.equal(br.kl(loaded), br.kl(bnn))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rule": "kfac"}, r"rule is the algorithm.*'kfac'.*NoisyKFACRule\(\)"),
        ({"rule": NoisyAdam}, "rule is the algorithm"),
        ({"hidden": 30}, r"hidden is a sequence.*Write hidden=\(30,\)"),
        ({"hidden": (8.5,)}, "hidden is a sequence"),
        ({"hidden": (0,)}, "at least one unit"),
        ({"seeds": 2}, r"seeds is a sequence.*Write seeds=\(2,\)"),
        ({"x": [[1.0]]}, "x must be one tensor"),
    ],
)
def test_replicas_name_what_they_take(given: dict[str, object], message: str) -> None:
    x = torch.randn(2, 6, 3)
    options = {"x": x, "y": x[..., :1], "rule": br.optim.NoisyKFACRule(), "seeds": range(2), **given}
    with pytest.raises(InvalidArgument, match=message):
        br.train.Replicas(**options)

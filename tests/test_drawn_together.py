"""A model whose small weights are drawn together before a pass: the same numbers and gradients, whoever reads them."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import bayesrule as br
from bayesrule.kernels import FastNoise
from bayesrule.kernels.native import is_there
from drawn_models import X, at_given_draws, model, nll_of, nodes, on
from kernel_checks import assert_relative


@pytest.fixture(params=[
    pytest.param("cpu", marks=pytest.mark.skipif(not is_there(), reason="needs a C compiler")),
    pytest.param("cuda", marks=pytest.mark.gpu),
])  # fmt: skip
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    return request.param


on_a_cpu = pytest.mark.skipif(not is_there(), reason="needs a C compiler")


def test_a_training_step_of_a_model_is_one_node_with_the_exact_gradient(device: str) -> None:
    bnn = model(device)
    seen: dict[str, Tensor] = {}
    hook = bnn.module.head.register_forward_hook(
        lambda *_: seen.update({name: bnn.draws.tensor(home, name).detach() for name, home in bnn.homes().items()})
    )
    loss = nll_of(bnn) + br.kl(bnn) / 50
    hook.remove()
    ours = {name for name in nodes(loss) if name.startswith("_")}
    assert ours == {"_DrawsBackward"} if device == "cpu" else "_DrawsBackward" in ours  # but for what is used twice
    want, total = at_given_draws(bnn, seen)
    assert_relative(loss, total, 1e-5)
    loss.backward()
    for mine, theirs in zip(bnn.parameters(), want, strict=True):
        assert mine.grad is not None
        assert_relative(mine.grad, theirs, 1e-4)


def gradients(bnn: br.nn.BayesianModule, run: Callable[[br.nn.BayesianModule], object]) -> list[Tensor]:
    bnn.zero_grad()
    torch.manual_seed(5)
    run(bnn)
    return [parameter.grad.clone() for parameter in bnn.parameters() if parameter.grad is not None]


def apart(bnn: br.nn.BayesianModule) -> None:
    nll_of(bnn).backward()
    (br.kl(bnn) / 50).backward()


def kl_first(bnn: br.nn.BayesianModule) -> None:
    loss, kl = nll_of(bnn), br.kl(bnn) / 50
    kl.backward()
    loss.backward()


def kl_twice(bnn: br.nn.BayesianModule) -> None:
    (nll_of(bnn) + br.kl(bnn) / 100 + br.kl(bnn) / 100).backward()


def kl_before(bnn: br.nn.BayesianModule) -> None:
    (br.kl(bnn) / 50 + nll_of(bnn)).backward()


def kl_in_half_precision_steps(bnn: br.nn.BayesianModule) -> None:
    (128 * (nll_of(bnn) + br.kl(bnn) / 50)).backward()  # as a scaler of gradients does
    for parameter in bnn.parameters():
        parameter.grad /= 128


def whole_is_checkpointed(bnn: br.nn.BayesianModule) -> None:
    x, y = on(next(bnn.parameters()).device)  # whose generator is then kept
    (F.cross_entropy(checkpoint(bnn, x, use_reentrant=False), y) + br.kl(bnn) / 50).backward()


def saved_tensors_are_watched(bnn: br.nn.BayesianModule) -> None:
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        loss = nll_of(bnn)
    (loss + br.kl(bnn) / 50).backward()


WAYS = [apart, kl_first, kl_twice, kl_before, kl_in_half_precision_steps, whole_is_checkpointed,
        saved_tensors_are_watched]  # fmt: skip


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_however_the_loss_is_put_together_its_gradient_is_the_same(way: Callable[..., None], device: str) -> None:
    bnn = model(device)
    bnn(X.to(device))
    want = gradients(bnn, lambda bnn: (nll_of(bnn) + br.kl(bnn) / 50).backward())
    assert len(want) == len(list(bnn.parameters()))
    for mine, theirs in zip(gradients(bnn, way), want, strict=True):
        assert_relative(mine, theirs.double(), 3e-6)


def test_autocast_changes_nothing_of_the_kl(device: str) -> None:
    bnn = model(device)
    values, slopes = [], []
    for on_half in (False, True):
        nll_of(bnn)
        with torch.autocast(device, torch.bfloat16, enabled=on_half):
            values.append(br.kl(bnn))
        slopes.append(torch.autograd.grad(values[-1], list(bnn.parameters())))
    assert_relative(values[1], values[0].double(), 1e-6)
    for mine, theirs in zip(*slopes, strict=True):
        assert_relative(mine, theirs.double(), 1e-6)


def test_two_passes_and_one_kl(device: str) -> None:
    """As with several draws for a step."""
    bnn = model(device)

    def both(bnn: br.nn.BayesianModule) -> None:
        (nll_of(bnn) + nll_of(bnn) + br.kl(bnn) / 50).backward()

    def one_by_one(bnn: br.nn.BayesianModule) -> None:
        nll_of(bnn).backward()
        nll_of(bnn).backward()
        (br.kl(bnn) / 50).backward()

    for mine, theirs in zip(gradients(bnn, both), gradients(bnn, one_by_one), strict=True):
        assert_relative(mine, theirs.double(), 3e-6)


def test_gradients_can_be_zeroed_in_place_and_added_up(device: str) -> None:
    bnn = model(device)
    once = gradients(bnn, lambda bnn: nll_of(bnn).backward())
    for parameter, slope in zip(bnn.parameters(), once, strict=True):
        assert torch.equal(parameter.grad, slope)
    bnn.zero_grad(set_to_none=False)
    assert not any(parameter.grad.any() for parameter in bnn.parameters())
    for _ in range(2):
        torch.manual_seed(5)
        nll_of(bnn).backward()
    for parameter, slope in zip(bnn.parameters(), once, strict=True):
        assert_relative(parameter.grad, 2 * slope.double(), 1e-6)


@on_a_cpu
def test_a_model_made_in_inference_mode() -> None:
    with torch.inference_mode():
        bnn = model()
        assert not torch.equal(bnn(X), bnn(X))
        torch.testing.assert_close(br.kl(bnn), br.kl(model()), rtol=1e-6, atol=0)


@on_a_cpu
def test_a_pass_is_let_go() -> None:
    """What the KL may join is the node of the draws; of what came after it, nothing is kept alive."""
    bnn = model()
    x = torch.randn(4, 2, 6, 6).requires_grad_()
    gone = weakref.ref(x)
    output = bnn(x)
    del x, output
    assert gone() is None


class Reader(nn.Module):
    """Uses a weight in a layer and by itself, which a trace of the layer's call shows or not."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(9, 7)
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        output = self.layer(x)
        self.seen = [self.layer.weight, self.layer.bias]
        return output + 0 * sum(each.sum() for each in self.seen)


@on_a_cpu
def test_who_reads_a_weight_after_the_layer_gets_its_draw() -> None:
    bnn = br.bayesianize(Reader(), br.KTied(2, 0.3), estimator=br.WeightSample())
    bnn.draws.shared.clear()  # as where conversion could not know of the second use
    x = torch.randn(4, 9)
    output = bnn(x)
    weight, bias = bnn.module.seen
    assert type(weight.grad_fn).__name__ == "_DrawsBackward"
    torch.testing.assert_close(output, x @ weight.mT + bias)
    before = weight.detach().clone()
    bnn(x)
    assert not torch.equal(before, bnn.module.seen[0])


@pytest.mark.parametrize("own", [False, True])
@on_a_cpu
def test_a_seed_fixes_the_draws(own: bool) -> None:
    bnn, generator = model(), torch.Generator() if own else None
    bnn.draws.noise = FastNoise(generator)

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(7) if own else torch.manual_seed(seed)
        if generator is not None:
            generator.manual_seed(seed)
        return torch.stack([bnn(X), bnn(X)])

    first = drawn(1)
    assert not torch.equal(first[0], first[1])
    assert torch.equal(drawn(1), first)
    assert not torch.equal(drawn(2), first)


@on_a_cpu
def test_a_parameter_put_in_anothers_place_is_drawn_from() -> None:
    bnn = model()
    bnn(X)
    posterior = bnn.homes()["head.weight"].posterior
    for name, parameter in list(posterior.named_parameters()):
        setattr(posterior, name, nn.Parameter(torch.full_like(parameter, -60.0 if "factor" in name else 0.0)))
    assert not bnn(X).any()
    (bnn(X).sum() + br.kl(bnn)).backward()
    assert posterior.mean.grad is not None


@on_a_cpu
def test_a_layer_of_another_estimator_draws_for_itself() -> None:
    """A layer with local noise has no use for what is drawn before the pass, nor does its bias change by it."""
    torch.manual_seed(2)
    bnn = br.bayesianize(nn.Sequential(nn.Linear(9, 7), nn.Tanh(), nn.Linear(7, 2)), br.KTied(2, 0.2))
    bnn.module[0].estimator, bnn.module[2].estimator = br.LocalReparam(), br.WeightSample()
    x, count, generator = torch.randn(1, 9), 2_000, torch.Generator().manual_seed(4)
    with torch.no_grad():
        drawn = {name: each.rsample((count,), generator=generator) for name, each in br.posteriors(bnn).items()}
        hidden = torch.tanh(x @ drawn["0.weight"] + drawn["0.bias"][:, None])
        want = (hidden @ drawn["2.weight"] + drawn["2.bias"][:, None])[:, 0]
        got = torch.cat([bnn(x) for _ in range(count)])
    error = ((got.var(0) + want.var(0)) / count).sqrt()
    assert ((got.mean(0) - want.mean(0)).abs() < 5.5 * error).all()  # of two numbers: one failure in 10⁷
    torch.testing.assert_close(got.std(0), want.std(0), rtol=0.15, atol=0)  # six of its standard errors or more

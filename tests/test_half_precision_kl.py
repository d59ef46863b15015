"""The KL of parameters in half precision: found in single precision, against a copy of the model in double."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.nn import BayesianModule
from bayesrule.posteriors import Family
from bayesrule.priors import Prior

HALVES = [torch.float16, torch.bfloat16]
FAMILIES: list[Family] = [
    br.Diagonal(), br.KTied(2), br.MatrixNormal(), br.MatrixNormalDiagonal("kronecker"),
    br.MatrixNormalDiagonal("free"), br.ClippedLowRank(2),
]  # fmt: skip
PRIORS: list[Prior] = [
    br.Normal(0.5), br.Normal(0.5, 0.1), br.Normal(torch.tensor(0.7)), br.Normal(0.3, "pretrained"), br.HeNormal(),
    br.LearnedNormal(), br.LearnedNormal("model"), br.ARD(),
    *(br.GroupARD(group, learn) for group in ("row", "both", "channel") for learn in ("closed-form", "gradient")),
]  # fmt: skip


def kl_and_gradients(bnn: BayesianModule) -> tuple[Tensor, dict[str, Tensor]]:
    bnn.zero_grad()
    kl = br.kl(bnn)
    kl.backward()
    return kl.detach(), {name: p.grad for name, p in bnn.named_parameters() if p.grad is not None}


def assert_is_the_kl_of_a_copy_in_double(bnn: BayesianModule, dtype: torch.dtype) -> None:
    """Values to single precision; gradients to the parameters' own, besides what cancels in sums of hundreds."""
    kl, gradients = kl_and_gradients(bnn)
    want, slopes = kl_and_gradients(copy.deepcopy(bnn).double())
    assert (kl.dtype, want.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(kl.double(), want, rtol=1e-6, atol=0)
    assert gradients.keys() == slopes.keys()
    for name, gradient in gradients.items():
        assert gradient.dtype == dtype
        torch.testing.assert_close(gradient.double(), slopes[name], rtol=torch.finfo(dtype).eps, atol=1e-4, msg=name)


@pytest.mark.parametrize("prior", PRIORS, ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_the_kl_is_found_in_single_precision(family: Family, prior: Prior) -> None:
    net = nn.Sequential(nn.Linear(60, 40), nn.Tanh(), nn.Linear(40, 3))
    for dtype in HALVES:
        assert_is_the_kl_of_a_copy_in_double(br.bayesianize(net, family, prior=prior).to(dtype), dtype)
    bnn = br.bayesianize(net.half(), family, prior=prior, bias="augment")  # of weights in half precision, or made so
    assert_is_the_kl_of_a_copy_in_double(bnn, torch.float16)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("family", FAMILIES[:4], ids=str)
def test_models_of_ordinary_size(family: Family, dtype: torch.dtype) -> None:
    """A sum over 90 000 weights is beyond the largest number of float16."""
    bnn = br.bayesianize(nn.Linear(300, 300), family).to(dtype)
    assert_is_the_kl_of_a_copy_in_double(bnn, dtype)
    assert br.kl(bnn) > torch.finfo(torch.float16).max
    assert all(kl.dtype == torch.float32 and kl.isfinite() for kl in bnn.kls().values())


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_convolutions(family: Family) -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ConvTranspose2d(8, 4, 2), nn.Conv2d(4, 4, 3, groups=2))
    for prior in (br.Normal(0.5), br.GroupARD("channel", "gradient")):
        assert_is_the_kl_of_a_copy_in_double(br.bayesianize(net, family, prior=prior).half(), torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_other_precisions_stay(dtype: torch.dtype) -> None:
    for prior in (br.Normal(0.5), br.LearnedNormal(), br.GroupARD("row", "gradient")):
        bnn = br.bayesianize(nn.Linear(6, 5), br.KTied(2), prior=prior).to(dtype)
        kl, gradients = kl_and_gradients(bnn)
        assert {kl.dtype, *(gradient.dtype for gradient in gradients.values())} == {dtype}


def test_a_model_partly_in_half_precision() -> None:
    bnn = br.bayesianize(
        nn.Sequential(nn.Linear(60, 40), nn.Linear(40, 3)), br.KTied(2), prior=br.LearnedNormal("model")
    )
    bnn.module[0].half()
    want = br.kl(copy.deepcopy(bnn).double())
    kl, gradients = kl_and_gradients(bnn)
    torch.testing.assert_close(kl.double(), want, rtol=1e-6, atol=0)
    assert kl.dtype == torch.float32
    assert {gradient.dtype for gradient in gradients.values()} == {torch.float16, torch.float32}


def test_the_objective() -> None:
    bnn = br.bayesianize(nn.Linear(300, 300), br.Diagonal(), likelihood=br.Categorical()).half()
    outputs = bnn(torch.randn(8, 300).half())
    loss = br.NegativeELBO(bnn, n_data=1000)(outputs, torch.randint(0, 300, (8,)))
    assert loss.total.dtype == loss.kl.dtype == torch.float32
    assert (loss.total - loss.nll).item() == pytest.approx(br.kl(bnn).item() / 1000, rel=1e-5)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in bnn.parameters())


def test_gathered_parameters() -> None:
    """Put together from several processes: gathered as they are kept, and again for the gradient."""
    bnn = br.bayesianize(nn.Linear(30, 20), br.KTied(2)).half()
    want, slopes = kl_and_gradients(bnn)
    seen: set[torch.dtype] = set()

    def gather(tensor: Tensor) -> Tensor:
        seen.add(tensor.dtype)
        return tensor.clone()

    for home in bnn.homes().values():
        home.posterior.gather = gather
    kl, gradients = kl_and_gradients(bnn)
    torch.testing.assert_close(kl, want, rtol=1e-6, atol=0)
    assert seen == {torch.float16}
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, slopes[name])


def test_priors_start_as_in_single_precision() -> None:
    """Variances of 1e-6 are below the normal numbers of float16."""
    net = nn.Linear(6, 5)
    nn.init.zeros_(net.weight)
    learned = [
        br.bayesianize(plain, br.Diagonal(1e-3, 0.0), prior=br.GroupARD("row", "gradient")).homes()["weight"]
        for plain in (net.half(), copy.deepcopy(net).float())
    ]
    half, single = (home.hyperparameters.log_tau for home in learned)
    assert (half.dtype, single.dtype) == (torch.float16, torch.float32)
    torch.testing.assert_close(half.float(), single, rtol=1e-3, atol=0)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_optimizers_that_hold_a_posterior(dtype: torch.dtype) -> None:
    """They keep it in single precision."""
    net = nn.Linear(300, 300).to(dtype)
    optimizer = br.optim.VOGN(net, n_data=100, likelihood=br.Categorical())
    with optimizer.sampled_params():
        optimizer.zero_grad()
        optimizer.nll(net(torch.randn(4, 300, dtype=dtype)), torch.zeros(4, dtype=torch.int64)).backward()
    optimizer.step()
    assert optimizer.kl().dtype == torch.float32
    assert optimizer.kl().isfinite()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_on_a_gpu(family: Family, dtype: torch.dtype) -> None:
    for prior in (br.Normal(0.5), br.LearnedNormal("model"), br.GroupARD("both", "gradient")):
        net = nn.Sequential(nn.Linear(300, 200), nn.Linear(200, 3)).cuda()
        assert_is_the_kl_of_a_copy_in_double(br.bayesianize(net, family, prior=prior).to(dtype), dtype)

"""Outputs of a converted network have the dtype of the plain network's, by every estimator and with autocast too."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from estimator_cases import ESTIMATORS
from examples import families
from layers import layer
from torch import Tensor, nn

import bayesrule as br
from bayesrule.estimators import LocalReparam
from bayesrule.nn import BayesianModule
from bayesrule.posteriors import Family, Point

FAMILIES = [family for family in families() if not isinstance(family, Point)]
LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Linear(6, 5), lambda: torch.randn(4, 6)),
    "linear-sequence": (lambda: nn.Linear(6, 5), lambda: torch.randn(2, 3, 6)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3), lambda: torch.randn(2, 4, 5, 5)),
    "conv2d-groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), lambda: torch.randn(2, 4, 5, 5)),
    "conv-transpose2d": (lambda: nn.ConvTranspose2d(4, 5, 2), lambda: torch.randn(2, 4, 3, 3)),
    "embedding": (lambda: nn.Embedding(7, 5, padding_idx=1), lambda: torch.randint(0, 7, (3, 2))),
}
HALVES = [torch.bfloat16, torch.float16]
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def converted(net: nn.Module, family: Family, estimator: str, bias: Any) -> BayesianModule | None:
    """None where Flipout refuses entries that are not independent."""
    try:
        return br.bayesianize(net, family, estimator=ESTIMATORS[estimator], bias=bias)
    except br.errors.Unsupported:
        assert estimator == "Flipout"
        return None


def assert_same_dtypes(estimator: str, kind: str, bias: str, device: str, *dtypes: torch.dtype | None) -> None:
    """In these precisions of autocast, or without it."""
    make, inputs = LAYERS[kind]
    net, x = make().to(device), inputs().to(device)
    every = [converted(net, family, estimator, bias) for family in FAMILIES]
    for dtype in dtypes:
        with torch.autocast(device, dtype, enabled=dtype is not None):
            want = net(x).dtype
            for bnn in every:
                if bnn is not None:
                    output = bnn(x)
                    assert output.dtype == want, (bnn.conversion, dtype)
                    assert output.isfinite().all()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("bias", ["diagonal", "point", "augment"])
@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_outputs_have_the_dtype_of_the_plain_layer(estimator: str, kind: str, bias: str, device: str) -> None:
    assert_same_dtypes(estimator, kind, bias, device, None, *HALVES)


@pytest.mark.parametrize("dtype", [*HALVES, torch.float64], ids=str)
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_parameters_in_other_precisions(estimator: str, dtype: torch.dtype) -> None:
    """Autocast leaves float64 as it is."""
    for bias in ("diagonal", "augment"):
        for kind in ("linear", "conv2d", "embedding"):
            make, inputs = LAYERS[kind]
            net, x = make().to(dtype), inputs()
            x = x.to(dtype) if x.is_floating_point() else x
            every = [converted(net, family, estimator, bias) for family in FAMILIES]
            for autocast in (False, True):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    want = net(x).dtype
                    assert all(bnn is None or bnn(x).dtype == want for bnn in every), (bias, kind, autocast)


@pytest.mark.parametrize("name", ["generic-linear", "generic-conv2d", "augmented-linear", "augmented-conv2d-groups"])
def test_estimators_of_other_contractions(name: str) -> None:
    """In float32, which autocast does not leave as it is."""
    example = layer(name)
    family, x, mean = br.Diagonal(), example.x.float(), example.matrix.float()
    module = example.module.float()
    posterior = family.build(family.init(mean), event_dim=2)
    with torch.autocast("cpu", torch.bfloat16):
        for estimator in ESTIMATORS.values():
            assert estimator(posterior, example.contraction, x).dtype == module(x).dtype == torch.bfloat16
    example.module.double()


def test_the_dtype_does_not_depend_on_the_batch() -> None:
    """`Auto` takes local noise for small ones, and weight sampling for large ones."""
    bnn = br.bayesianize(nn.Linear(784, 400), br.KTied(2))
    chosen = set()
    with torch.autocast("cpu", torch.bfloat16):
        for examples in (8, 64, 1280):
            assert bnn(torch.randn(examples, 784)).dtype == torch.bfloat16
            chosen.add(type(bnn.module.last_choice[1]))
    assert len(chosen) == 2


class Joined(nn.Module):
    """Of two layers, by an operation that takes no two dtypes; `other` may be a point estimate."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(784, 400), nn.Linear(10, 400)

    def forward(self, x: Tensor) -> Tensor:
        return torch.lerp(self.one(x), self.other(x[:, :10]), 0.5)


@pytest.mark.parametrize("posterior", [br.KTied(2), {"one": br.KTied(2), "*": Point()}], ids=["both", "one"])
def test_a_network_whose_operations_take_one_dtype(posterior: Any) -> None:
    bnn = br.bayesianize(Joined(), posterior)
    with torch.autocast("cpu", torch.bfloat16):
        output = bnn(torch.randn(8, 784))
    output.float().square().mean().backward()
    assert output.dtype == torch.bfloat16
    assert all(p.grad.dtype == torch.float32 and p.grad.any() for p in bnn.parameters())


def test_rows_of_an_embedding_are_drawn_in_full_precision() -> None:
    """As whole weights are: products of factors in half precision have three digits, or vanish."""
    for family in FAMILIES:
        for estimator in ("WeightSample", "Flipout"):
            bnn, x = converted(nn.Embedding(50, 20), family, estimator, "point"), torch.randint(0, 50, (30,))
            if bnn is not None:
                drawn = []
                for autocast in (False, True):
                    torch.manual_seed(1)
                    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                        drawn.append(bnn(x))
                assert torch.equal(*drawn), family


@pytest.mark.parametrize("bias", ["diagonal", "augment"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: str(family).split("init", maxsplit=1)[0])
def test_only_the_output_is_rounded(family: Family, bias: Any) -> None:
    """The variances are those of full precision: without means the outputs are the same noise, to bfloat16's digits."""
    net = nn.Conv2d(3, 4, 2)
    nn.init.zeros_(net.weight)
    nn.init.zeros_(net.bias)
    bnn, x = br.bayesianize(net, family, estimator=LocalReparam(), bias=bias), torch.randn(2, 3, 4, 4)
    outputs = []
    for autocast in (False, True):
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            outputs.append(bnn(x).float())
    torch.testing.assert_close(outputs[1], outputs[0], rtol=3e-2, atol=3e-2)


@pytest.mark.slow
def test_compiled_code_keeps_them() -> None:
    script = Path(__file__).with_name("compiled_halves.py")
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["ktied", "diagonal", "matrix-normal"]

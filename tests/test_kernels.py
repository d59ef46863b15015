"""Kernels against the formula they replace."""

from __future__ import annotations

import pytest
import torch
from largest_tensor import LargestTensor
from torch import Tensor

from bayesrule.kernels import sum_log_product
from bayesrule.kernels import sum_log_product as public_name

MODULE = "bayesrule.kernels.sum_log_product.CHUNK_ENTRIES"
"""The module of the kernel, which its function hides as an attribute of the package."""


def positive(*shape: int) -> Tensor:
    return torch.rand(shape, dtype=torch.float64).add(0.1).requires_grad_()


def naive(left: Tensor, right: Tensor) -> Tensor:
    return (left @ right.mT).log().sum((-2, -1))


@pytest.fixture
def chunk(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    module = __import__("sys").modules["bayesrule.kernels.sum_log_product"]
    monkeypatch.setattr(module, "CHUNK_ENTRIES", request.param)
    return request.param

"""Small weights that are drawn together, and the KL that joins them: against plain operations in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from bayesrule.errors import InvalidArgument
from bayesrule.kernels import (
    JointDivergence,
    JointDraw,
    ParameterTap,
    Piece,
    StoredParameters,
    Term,
    diagonal_piece,
    ktied_piece,
)
from bayesrule.kernels.native import is_there
from kernel_checks import assert_relative

DEVICES = [
    pytest.param("cpu", marks=pytest.mark.skipif(not is_there(), reason="needs a C compiler")),
    pytest.param("cuda", marks=pytest.mark.gpu),
]
on_devices = pytest.mark.parametrize("device", DEVICES)

SHAPES = [((5,), 0), ((3, 7), 1), ((1, 1), 2), ((6, 2, 3, 3), 2), ((17, 40), 3), ((4096,), 0), ((9, 33), 5),
          ((2, 5), 1), ((130, 70), 2), ((3,), 0)]  # fmt: skip
"""Of means, fan-out first, and ranks; a vector's is 0."""
SEED, PRECISION, TOLERANCE = 2**62 - 3, 0.7, 3e-6


def pieces(device: str) -> list[Piece]:
    torch.manual_seed(3)
    found = []
    for shape, rank in SHAPES:
        logs = [(math.prod(shape[1:]), rank), (shape[0], rank)] if rank else [shape]
        tensors = [each.to(device) for each in (torch.randn(shape), *(0.5 * torch.randn(each) for each in logs))]
        stored = StoredParameters(tuple(map(nn.Parameter, tensors)), ParameterTap())
        found.append(ktied_piece(stored) if rank else diagonal_piece(stored))
    assert None not in found
    return found


def place_of(index: int) -> int:
    return 2**63 - 1 - 10 * index


def joint_of(some: list[Piece]) -> JointDraw:
    joint = JointDraw(some, list(map(place_of, range(len(some)))))
    assert joint.served()
    assert joint.draws.ready()
    return joint


def seed_of(joint: JointDraw, seed: int = SEED) -> Any:
    return seed if joint.device.type == "cpu" else torch.tensor([seed], device=joint.device)


def kl_of(joint: JointDraw) -> JointDivergence:
    return JointDivergence([Term(piece, 0.0, PRECISION) for piece in joint.pieces])


def exactly(joint: JointDraw) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """The parameters in float64, the draws, and the KL."""
    wide = [parameter.detach().double().requires_grad_() for parameter in joint.parameters]
    left, drawn, kl = iter(wide), [], torch.zeros((), dtype=torch.float64, device=joint.device)
    for index, piece in enumerate(joint.pieces):
        mean, logs = next(left), next(left)
        std = torch.einsum("ik,ok->oi", logs.exp(), next(left).exp()).reshape(mean.shape) if piece.rank else logs.exp()
        drawn.append(mean + std * joint.draws.normals(seed_of(joint), index).double())
        kl = kl + (0.5 * (PRECISION * (std**2 + mean**2) - 1 - math.log(PRECISION)) - std.log()).sum()
    return wide, drawn, kl


def weighted(drawn: list[Tensor]) -> Tensor:
    """Some number that uses all but the third and the sixth, a matrix and a vector, in their order in memory or not."""
    total = drawn[0].new_zeros(())
    for index, draw in enumerate(drawn):
        if index not in (2, 5):
            along = torch.linspace(-1, 2, draw.numel(), dtype=torch.float64).to(draw)
            total = total + (draw.square() * along.reshape(draw.shape[::-1]).permute(*range(draw.ndim)[::-1])).sum()
    return total


Loss = Callable[[list[Tensor], Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "draws": lambda drawn, kl: weighted(drawn),
    "KL": lambda drawn, kl: 0.3 * kl,
    "both": lambda drawn, kl: weighted(drawn) + 0.3 * kl,
}


@on_devices
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_draws_the_kl_and_their_gradients(loss: Loss, device: str) -> None:
    joint = joint_of(pieces(device))
    drawn, joining = joint.draw(seed_of(joint))
    kl = joining.sum(kl_of(joint))
    wide, exact, exact_kl = exactly(joint)
    assert kl is not None
    assert [draw.shape for draw in drawn] == [draw.shape for draw in exact]
    for mine, theirs in zip([*drawn, kl], [*exact, exact_kl], strict=True):
        assert_relative(mine, theirs, TOLERANCE)
    want = torch.autograd.grad(loss(exact, exact_kl), wide, allow_unused=True)
    for _ in range(2):  # nothing is used up
        got = torch.autograd.grad(loss(drawn, kl), joint.parameters, retain_graph=True, allow_unused=True)
        for mine, theirs in zip(got, want, strict=True):
            assert (mine is None) == (theirs is None)
            if mine is not None:
                assert_relative(mine, theirs, TOLERANCE)


@on_devices
def test_a_draw_is_the_same_whatever_is_drawn_beside_it(device: str) -> None:
    joint = joint_of(pieces(device))
    together, _ = joint.draw(seed_of(joint))
    for index, (piece, draw) in enumerate(zip(joint.pieces, together, strict=True)):
        apart = JointDraw([piece], [place_of(index)])
        (alone,), _ = apart.draw(seed_of(joint))
        assert torch.equal(alone, draw)
        (other,), _ = apart.draw(seed_of(joint, SEED + 1))
        assert not torch.equal(other, draw)


@on_devices
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_gradients_of_gradients_and_batches_of_gradients(loss: Loss, device: str) -> None:
    joint = joint_of(pieces(device)[:5])
    drawn, joining = joint.draw(seed_of(joint))
    kl = joining.sum(kl_of(joint))
    assert kl is not None
    wide, exact, exact_kl = exactly(joint)

    def second(total: Tensor, parameters: list[Tensor]) -> list[Tensor | None]:
        first = torch.autograd.grad(total, parameters, create_graph=True, allow_unused=True)
        squares = sum(slope.square().sum() for slope in first if slope is not None)
        return list(torch.autograd.grad(squares, parameters, allow_unused=True, retain_graph=True))

    for mine, theirs in zip(second(loss(drawn, kl), [*joint.parameters]), second(loss(exact, exact_kl), wide),
                            strict=True):  # fmt: skip
        if theirs is not None and theirs.any():
            assert mine is not None
            assert_relative(mine, theirs, 1e-5)
    outputs = loss(drawn, kl).expand(2), loss(exact, exact_kl).expand(2)
    several = [torch.autograd.grad(output, parameters, torch.tensor([[1.0, 0.0], [2.0, 3.0]]).to(output),
                                   is_grads_batched=True, allow_unused=True, retain_graph=True)
               for output, parameters in zip(outputs, (joint.parameters, wide), strict=True)]  # fmt: skip
    for mine, theirs in zip(*several, strict=True):
        if theirs is not None:
            assert_relative(mine, theirs, TOLERANCE)


@on_devices
def test_values_that_are_gone_are_refused(device: str) -> None:
    joint = joint_of(pieces(device))
    drawn, joining = joint.draw(seed_of(joint))
    total = weighted(drawn)
    with torch.no_grad():
        joint.parameters[0].add_(1)
    with pytest.raises(InvalidArgument, match="changed in place"):
        total.backward()
    assert joining.sum(kl_of(joint)) is None  # the KL is of what the parameters are now

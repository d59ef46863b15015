"""Standard normals of the compiled library: the published generator, and the law at a declared rate of false alarms."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.kernels.fast_noise import FEWEST_NORMALS, FastNoise
from bayesrule.kernels.native import is_there, standard_normals
from largest_tensor import LargestTensor

pytestmark = pytest.mark.skipif(not is_there(), reason="needs a C compiler")

FALSE_ALARM = 1e-6
STREAMS, MASK = 16, (1 << 32) - 1


def splitmix(state: int) -> tuple[int, int]:
    """The next state and number of splitmix64, as its authors publish it."""
    wide = (1 << 64) - 1
    state = (state + 0x9E3779B97F4A7C15) & wide
    z = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & wide
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & wide
    return state, z ^ (z >> 31)


def rotated(x: int, by: int) -> int:
    return ((x << by) | (x >> (32 - by))) & MASK


class Xoshiro:
    """xoshiro128++, as its authors publish it."""

    def __init__(self, words: list[int]) -> None:
        self.s = words

    def next(self) -> int:
        s = self.s
        result = (rotated((s[0] + s[3]) & MASK, 7) + s[0]) & MASK
        t = (s[1] << 9) & MASK
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = rotated(s[3], 11)
        return result


def expected(seed: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The normals, and how far from the origin their pairs are."""
    streams = []
    for _ in range(STREAMS):
        words = []
        for _ in range(2):
            seed, number = splitmix(seed)
            words += [number & MASK, number >> 32]
        streams.append(Xoshiro(words))
    found: list[float] = []
    radii: list[float] = []
    while len(found) < count:
        lengths = [math.sqrt(-2 * math.log(((stream.next() >> 1) + 0.5) / 2**31)) for stream in streams]
        angles = [2 * math.pi * stream.next() / 2**32 for stream in streams]
        found += [r * math.cos(a) for r, a in zip(lengths, angles, strict=True)]
        found += [r * math.sin(a) for r, a in zip(lengths, angles, strict=True)]
        radii += 2 * lengths
    return np.array(found[:count]), np.array(radii[:count])


def test_reference_numbers_of_xoshiro() -> None:
    """The first outputs from the state 1, 2, 3, 4, found with the authors' own program."""
    generator = Xoshiro([1, 2, 3, 4])
    assert [generator.next() for _ in range(3)] == [641, 1573767, 3222811527]


@pytest.mark.parametrize("seed", [0, 1, 2**62 - 1])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 1000])
def test_they_are_those_of_the_published_generator(seed: int, count: int) -> None:
    """Close to the origin a pair's distance is as coarse as single precision is close to one."""
    got = standard_normals(seed, (count,)).double().numpy()
    want, radii = expected(seed, count)
    assert (np.abs(got - want) < 2e-6 * np.abs(want) + 4e-7 + 2**-24 / radii).all()


def test_their_law() -> None:
    normals = np.concatenate([standard_normals(seed, (250_000,)).double().numpy() for seed in range(4)])
    assert scipy.stats.kstest(normals, "norm").pvalue > FALSE_ALARM
    bound = scipy.stats.norm.isf(FALSE_ALARM / 2) / math.sqrt(len(normals))
    for power, spread in ((1, 1), (2, 2), (3, 15), (4, 96)):
        centre = {2: 1.0, 4: 3.0}.get(power, 0.0)
        assert abs((normals**power).mean() - centre) < bound * math.sqrt(spread)
    for lag in (1, 2, 15, 16, 17, 31, 32, 33, 64):
        assert abs((normals[:-lag] * normals[lag:]).mean()) < bound
        assert abs(((normals[:-lag] ** 2 - 1) * (normals[lag:] ** 2 - 1)).mean()) < 2 * bound
    tail = (np.abs(normals) > 4).mean()
    chance = 2 * scipy.stats.norm.sf(4)
    assert abs(tail - chance) < scipy.stats.norm.isf(FALSE_ALARM / 2) * math.sqrt(chance / len(normals))


def test_neighbouring_seeds_have_nothing_in_common() -> None:
    normals = torch.stack([standard_normals(seed, (20_000,)) for seed in range(20)]).double()
    off = torch.corrcoef(normals) - torch.eye(20, dtype=torch.float64)
    assert off.abs().max() < scipy.stats.norm.isf(FALSE_ALARM / 380) / math.sqrt(20_000)


def test_a_source_of_many_is_reproducible_and_takes_its_seed_from_the_generator() -> None:
    like, many = torch.empty(()), (FEWEST_NORMALS,)
    draws = []
    for _ in range(2):
        torch.manual_seed(3)
        draws.append(torch.stack([FastNoise()(many, "normal", like) for _ in range(2)]))
    assert torch.equal(*draws)
    assert not torch.equal(draws[0][0], draws[0][1])
    own = [FastNoise(torch.Generator().manual_seed(3))(many, "normal", like) for _ in range(2)]
    assert torch.equal(*own)


@pytest.mark.parametrize(
    ("shape", "law", "dtype"),
    [((FEWEST_NORMALS - 1,), "normal", torch.float32), ((FEWEST_NORMALS,), "normal", torch.float64),
     ((FEWEST_NORMALS,), "uniform", torch.float32), ((FEWEST_NORMALS,), "sign", torch.float32)],
)  # fmt: skip
def test_all_other_noise_is_torchs_own(shape: tuple[int, ...], law: str, dtype: torch.dtype) -> None:
    like = torch.empty((), dtype=dtype)
    torch.manual_seed(3)
    got = FastNoise()(shape, law, like)
    torch.manual_seed(3)
    assert torch.equal(got, br.random.draw(shape, law, like))


def test_who_watches_operators_sees_torchs_own() -> None:
    torch.manual_seed(3)
    with LargestTensor():
        got = FastNoise()((FEWEST_NORMALS,), "normal", torch.empty(()))
    torch.manual_seed(3)
    assert torch.equal(got, torch.randn(FEWEST_NORMALS))


def test_a_copied_model_draws_the_same() -> None:
    bnn = br.bayesianize(nn.Linear(80, 90), br.Diagonal(), estimator=br.WeightSample())
    x = torch.randn(2, 80)

    def output(model: nn.Module) -> Tensor:
        torch.manual_seed(5)
        return model(x)

    assert torch.equal(output(bnn), output(copy.deepcopy(bnn)))
    assert not torch.equal(output(bnn), bnn(x))

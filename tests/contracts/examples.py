"""Examples of every posterior, and so of every covariance operator, as functions of freely varying parameters.

A family is found by its export and needs no entry here: its own `init` gives the parameters, all of them are then moved
at random, and its `build` gives the posterior. Operators and posteriors without a family have an entry below.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import pairwise

import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument
from bayesrule.posteriors import (
    BernoulliPosterior,
    BlockTridiagonalCovariance,
    ClippedLowRankCovariance,
    CovarianceOperator,
    Diagonal,
    EigenKroneckerCovariance,
    Family,
    Full,
    GaussianPosterior,
    KTied,
    MatrixNormal,
    MatrixNormalDiagonal,
    MixturePosterior,
    Posterior,
    RestrictedCovariance,
    TurnedEigenKroneckerCovariance,
)

SHAPES = ((1, 1), (1, 5), (7, 1), (5, 3), (4, 6))
CHAINS = (((5, 3),), ((1, 5), (5, 1)), ((2, 3), (3, 2), (2, 1)))
VARIANTS: dict[type[Family], list[Family]] = {
    KTied: [KTied(rank=rank) for rank in range(1, 5)],
    MatrixNormalDiagonal: [MatrixNormalDiagonal("kronecker"), MatrixNormalDiagonal("free")],
}
"""Families whose default is not the only form worth testing."""

Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class Example:
    """A posterior as a pure function of unconstrained parameters, each of which may move freely."""

    name: str
    parameters: dict[str, Tensor]
    build: Callable[[Parameters], Posterior]

    @property
    def posterior(self) -> Posterior:
        return self.build(self.parameters)

    @property
    def operator(self) -> CovarianceOperator:
        return self.build(self.parameters).covariance

    def batch(self, *sizes: int) -> dict[str, Tensor]:
        """Parameters with leading batch dimensions, every member different."""
        generator = torch.Generator().manual_seed(1)
        return {key: moved(value.expand(*sizes, *value.shape), generator) for key, value in self.parameters.items()}

    def __str__(self) -> str:
        return self.name


def exported(base: type) -> list[type]:
    """Concrete classes of a kind that `bayesrule.posteriors` exports."""
    package = importlib.import_module("bayesrule.posteriors")  # `bayesrule.posteriors`, the name, is a function
    classes = (getattr(package, name) for name in package.__all__)
    return [c for c in classes if inspect.isclass(c) and issubclass(c, base) and not inspect.isabstract(c)]


def noise(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def moved(value: Tensor, generator: torch.Generator, by: float = 0.2) -> Tensor:
    return value + by * noise(generator, *value.shape)


def families() -> list[Family]:
    """Every exported family, in its variants, with standard deviations of the order of one half."""
    every = [variant for kind in exported(Family) for variant in VARIANTS.get(kind, [kind()])]
    scaled = [{"init_std": 0.5} if "init_std" in {field.name for field in fields(each)} else {} for each in every]
    return [replace(family, **change) for family, change in zip(every, scaled, strict=True)]


def family_example(family: Family, shape: tuple[int, ...]) -> Example | None:
    """None where the family refuses the shape: a rank above the matrix, a vector for a matrix family."""
    generator = torch.Generator().manual_seed(0)
    try:
        initial = family.init(noise(generator, *shape), generator=generator)
    except InvalidArgument:
        return None
    parameters = {key: moved(value, generator) for key, value in initial.items()}
    name = f"{family}-{'x'.join(map(str, shape))}"
    return Example(name, parameters, lambda p: family.build(p, event_dim=len(shape)))


def family_examples() -> list[Example]:
    built = [family_example(family, shape) for family in families() for shape in (*SHAPES, (4,))]
    return [example for example in built if example is not None]


def gaussian(name: str, parameters: dict[str, Tensor], build: Callable[[Parameters], CovarianceOperator]) -> Example:
    return Example(name, parameters, lambda p: GaussianPosterior(p["mean"], build(p)))


def clipped(shape: tuple[int, int]) -> Example:
    generator, rank = torch.Generator().manual_seed(2), min(*shape, 2)
    parameters = {
        "mean": noise(generator, *shape),
        "fan_in": moved(torch.full((shape[0], rank), 0.5, dtype=torch.float64), generator, by=0.1),
        "fan_out": moved(torch.linspace(1, -0.5, shape[1], dtype=torch.float64)[:, None].repeat(1, rank), generator),
    }  # the last columns, of several, lie below the floor
    name = f"ClippedLowRank-{shape[0]}x{shape[1]}"
    return gaussian(name, parameters, lambda p: ClippedLowRankCovariance(p["fan_in"], p["fan_out"], 0.1))


def bases(generator: torch.Generator, shape: tuple[int, int], prefix: str = "") -> dict[str, Tensor]:
    return {
        prefix + "fan_in": torch.eye(shape[0], dtype=torch.float64) + 0.3 * noise(generator, shape[0], shape[0]),
        prefix + "fan_out": torch.eye(shape[1], dtype=torch.float64) + 0.3 * noise(generator, shape[1], shape[1]),
        prefix + "log_spectrum": noise(generator, *shape),
    }


def eigen_block(p: Parameters, prefix: str = "") -> EigenKroneckerCovariance:
    return EigenKroneckerCovariance(p[prefix + "fan_in"], p[prefix + "fan_out"], p[prefix + "log_spectrum"].exp())


def eigen_kronecker(shape: tuple[int, int]) -> Example:
    generator = torch.Generator().manual_seed(3)
    parameters = {"mean": noise(generator, *shape), **bases(generator, shape)}
    return gaussian(f"EigenKronecker-{shape[0]}x{shape[1]}", parameters, eigen_block)


def turned_eigen_kronecker(shape: tuple[int, int]) -> Example:
    generator = torch.Generator().manual_seed(5)
    parameters = {"mean": noise(generator, *shape), **bases(generator, shape)}
    turns = [torch.linalg.qr(noise(generator, size, size))[0] for size in shape]

    def build(p: Parameters) -> TurnedEigenKroneckerCovariance:
        block = eigen_block(p)
        own = (
            turn.expand_as(basis) for turn, basis in zip(turns, (block.fan_in_basis, block.fan_out_basis), strict=True)
        )
        return TurnedEigenKroneckerCovariance(block.fan_in_basis, block.fan_out_basis, block.spectrum, *own)

    return gaussian(f"TurnedEigenKronecker-{shape[0]}x{shape[1]}", parameters, build)


def block_tridiagonal(chain: tuple[tuple[int, int], ...]) -> Example:
    generator = torch.Generator().manual_seed(4)
    parameters = {"mean": noise(generator, sum(m * n for m, n in chain))}
    for index, layer in enumerate(chain):
        parameters |= bases(generator, layer, f"{index}.")
    for index, (this, following) in enumerate(pairwise(chain)):
        parameters[f"{index}.couple_in"] = 0.5 * noise(generator, this[0], following[0])
        parameters[f"{index}.couple_out"] = 0.5 * noise(generator, this[1], following[1])

    def build(p: Parameters) -> BlockTridiagonalCovariance:
        blocks = tuple(eigen_block(p, f"{index}.") for index in range(len(chain)))
        links = tuple((p[f"{index}.couple_in"], p[f"{index}.couple_out"]) for index in range(len(chain) - 1))
        return BlockTridiagonalCovariance(blocks, links)

    return gaussian(f"BlockTridiagonal-{len(chain)}", parameters, build)


def restricted(family: Family, shape: tuple[int, ...], start: int, length: int) -> Example:
    whole = family_example(family, shape)
    assert whole is not None

    def build(p: Parameters) -> GaussianPosterior:
        part = RestrictedCovariance(whole.build(p).covariance, start, length)
        return GaussianPosterior(p["mean"].narrow(-len(shape), start, length), part)

    return Example(f"Restricted-{whole.name}", whole.parameters, build)


def mixture(shape: tuple[int, int]) -> Example:
    generator = torch.Generator().manual_seed(5)
    kinds = [family_example(Diagonal(0.5), shape), family_example(MatrixNormalDiagonal(init_std=0.5), shape)]
    parameters = {"logits": noise(generator, 3)}
    for index, kind in enumerate((*kinds, kinds[0])):
        parameters |= {f"{index}.{key}": moved(value, generator, by=0.5) for key, value in kind.parameters.items()}

    def build(p: Parameters) -> MixturePosterior:
        own = [{key[2:]: p[key] for key in p if key.startswith(f"{index}.")} for index in range(3)]
        builds = kinds[0].build, kinds[1].build, kinds[0].build
        return MixturePosterior(p["logits"], tuple(b(mine) for b, mine in zip(builds, own, strict=True)))

    return Example(f"Mixture-{shape[0]}x{shape[1]}", parameters, build)


def bernoulli(shape: tuple[int, int]) -> Example:
    parameters = {"natural": noise(torch.Generator().manual_seed(6), *shape)}
    return Example(
        f"Bernoulli-{shape[0]}x{shape[1]}", parameters, lambda p: BernoulliPosterior(p["natural"], event_dim=2)
    )


EXAMPLES: list[Example] = [
    *family_examples(),
    *map(clipped, SHAPES),
    *map(eigen_kronecker, SHAPES),
    *map(turned_eigen_kronecker, SHAPES),
    *map(block_tridiagonal, CHAINS),
    restricted(MatrixNormal(0.5), (5, 3), 1, 3),
    restricted(MatrixNormalDiagonal("free", 0.5), (4, 6), 3, 1),
    restricted(KTied(2, 0.5), (5, 3), 0, 2),
    restricted(Full(0.5), (4,), 1, 2),
    *map(mixture, SHAPES),
    *map(bernoulli, SHAPES),
]
GAUSSIANS = [example for example in EXAMPLES if isinstance(example.posterior, GaussianPosterior)]

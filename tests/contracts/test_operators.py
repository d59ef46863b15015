"""Every covariance operator against its dense matrix."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from dense_oracle import array, dense, root_matrix
from examples import EXAMPLES, GAUSSIANS, Example, exported, families, family_example
from torch import Tensor

from bayesrule.errors import Unsupported
from bayesrule.posteriors import (
    CovarianceOperator,
    Family,
    GaussianPosterior,
    MatrixNormalFreeDiagonalCovariance,
    Posterior,
)

REFUSED = {MatrixNormalFreeDiagonalCovariance: {"solve"}}
"""What an operator that the oracle knows may refuse; a new one may refuse what it likes, with a remedy."""

every = pytest.mark.parametrize("example", GAUSSIANS, ids=str)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def offered(operator: CovarianceOperator, name: str, *arguments: Tensor) -> Tensor | None:
    """The result, or None where the operator refuses and says what to do instead."""
    try:
        return getattr(operator, name)(*arguments)
    except Unsupported as caught:
        refusal, kind = caught, type(operator)
    assert refusal.remedy, f"{kind.__name__} refuses {name} without a remedy"
    assert kind not in dense.registry or name in REFUSED.get(kind, set()), f"{kind.__name__} refuses {name}"
    return None


def assert_close(got: Tensor, want: np.ndarray | Tensor, tolerance: float = 1e-9) -> None:
    want = want if isinstance(want, Tensor) else torch.tensor(want)
    torch.testing.assert_close(got, want.reshape(got.shape), rtol=tolerance, atol=tolerance * float(want.abs().max()))


def test_every_exported_operator_and_posterior_has_an_example() -> None:
    operators = {type(example.operator) for example in GAUSSIANS}
    posteriors = {type(example.posterior) for example in EXAMPLES}
    assert not set(exported(CovarianceOperator)) - operators
    assert not set(exported(Posterior)) - posteriors


@pytest.mark.parametrize("family", families(), ids=str)
def test_every_exported_family_takes_a_matrix(family: Family) -> None:
    assert family_example(family, (4, 6)) is not None


@every
def test_matmul(example: Example) -> None:
    operator, matrix = example.operator, dense(example.operator)
    x = random(2, *operator.event_shape)
    assert_close(operator.matmul(x), array(x.reshape(2, -1)) @ matrix)
    assert_close(operator.dense(), matrix)


@every
def test_solve(example: Example) -> None:
    operator = example.operator
    x = random(2, *operator.event_shape)
    solution = offered(operator, "solve", x)
    if solution is not None:
        assert_close(solution, np.linalg.solve(dense(operator), array(x.reshape(2, -1)).T).T)


@every
def test_root_times_its_transpose_is_the_covariance(example: Example) -> None:
    root = root_matrix(example.operator)
    assert_close(torch.as_tensor(root @ root.T), dense(example.operator))


@every
def test_logdet(example: Example) -> None:
    operator = example.operator
    want = np.linalg.slogdet(dense(operator))[1]
    got = operator.logdet().item()
    if operator.exact_logdet:
        assert got == pytest.approx(want, rel=1e-9, abs=1e-9)
    else:
        assert got <= want + 1e-9


@every
def test_diagonal_and_trace(example: Example) -> None:
    operator = example.operator
    variance = np.diag(dense(operator)).reshape(operator.event_shape)
    assert_close(operator.diagonal(), variance)
    shape = tuple(operator.event_shape)
    rows_and_columns = [(shape[0], 1), (1, shape[1])] if len(shape) == 2 else []
    for precision_shape in [(), shape, *rows_and_columns]:
        precision = random(*precision_shape).exp()
        assert_close(operator.trace(precision), (array(precision) * variance).sum())


def results(posterior: GaussianPosterior, noise: Tensor, x: Tensor) -> dict[str, Tensor]:
    """Everything that an operator offers, for one noise and one event."""
    operator = posterior.covariance
    offers = {
        "matmul": operator.matmul(x),
        "solve": offered(operator, "solve", x),
        "sqrt": operator.sqrt_matmul(noise),
        "logdet": operator.logdet(),
        "diagonal": operator.diagonal(),
        "trace": operator.trace(x.square().mean(-1, keepdim=True)),
    }
    return {name: value for name, value in offers.items() if value is not None}


@every
def test_batched_and_vmapped_equal_one_by_one(example: Example) -> None:
    parameters = example.batch(2, 2)
    batch = example.build(parameters)
    assert batch.covariance.shape == batch.mean.shape
    noise, x = random(*batch.noise_shape), random(*batch.mean.shape)
    at_once = results(batch, noise, x)
    dense_at_once = batch.covariance.dense()

    def one(p: dict[str, Tensor], noise: Tensor, x: Tensor) -> dict[str, Tensor]:
        return results(example.build(p), noise, x)

    mapped = torch.func.vmap(torch.func.vmap(one))(parameters, noise, x)
    for i, j in np.ndindex(2, 2):
        mine = {key: value[i, j] for key, value in parameters.items()}
        for name, want in one(mine, noise[i, j], x[i, j]).items():
            assert_close(at_once[name][i, j], want)
            assert_close(mapped[name][i, j], want)
        assert_close(dense_at_once[i, j], dense(example.build(mine).covariance))


@every
def test_sample_dimensions_stand_before_batch_dimensions(example: Example) -> None:
    batch = example.build(example.batch(2)).covariance
    noises, events = random(3, *batch.noise_shape), random(3, *batch.shape)
    for name, many in (("matmul", events), ("solve", events), ("sqrt_matmul", noises)):
        together = offered(batch, name, many)
        if together is not None:
            assert_close(together, torch.stack([getattr(batch, name)(one) for one in many]))


SMALL = [example for example in GAUSSIANS if example.posterior.mean.numel() <= 15]


@pytest.mark.parametrize("operation", ["logdet", "sqrt_matmul", "trace"])
@pytest.mark.parametrize("example", SMALL, ids=str)
def test_gradients(example: Example, operation: str) -> None:
    names = [name for name in example.parameters if name != "mean"]
    values = tuple(example.parameters[name].clone().requires_grad_() for name in names)
    operator = example.operator
    arguments = {
        "logdet": (),
        "sqrt_matmul": (random(*operator.noise_shape),),
        "trace": (random(*operator.event_shape).exp(),),
    }[operation]

    def apply(*free: Tensor) -> Tensor:
        build: Callable[..., GaussianPosterior] = example.build
        rebuilt = build({"mean": example.parameters["mean"], **dict(zip(names, free, strict=True))})
        return getattr(rebuilt.covariance, operation)(*arguments)

    assert torch.autograd.gradcheck(apply, values)


def test_an_operator_is_frozen() -> None:
    for example in GAUSSIANS:
        operator = example.operator
        field = next(iter(operator.__dataclass_fields__))
        with pytest.raises(AttributeError, match="cannot assign"):
            setattr(operator, field, None)

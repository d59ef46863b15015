"""The dropout row beside a PyTorch network with ``nn.Dropout``, and Eqs. 42 and 43 in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesrule import algorithms
from bayesrule.experiments.blr import transcriptions
from bayesrule.experiments.blr.problems import Size, largest, logistic
from bayesrule.expfam import Loss, of_function

KEEP = 0.7
INPUTS, HIDDEN = 3, 5


def dropout(size: Size) -> float:
    """SGD and RMSprop with dropout against torch's own; the diagonal Newton variant against its equations."""
    return max(_against_torch(size, "SGD"), _against_torch(size, "RMSprop"), _newton(size))


def _against_torch(size: Size, optimizer: str) -> float:
    problem = logistic(size, dim=INPUTS)
    start = torch.as_tensor(size.rng("weights").normal(size=HIDDEN * INPUTS + HIDDEN))

    def losses(t: int) -> Loss:
        x, y = problem.x[t % len(problem.x)], problem.y[t % len(problem.x)]

        def loss(theta: Tensor) -> Tensor:
            hidden = torch.tanh(theta[: HIDDEN * INPUTS].view(HIDDEN, INPUTS) @ x)
            return (theta[HIDDEN * INPUTS :] @ hidden / KEEP - y).square()  # torch scales what is kept by 1/π₁

        return of_function(loss)

    def masks(t: int) -> Tensor:
        """One for a hidden unit's outgoing weight, as ``nn.Dropout`` draws it; incoming weights are never dropped."""
        with _seeded(t):
            kept = nn.functional.dropout(torch.ones(1, HIDDEN, dtype=start.dtype), 1 - KEEP)[0] != 0
        return torch.cat([torch.ones_like(start[: HIDDEN * INPUTS]), kept.to(start)])

    if optimizer == "SGD":
        ours = algorithms.dropout_sgd(losses, masks, start, keep=KEEP, step_size=0.1 * KEEP)
        stepper: Any = torch.optim.SGD, {"lr": 0.1}
    else:
        ours = algorithms.dropout_rmsprop(losses, masks, start, keep=KEEP, lr=0.02, alpha=0.9)
        stepper = torch.optim.RMSprop, {"lr": 0.02, "alpha": 0.9}
    theirs = _torch_network(problem.x, problem.y, start, *stepper)
    return largest([got - wanted for got, wanted in islice(zip(ours, theirs, strict=False), size.steps)])


def _torch_network(x: Tensor, y: Tensor, start: Tensor, optimizer: Any, options: dict[str, float]) -> Iterator[Tensor]:
    net = nn.Sequential(
        nn.Linear(INPUTS, HIDDEN, bias=False), nn.Tanh(), nn.Dropout(1 - KEEP), nn.Linear(HIDDEN, 1, bias=False)
    ).double()
    nn.utils.vector_to_parameters(start.clone(), net.parameters())
    stepper = optimizer(net.parameters(), **options)
    t = 0
    while True:
        row = t % len(x)
        stepper.zero_grad()
        with _seeded(t):
            (net(x[row : row + 1])[0, 0] - y[row]).square().backward()
        stepper.step()
        t += 1
        yield nn.utils.parameters_to_vector(net.parameters()).detach().clone()


def _newton(size: Size) -> float:
    problem = logistic(size, dim=4)
    x, y = problem.x.numpy(), problem.y.numpy()
    gradients, factors = transcriptions.logistic_terms(x, y)
    masks = (size.rng("masks").uniform(size=(size.steps, 4)) < KEEP).astype(float)
    theirs = transcriptions.dropout_newton(
        lambda t, theta: gradients(theta).sum(0) + theta,
        lambda t, theta: (factors(theta)[:, None] * x**2).sum(0) + 1,
        np.ones(4), np.full(4, 2.0), list(masks), rate=0.2, keep=KEEP,
    )  # fmt: skip
    ours = algorithms.dropout_newton(
        lambda t: problem.loss(), lambda t: torch.as_tensor(masks[t]), torch.ones(4, dtype=torch.float64),
        keep=KEEP, step_size=0.2, precision=2.0,
    )  # fmt: skip
    differences: list[Any] = []
    for wanted, got in zip(theirs, ours, strict=False):  # theirs end
        differences += [value.numpy() - other for value, other in zip(got, wanted, strict=True)]
    return largest(differences)


@contextmanager
def _seeded(t: int) -> Iterator[None]:
    """Torch's global noise as it is for step t, put back afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(t)
        yield

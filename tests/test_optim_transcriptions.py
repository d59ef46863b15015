"""A few steps of each algorithm against a NumPy transcription of the published one, at the same draws."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from torch import nn

from bayesrule.optim import NoisyAdam, NoisyEKFAC, NoisyFull, NoisyKFAC
from optim_problems import Recorded, make, network, regression, step

N, PRIOR_STD, LR, BETA, STEPS = 50, 0.8, 0.05, 0.1, 5
GAMMA = 1 / (N * PRIOR_STD**2)


@dataclass
class Pass:
    """Inputs (with the one) and gradients of each example, layer by layer."""

    inputs: list[np.ndarray]
    gradients: list[np.ndarray]

    @property
    def weight_gradients(self) -> list[np.ndarray]:
        return [a.T @ g / len(a) for a, g in zip(self.inputs, self.gradients, strict=True)]


def run(weights: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> Pass:
    """Forward and backward of a tanh network with the loss ½|f − y|², by hand."""
    inputs, hidden = [], []
    value = x
    for index, weight in enumerate(weights):
        inputs.append(np.concatenate([value, np.ones((len(value), 1))], axis=1))
        value = inputs[-1] @ weight
        if index < len(weights) - 1:
            value = np.tanh(value)
            hidden.append(value)
    gradient = value - y
    gradients = [gradient]
    for weight, activation in zip(reversed(weights[1:]), reversed(hidden), strict=True):
        gradient = (gradient @ weight[:-1].T) * (1 - activation**2)
        gradients.append(gradient)
    return Pass(inputs, gradients[::-1])


def matrices(net: nn.Sequential) -> list[np.ndarray]:
    return [np.concatenate([m.weight.detach().numpy().T, m.bias.detach().numpy()[None]]) for m in net
            if isinstance(m, nn.Linear)]  # fmt: skip


def check(
    kind, oracle: Callable[[list[np.ndarray], list[list[np.ndarray]]], list[np.ndarray]], scale: float = 1.0, **options
) -> None:
    """Run the optimizer with recorded noise (times a scale), and the oracle with the same."""
    net = network(3, 4, 2)
    x, y = regression()
    start = matrices(net)
    optimizer = make(kind, net, likelihood=None, n_data=N, lr=LR, warm_up=False, **{"max_kl": None, **options})
    noises = []
    for _ in range(STEPS):
        recorded = Recorded(scale=scale)
        step(optimizer, lambda: 0.5 * (net(x) - y).square().sum(-1).mean(), noise=recorded)
        noises.append([each.numpy() for each in recorded.noises])
    want = oracle([each.copy() for each in start], noises)
    for got, expected, first in zip(matrices(net), want, start, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-11)
        assert np.abs(got - first).max() > 1e-3


X, Y = (each.numpy() for each in regression())


@pytest.mark.parametrize("denominator", ["root_then_damp", "damp_then_root"])
@pytest.mark.parametrize("squares", ["example", "batch"])
def test_noisy_adam(denominator: str, squares: str) -> None:
    """Algorithm 1."""
    b1, b2 = 0.9, 0.99

    def oracle(mu: list[np.ndarray], noises: list[list[np.ndarray]]) -> list[np.ndarray]:
        m, f = [np.zeros_like(each) for each in mu], [np.zeros_like(each) for each in mu]
        for k, noise in enumerate(noises, 1):
            drawn = [mean + e * np.sqrt(1 / N / (s + GAMMA)) for mean, e, s in zip(mu, noise, f, strict=True)]
            seen = run(drawn, X, Y)
            for i, (a, g, gradient) in enumerate(zip(seen.inputs, seen.gradients, seen.weight_gradients, strict=True)):
                per_example = np.einsum("bi,bj->bij", a, g)
                square = np.mean(per_example**2, axis=0) if squares == "example" else gradient**2
                m[i] = b1 * m[i] + (1 - b1) * (gradient + GAMMA * mu[i])
                f[i] = b2 * f[i] + (1 - b2) * square
                root = np.sqrt(f[i]) + GAMMA if denominator == "root_then_damp" else np.sqrt(f[i] + GAMMA)
                mu[i] = mu[i] - LR * m[i] / (1 - b1**k) / root
        return mu

    check(NoisyAdam, oracle, betas=(b1, b2), denominator=denominator, squares=squares)


def damped(a: np.ndarray, s: np.ndarray, gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """Eq. 12's factors."""
    balance = np.sqrt((np.trace(a) / len(a)) / (np.trace(s) / len(s))) if np.trace(a) * np.trace(s) else 1.0
    return a + balance * np.sqrt(gamma) * np.eye(len(a)), s + np.sqrt(gamma) / balance * np.eye(len(s))


@pytest.mark.parametrize(("momentum", "extra"), [(0.0, 0.0), (0.6, 0.05)])
def test_noisy_kfac(momentum: float, extra: float) -> None:
    """Algorithm 2, with momentum and with damping of the mean's step alone."""

    def oracle(mu: list[np.ndarray], noises: list[list[np.ndarray]]) -> list[np.ndarray]:
        a = [np.zeros((len(each), len(each))) for each in mu]
        s = [np.zeros((each.shape[1], each.shape[1])) for each in mu]
        velocity = [np.zeros_like(each) for each in mu]
        for noise in noises:
            drawn = []
            for i, mean in enumerate(mu):
                roots = [np.linalg.cholesky(np.linalg.inv(each)) for each in damped(a[i], s[i], GAMMA)]
                drawn.append(mean + np.sqrt(1 / N) * roots[0] @ noise[i] @ roots[1].T)
            seen = run(drawn, X, Y)
            for i in range(len(mu)):
                a[i] = (1 - BETA) * a[i] + BETA * seen.inputs[i].T @ seen.inputs[i] / len(X)
                s[i] = (1 - BETA) * s[i] + BETA * seen.gradients[i].T @ seen.gradients[i] / len(X)
                velocity[i] = momentum * velocity[i] + seen.weight_gradients[i] + GAMMA * mu[i]
                left, right = damped(a[i], s[i], GAMMA + extra)
                mu[i] = mu[i] - LR * np.linalg.solve(left, velocity[i]) @ np.linalg.inv(right)
        return mu

    check(NoisyKFAC, oracle, beta=BETA, momentum=momentum, extra_damping=extra)


def test_noisy_full() -> None:
    """Eq. 9 with the empirical Fisher matrix of all weights."""

    def oracle(mu: list[np.ndarray], noises: list[list[np.ndarray]]) -> list[np.ndarray]:
        sizes, shapes = np.cumsum([each.size for each in mu])[:-1], [each.shape for each in mu]
        mean = np.concatenate([each.ravel() for each in mu])
        fisher = np.zeros((mean.size, mean.size))

        def apart(vector: np.ndarray) -> list[np.ndarray]:
            return [piece.reshape(shape) for piece, shape in zip(np.split(vector, sizes), shapes, strict=True)]

        for (noise,) in noises:
            root = np.linalg.cholesky(np.linalg.inv(fisher + GAMMA * np.eye(mean.size)))
            seen = run(apart(mean + np.sqrt(1 / N) * root @ noise), X, Y)
            rows = np.concatenate([np.einsum("bi,bj->bij", a, g).reshape(len(X), -1)
                                   for a, g in zip(seen.inputs, seen.gradients, strict=True)], axis=1)  # fmt: skip
            fisher = (1 - BETA) * fisher + BETA * rows.T @ rows / len(X)
            mean = mean - LR * np.linalg.solve(fisher + GAMMA * np.eye(mean.size), rows.mean(0) + GAMMA * mean)
        return apart(mean)

    check(NoisyFull, oracle, beta=BETA)


@pytest.mark.parametrize("max_kl", [None, 1e9])
def test_noisy_ekfac(max_kl: float | None) -> None:
    """K-FAC's eigenvectors, found anew at steps 1, 2 and 4; squares along them are averaged, and moved with them.

    With a guard, here one that is never met, steps are damped as K-FAC's. At the mean: the signs of eigenvectors are
    free, and a draw depends on them.
    """

    def oracle(mu: list[np.ndarray], noises: list[list[np.ndarray]]) -> list[np.ndarray]:
        a = [np.zeros((len(each), len(each))) for each in mu]
        s = [np.zeros((each.shape[1], each.shape[1])) for each in mu]
        bases = [(np.eye(len(each)), np.eye(each.shape[1])) for each in mu]
        spectra = [np.zeros_like(each) for each in mu]
        for k, _ in enumerate(noises, 1):
            seen = run(mu, X, Y)
            for i in range(len(mu)):
                left, right = bases[i]
                a[i] = (1 - BETA) * a[i] + BETA * seen.inputs[i].T @ seen.inputs[i] / len(X)
                s[i] = (1 - BETA) * s[i] + BETA * seen.gradients[i].T @ seen.gradients[i] / len(X)
                along = np.einsum("bi,bj->bij", seen.inputs[i] @ left, seen.gradients[i] @ right)
                spectra[i] = (1 - BETA) * spectra[i] + BETA * np.mean(along**2, axis=0)
                if k in (1, 2, 4):
                    (va, new_left), (vs, new_right) = np.linalg.eigh(a[i]), np.linalg.eigh(s[i])
                    whole = np.kron(left, right) @ np.diag(spectra[i].ravel()) @ np.kron(left, right).T
                    new = np.kron(new_left, new_right)
                    moved = np.diag(new.T @ whole @ new).reshape(mu[i].shape)
                    spectra[i] = np.outer(va.clip(0), vs.clip(0)) if k == 1 else moved
                    bases[i] = left, right = new_left, new_right
                gradient = seen.weight_gradients[i] + GAMMA * mu[i]
                across = np.add.outer(spectra[i].mean(1), spectra[i].mean(0)) / np.sqrt(spectra[i].mean())
                damped = spectra[i] + GAMMA + (0 if max_kl is None else np.sqrt(GAMMA) * across)
                mu[i] = mu[i] - LR * left @ ((left.T @ gradient @ right) / damped) @ right.T
        return mu

    check(NoisyEKFAC, oracle, scale=0.0, beta=BETA, T_inv=8, max_kl=max_kl)

"""Exploration: the gain is the KL of exact posteriors, tasks are sparse, and curiosity reaches the policy."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import MultivariateNormal, kl_divergence

import bayesrule as br
from bayesrule.experiments import Request, reproduce
from bayesrule.experiments.exploration import FIGURE2
from bayesrule.experiments.exploration.bbb_dynamics import BBBDynamics
from bayesrule.experiments.exploration.dynamics import DynamicsModel, Replay
from bayesrule.experiments.exploration.figure2 import METRICS
from bayesrule.experiments.exploration.information_gain import information_gain
from bayesrule.experiments.exploration.kfac_dynamics import NoisyKFACDynamics

MODELS = {"bbb": BBBDynamics, "noisy-kfac": NoisyKFACDynamics}
each_model = pytest.mark.parametrize("kind", MODELS.values(), ids=MODELS)


def needs(*packages: str) -> pytest.MarkDecorator:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} not installed (pip install 'bayesrule[rl]')")


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


FAMILIES = [br.Diagonal(init_std=0.3), br.KTied(2, init_std=0.3), br.MatrixNormal(init_std=0.3), br.Full(init_std=0.3)]


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: type(family).__name__)
@pytest.mark.parametrize("bias", ["diagonal", "augment"])
def test_the_gain_is_the_kl_of_the_exact_posterior(family: br.posteriors, bias: str) -> None:
    """A layer is linear in its weights: conditioning by dense matrices, one example at a time."""
    if bias == "augment" and isinstance(family, br.Full):
        pytest.skip("one row more makes no difference to a vector")
    torch.manual_seed(0)
    bnn = br.bayesianize(nn.Linear(3, 2).double(), family, bias=bias)
    with torch.no_grad():
        for number, parameter in enumerate(bnn.parameters()):
            parameter.add_(0.3 * randn(*parameter.shape, seed=number))
    net, x, y, noise = br.mean_module(bnn), randn(4, 3, seed=7), randn(4, 2, seed=8), 0.4
    means = {name: parameter.detach() for name, parameter in net.named_parameters()}
    found = information_gain(net, means, bnn.posteriors(), x, y, noise)
    several = torch.full((2,), noise, dtype=torch.float64)
    torch.testing.assert_close(information_gain(net, means, bnn.posteriors(), x, y, several), found, rtol=1e-10, atol=0)
    mean, covariance, jacobian = dense(bnn)
    for number in range(4):
        J = jacobian(x[number])
        precision = torch.linalg.inv(covariance)
        posterior = torch.linalg.inv(precision + J.mT @ J / noise**2)
        shifted = posterior @ (precision @ mean + J.mT @ y[number] / noise**2)
        expected = kl_divergence(MultivariateNormal(shifted, posterior), MultivariateNormal(mean, covariance))
        torch.testing.assert_close(found[number], expected.detach(), rtol=1e-8, atol=1e-10)


def dense(bnn: nn.Module) -> tuple[Tensor, Tensor, object]:
    """Mean and covariance of (weight, bias), flattened, from unit vectors; and the Jacobian of ``Wx + b``."""
    posteriors = bnn.posteriors()
    blocks, means, order = [], [], []
    for posterior in posteriors.values():
        size = posterior.event_shape.numel()
        units = torch.eye(size, dtype=torch.float64).reshape(size, *posterior.event_shape)
        blocks.append(posterior.covariance.matmul(units).reshape(size, size))
        means.append(posterior.mean.flatten())
        order.append([part.flatten(1) for part in posterior.split(units).values()])
    names = [part.name for posterior in posteriors.values() for part in posterior.parts]
    maps = dict(zip(names, [piece for pieces in order for piece in pieces], strict=True))
    sizes = [len(block) for block in blocks]
    offsets = dict(zip(posteriors, np.cumsum([0, *sizes[:-1]]), strict=True))

    def jacobian(x: Tensor) -> Tensor:
        rows = torch.zeros(2, sum(sizes), dtype=torch.float64)
        for group, posterior in posteriors.items():
            for part in posterior.parts:
                here = slice(offsets[group], offsets[group] + len(maps[part.name]))
                own = torch.kron(torch.eye(2), x[None]) if part.name == "weight" else torch.eye(2)
                rows[:, here] += own.double() @ maps[part.name].mT
        return rows

    return torch.cat(means).detach(), torch.block_diag(*blocks).detach(), jacobian


def test_the_replay_keeps_the_newest_and_scales_by_what_it_holds() -> None:
    replay = Replay(capacity=5)
    x = randn(8, 3)
    replay.add(x[:4], x[:4, :2])
    replay.add(x[4:], x[4:, :2])
    assert len(replay) == 5
    assert torch.equal(replay.x, x[3:])
    scaled, _ = replay.standardised(x[:2], x[:2, :2])
    kept = x[3:].numpy()
    np.testing.assert_allclose(scaled, (x[:2].numpy() - kept.mean(0)) / kept.std(0), rtol=1e-10)


def transitions(count: int, seed: int, shift: float = 0.0) -> tuple[Tensor, Tensor]:
    x = (randn(count, 3, seed=seed) + shift).float()
    return x, torch.stack([x[:, 2] * x[:, 0], -x[:, 1]], 1)


@each_model
def test_a_model_learns_and_is_surprised_by_what_is_new(kind: type[DynamicsModel]) -> None:
    model = kind(3, 2, iterations=100, seed=1)
    first = model.observe(*transitions(400, 0))
    for _ in range(3):
        model.fit()
    again = model.observe(*transitions(400, 1))
    assert first.isfinite().all()
    assert (again >= 0).all()
    assert (model.noise_std < 1).all()
    assert float(again.median()) < 0.8 * float(first.median())
    elsewhere = model.observe(*transitions(40, 2, shift=4.0))
    assert float(elsewhere.median()) > 3 * float(again.median())


@each_model
def test_a_model_depends_on_its_seed_alone(kind: type[DynamicsModel]) -> None:
    def gains(noise: int) -> Tensor:
        torch.manual_seed(noise)
        model = kind(3, 2, iterations=5, seed=4)
        model.observe(*transitions(120, 0))
        model.fit()
        return model.observe(*transitions(20, 1))

    assert torch.equal(gains(0), gains(1))


@needs("gymnasium")
def test_the_mountain_car_pays_only_for_the_escape() -> None:
    from bayesrule.experiments.exploration.environment import environment
    from bayesrule.experiments.exploration.simulations import MountainCar

    car = environment(MountainCar, 400, seed=0)
    state, _ = car.reset(seed=3)
    assert car.observation_space.shape == state.shape == (2,)
    rewards, over = [], False
    while not over:
        state, reward, over, cut, _ = car.step(np.sign(state[1:]) if state[1] else np.ones(1, np.float32))
        assert not cut
        rewards.append(reward)
    assert rewards[-1] == 1.0
    assert sum(rewards) == 1.0
    assert state[0] >= 0.45


@needs("gymnasium")
def test_an_episode_is_cut_off() -> None:
    from bayesrule.experiments.exploration.environment import environment
    from bayesrule.experiments.exploration.simulations import MountainCar

    car = environment(MountainCar, 3, seed=0)
    first, _ = car.reset(seed=5)
    assert [car.step(np.zeros(1))[3] for _ in range(3)] == [False, False, True]
    assert np.array_equal(car.reset(seed=5)[0], first)


@needs("dm_control", "gymnasium")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_swing_up_tasks_start_hanging_and_pay_at_the_top() -> None:
    from bayesrule.experiments.exploration.simulations import CartPoleSwingUp, DoublePendulum

    generator = np.random.default_rng(0)
    cart, pendulum = CartPoleSwingUp(), DoublePendulum()
    state = cart.reset(generator)
    assert state.shape == (5,)
    assert state[1] < -0.99  # the cosine
    assert cart.step(np.zeros(1))[1:] == (False, False)
    for cosine, met in ((0.85, True), (0.75, False)):
        with cart._physics.reset_context():
            cart._physics.named.data.qpos["hinge_1"] = math.acos(cosine)
        assert cart.step(np.zeros(1))[1] is met
    assert pendulum.reset(generator).shape == (6,)
    assert not pendulum.step(np.zeros(1))[1]
    for angle, met in ((0.01, True), (0.2, False)):
        with pendulum._physics.reset_context():
            pendulum._physics.data.qpos[:] = [angle, 0.0]
        assert pendulum.step(np.zeros(1))[1] is met


class Told(DynamicsModel):
    """Finds only states beyond 0.5 worth knowing, and remembers what it was shown."""

    def _build(self) -> None:
        self.seen: list[tuple[Tensor, Tensor]] = []
        self.fits = 0

    def _train(self, batches: object, n_data: int) -> None:
        raise NotImplementedError

    def fit(self) -> None:
        self.fits += 1

    def posteriors(self) -> dict[str, object]:
        return {}

    def means(self) -> dict[str, Tensor]:
        return {}

    def observe(self, x: Tensor, y: Tensor) -> Tensor:
        self.seen.append((x, y))
        return 1.0 + (x[:, 0] > 0.5).float()


class Line:
    """A point on a line; each step moves it by the action, and beyond 1 the goal is met."""

    observations, actions = 1, 1

    def reset(self, generator: np.random.Generator) -> np.ndarray:
        self.place = np.zeros(1, np.float32)
        return self.place.copy()

    def step(self, action: np.ndarray) -> tuple[np.ndarray, bool, bool]:
        self.place = self.place + 0.2 * np.asarray(action, np.float32)
        return self.place.copy(), bool(self.place[0] > 1), False


@needs("gymnasium", "sb3_contrib")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_transitions_and_returns_are_those_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    from stable_baselines3.common.buffers import RolloutBuffer

    from bayesrule.experiments.exploration.curiosity import Sizes, train

    rewards: list[np.ndarray] = []
    computed = RolloutBuffer.compute_returns_and_advantage

    def watched(buffer: RolloutBuffer, **given: object) -> None:
        rewards.append(buffer.rewards.copy())
        computed(buffer, **given)

    monkeypatch.setattr(RolloutBuffer, "compute_returns_and_advantage", watched)
    model = Told(2, 1)
    sizes = Sizes(iterations=2, steps=40, environments=2, horizon=10, model_steps=1, eta=0.25)
    returns = train(Line, model, sizes, seed=0)
    assert len(returns) == len(model.seen) == model.fits == 2
    for (x, y), before, after, mean in zip(model.seen, rewards[::2], rewards[1::2], returns, strict=True):
        torch.testing.assert_close(y[:, 0], 0.2 * x[:, 1], rtol=0, atol=1e-6)  # also where an episode was cut off
        gains = 1.0 + (x[:, 0] > 0.5).float()
        np.testing.assert_allclose((after - before).ravel(), 0.25 * gains.numpy(), rtol=1e-4, atol=1e-5)
        goals = (x[:, 0] + y[:, 0] > 1).float().sum()
        assert mean == pytest.approx(float(goals) / 4)  # two episodes in each of two environments


def test_without_the_packages_every_cell_is_left_out_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    result = reproduce(FIGURE2, Request("smoke", tmp_path))
    assert result["rows"] == []
    assert [line.split(":")[0] for line in result["skipped"]] == [
        f"{method} on mountain-car" for method in FIGURE2.presets["smoke"].methods
    ]
    assert all("pip install 'bayesrule[rl]'" in line for line in result["skipped"])


@needs("gymnasium", "sb3_contrib")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_curve_is_kept_and_drawn(tmp_path: Path) -> None:
    result = reproduce(FIGURE2, Request("smoke", tmp_path, methods=("trpo+bbb",)))
    assert [row["metric"] for row in result["rows"]] == list(METRICS)
    (cell,) = (tmp_path / "cells").glob("*.json")
    assert list(json.loads(cell.read_text())["values"]) == ["iteration 0000", "iteration 0001"]
    assert (tmp_path / "figure2.png").stat().st_size > 0

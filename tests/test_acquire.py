"""Acquisition: scores by hand, the choice of the best, and the protocol of active learning with exact posteriors."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

import bayesrule as br
from bayesrule.optim.noisy_kfac import NoisyKFACRule
from bayesrule.train import active_learning
from bayesrule.train.replicas import Replicas

DRAWS, POOL, CLASSES = 7, 11, 3


def outputs(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_variance_is_that_of_the_expected_targets() -> None:
    f = outputs(DRAWS, POOL, 2)
    found = br.acquire(br.Predictive(f, br.Gaussian(0.7)), count=3)
    by_hand = np.var(f.numpy(), axis=0).sum(-1)
    np.testing.assert_allclose(found.scores.numpy(), by_hand, rtol=1e-12)
    assert found.indices.tolist() == np.argsort(-by_hand)[:3].tolist()
    total = br.Predictive(f, br.Gaussian(0.7)).std.square().sum(-1)  # constant noise: the same order
    assert total.argsort(descending=True)[:3].tolist() == found.indices.tolist()


def test_noise_that_depends_on_the_input_is_not_wanted() -> None:
    """The noisiest point has the largest predictive variance, and nothing more to teach."""
    f = torch.zeros(DRAWS, 2, 2, dtype=torch.float64)
    f[:, 0, 1] = 5.0  # loud
    f[:, 1, 0] = outputs(DRAWS)  # uncertain
    predictive = br.Predictive(f, br.HeteroscedasticGaussian())
    assert int(predictive.std.argmax()) == 0
    assert br.acquire(predictive).indices.tolist() == [1]


def test_bald_is_the_mutual_information() -> None:
    logits = 3 * outputs(DRAWS, POOL, CLASSES)
    probs = logits.softmax(-1).numpy()
    by_hand = scipy.stats.entropy(probs.mean(0), axis=-1) - scipy.stats.entropy(probs, axis=-1).mean(0)
    found = br.acquire(br.Predictive(logits, br.Categorical()), how="bald", count=POOL)
    np.testing.assert_allclose(found.scores.numpy(), by_hand, rtol=1e-10)
    assert found.indices.tolist() == np.argsort(-by_hand).tolist()


def test_bald_of_several_bits_is_their_sum() -> None:
    logits = outputs(DRAWS, POOL, 2)
    p = logits.sigmoid().numpy()
    by_hand = scipy.stats.bernoulli.entropy(p.mean(0)) - scipy.stats.bernoulli.entropy(p).mean(0)
    found = br.acquire(br.Predictive(logits, br.Bernoulli()), how="bald")
    np.testing.assert_allclose(found.scores.numpy(), by_hand.sum(-1), rtol=1e-9)


def test_random_is_seeded_and_uniform() -> None:
    predictive = br.Predictive(outputs(2, 5, 1), br.Gaussian())
    assert br.acquire(predictive, how="random", seed=3).indices == br.acquire(predictive, how="random", seed=3).indices
    seeds = 2000
    counts = np.bincount([int(br.acquire(predictive, how="random", seed=seed).indices) for seed in range(seeds)])
    assert scipy.stats.chisquare(counts).pvalue > 1e-6


def test_a_model_is_asked_for_its_predictions() -> None:
    torch.manual_seed(0)
    bnn = br.bayesianize(nn.Linear(3, 2).double(), br.Diagonal(init_std=0.3), likelihood=br.Gaussian())
    pool = outputs(POOL, 3)
    found = br.acquire(bnn, pool, samples=20, seed=4)
    expected = br.predict(bnn, pool, samples=20, seed=4).outputs.var(0, correction=0).sum(-1)
    torch.testing.assert_close(found.scores, expected, rtol=1e-12, atol=0)


def test_ties_stay_in_the_order_of_the_pool() -> None:
    found = br.acquire(br.Predictive(torch.ones(4, 6, 1), br.Gaussian()), count=6)
    assert found.indices.tolist() == [0, 1, 2, 3, 4, 5]


def test_refusals() -> None:
    predictive = br.Predictive(outputs(DRAWS, POOL, 1), br.Gaussian())
    bnn = br.bayesianize(nn.Linear(3, 2))
    with pytest.raises(br.errors.Unsupported, match='how="variance"'):
        br.acquire(predictive, how="bald")
    with pytest.raises(br.errors.InvalidArgument, match='"variance", "bald" or "random"'):
        inspect.unwrap(br.acquire)(predictive, how="entropy")  # past the checks of types under test
    for count in (0, POOL + 1):
        with pytest.raises(br.errors.InvalidArgument, match="Between 1 and 11"):
            br.acquire(predictive, count=count)
    with pytest.raises(br.errors.InvalidArgument, match="Leave pool_x out"):
        br.acquire(predictive, outputs(POOL, 3))
    with pytest.raises(br.errors.InvalidArgument, match="Give pool_x"):
        br.acquire(bnn)


@pytest.mark.parametrize("how", ["variance", "bald"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_points_without_a_score_are_refused(how: str, value: float) -> None:
    pool = outputs(POOL, 3)
    pool[[2, 7]] = value
    bnn = br.bayesianize(nn.Linear(3, 2).double(), likelihood=br.Categorical())
    with pytest.raises(
        br.errors.InvalidArgument, match=r"2 of 11 that are not, the first at \[2, 7\]\. Clean those rows"
    ):
        br.acquire(bnn, pool, how=how, count=2)
    assert br.acquire(bnn, pool, how="random", count=POOL).indices.sort().values.tolist() == list(range(POOL))
    everything = torch.full((DRAWS, POOL, 1), value, dtype=torch.float64)
    with pytest.raises(
        br.errors.InvalidArgument, match=r"11 of 11 .* \[0, 1, 2, 3, 4\]\. .* what the model predicts is not"
    ):
        br.acquire(br.Predictive(everything, br.Gaussian()))


def test_points_are_chosen_for_one_replica() -> None:
    x = outputs(2, POOL, 3)
    replicas = Replicas(x, x[..., :1], NoisyKFACRule(), hidden=(4,), seeds=range(2))
    replicas.train(1)
    choose, predicted = inspect.unwrap(br.acquire), replicas.predict(x, samples=5)
    with pytest.raises(br.errors.InvalidArgument, match=r"predictive\.of\(i\)"):
        choose(predicted)
    with pytest.raises(br.errors.InvalidArgument, match=r"replicas\.predict\(pool_x\)\.of\(i\)"):
        choose(replicas, x[0])
    assert int(br.acquire(predicted.of(1)).indices) == int(predicted.epistemic_std[1].argmax())


class Exact:
    """Bayesian linear regression in closed form, told by two draws: the mean ± one standard deviation."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.seeds: list[int] = []

    def __call__(self, x: Tensor, y: Tensor, seed: int) -> object:
        assert torch.allclose(x.mean(0), torch.zeros(x.shape[1], dtype=x.dtype), atol=1e-12)
        assert torch.allclose(y.std(correction=0), torch.ones((), dtype=y.dtype))
        self.sizes.append(len(x))
        self.seeds.append(seed)
        covariance = torch.linalg.inv(x.mT @ x / 0.01 + torch.eye(x.shape[1], dtype=x.dtype))
        mean = covariance @ x.mT @ y / 0.01

        def predict(at: Tensor) -> br.Predictive:
            spread = ((at @ covariance) * at).sum(-1, keepdim=True).sqrt()
            return br.Predictive(torch.stack([at @ mean - spread, at @ mean + spread]), br.Gaussian(0.1))

        return predict


def problem() -> tuple[Tensor, Tensor]:
    x = outputs(80, 2)
    return x, 5 + x @ torch.tensor([[2.0], [-1.0]], dtype=torch.float64) + 0.1 * outputs(160, 1)[80:]


def test_the_protocol_adds_the_least_certain_point() -> None:
    x, y = problem()
    learner = Exact()
    rounds = active_learning(learner, x, y, labelled=6, test=30, additions=3, seed=1)
    assert learner.sizes == [6, 7, 8, 9]
    assert learner.seeds == [1, 2, 3, 4]
    assert len(rounds.rmse) == len(rounds.log_likelihood) == 4
    assert rounds.labelled.unique().numel() == len(rounds.labelled) == 9
    # The first addition, found again: the rows that were neither labelled nor tested on are not told, but the chosen
    # one is the farthest, in the posterior's metric, among those that stayed in the pool afterwards.
    known = rounds.labelled[:6]
    z = (x - x[known].mean(0)) / x[known].std(0, correction=0)
    covariance = torch.linalg.inv(z[known].mT @ z[known] / 0.01 + torch.eye(2, dtype=torch.float64))
    spread = torch.einsum("ni,ij,nj->n", z, covariance, z)
    assert (spread[rounds.labelled[6]] >= spread[rounds.labelled[7:]]).all()
    assert (rounds.rmse < 0.25).all()  # the noise is 0.1, the targets' spread above 2
    assert (rounds.log_likelihood > 0).all()


def test_the_control_shares_the_start_and_the_test_rows() -> None:
    x, y = problem()
    active, control = (
        active_learning(Exact(), x, y, how=how, labelled=6, test=30, additions=2, seed=1)
        for how in ("variance", "random")
    )
    assert active.labelled[:6].tolist() == control.labelled[:6].tolist()
    assert float(active.rmse[0]) == float(control.rmse[0])
    assert active.labelled[6:].tolist() != control.labelled[6:].tolist()


def test_a_constant_column_is_left_as_it_is() -> None:
    x, y = problem()
    x = torch.cat([x, torch.full((len(x), 1), 0.1, dtype=x.dtype)], 1)
    rounds = active_learning(Exact(), x, y, labelled=6, test=30, additions=1)
    assert (rounds.rmse < 0.25).all()


def test_labels_may_be_missing_only_in_the_pool() -> None:
    x, y = problem()
    options = {"labelled": 6, "test": 30, "seed": 1}
    used = active_learning(Exact(), x, y, additions=1, **options).labelled
    chosen, never = int(used[-1]), next(row for row in _pool(x, **options) if row not in used)
    for row, refused in ((never, False), (chosen, True), (int(used[0]), True)):
        gaps = y.clone()
        gaps[row] = float("nan")
        if refused:
            with pytest.raises(br.errors.InvalidArgument, match=rf"in rows \[{row}\]"):
                active_learning(Exact(), x, gaps, additions=1, **options)
        else:
            assert torch.equal(active_learning(Exact(), x, gaps, additions=1, **options).labelled, used)


def _pool(x: torch.Tensor, *, labelled: int, test: int, seed: int) -> list[int]:
    """Rows that are neither labelled at the start nor tested on: what is left when every other row was asked for."""
    every = active_learning(
        Exact(), x, x[:, :1], how="random", labelled=labelled, test=test, seed=seed, additions=len(x) - labelled - test
    )
    return every.labelled[labelled:].tolist()


@pytest.mark.parametrize("sizes", [{"labelled": 1}, {"test": 0}, {"additions": -1}, {"labelled": 40, "test": 40}])
def test_sizes_must_fit(sizes: dict[str, int]) -> None:
    with pytest.raises(br.errors.InvalidArgument, match="must fit"):
        active_learning(Exact(), *problem(), **{"labelled": 6, "test": 30, "additions": 1, **sizes})
    with pytest.raises(br.errors.ShapeMismatch):
        active_learning(Exact(), problem()[0], problem()[1][:, 0])
    with pytest.raises(br.errors.InvalidArgument, match=r"Got: ndarray. Give torch.as_tensor\(y\)"):
        inspect.unwrap(active_learning)(Exact(), problem()[0], problem()[1].numpy())


def test_a_learner_returns_a_function_to_predictions() -> None:
    x, y = problem()
    for learner, told in ((lambda *data: data[0], "learner"), (lambda *data: lambda at: at, "function")):
        with pytest.raises(
            br.errors.InvalidArgument, match=f"to a bayesrule.Predictive. Got: a {told} that returned a T"
        ):
            active_learning(learner, x, y, labelled=6, test=30, additions=1)

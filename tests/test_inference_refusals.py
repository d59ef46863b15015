"""What a caller can get wrong in models and learning rules is refused at the call, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jaxtyping
import pytest
import torch
from torch import Tensor

from bayesrule.errors import InvalidArgument, ShapeMismatch
from bayesrule.expfam import (
    Dirichlet,
    GaussHermite,
    GaussianDiagonal,
    GaussianFixed,
    GaussianFull,
    MonteCarlo,
    NormalGamma,
    learning_rule,
)
from bayesrule.inference import (
    LogisticLikelihood,
    PoissonLikelihood,
    StateSpace,
    complete_mixture,
    fit_vmp,
    glm,
    global_step,
    gp_classification,
    gp_predict,
    gp_regression,
    hidden_markov,
    linear_regression,
    local_step,
    ridge,
    squared_exponential,
)

X = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(6, 2)
LABELS = torch.tensor([0.0, 1.0, 1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
KERNEL = squared_exponential(scale=1.0, length=0.5)
FITS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "glm": lambda x, y: glm(x, y, LogisticLikelihood(), prior_precision=1.0),
    "ridge": lambda x, y: ridge(x, y, prior_precision=1.0),
    "linear_regression": lambda x, y: linear_regression(x, y, prior_precision=1.0),
    "gp_regression": lambda x, y: gp_regression(x, y, KERNEL, noise_std=0.1),
    "gp_classification": lambda x, y: gp_classification(x, y, KERNEL, LogisticLikelihood()),
}
fits = pytest.mark.parametrize("fit", FITS.values(), ids=list(FITS))


@pytest.fixture(autouse=True)
def as_users_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the run-time checker of the tests, which would refuse first."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def standard(dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    return {"weights": GaussianFull().from_mean_precision(torch.zeros(2, dtype=dtype), torch.eye(2, dtype=dtype))}


@fits
def test_examples_that_do_not_fit_together_are_refused(fit: Callable[[Tensor, Tensor], Any]) -> None:
    fit(X, LABELS)
    with pytest.raises(ShapeMismatch, match=r"\(6, 1\).*squeeze"):
        fit(X, LABELS.unsqueeze(-1))
    with pytest.raises(ShapeMismatch, match=r"6 examples.*5 targets"):
        fit(X, LABELS[:5])
    with pytest.raises(ShapeMismatch, match=r"\(6,\).*unsqueeze"):
        fit(X[:, 0], LABELS)
    with pytest.raises(InvalidArgument, match="no examples"):
        fit(X[:0], LABELS[:0])
    with pytest.raises(InvalidArgument, match="finite"):
        fit(X / 0, LABELS)
    with pytest.raises(InvalidArgument, match=r"ndarray.*from_numpy"):
        fit(X.numpy(), LABELS)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("likelihood", "bad", "wanted"),
    [
        (LogisticLikelihood(), 2 * LABELS - 1, r"0 and 1.*-1.*\(y > 0\)"),
        (LogisticLikelihood(), LABELS + 0.5, "0 and 1"),
        (LogisticLikelihood(), LABELS / 0, "0 and 1"),
        (PoissonLikelihood(), LABELS - 1, "counts.*-1"),
        (PoissonLikelihood(), LABELS + 0.5, r"counts.*0\.5"),
    ],
)
def test_targets_that_a_likelihood_does_not_take_are_refused(likelihood: Any, bad: Tensor, wanted: str) -> None:
    with pytest.raises(InvalidArgument, match=wanted):
        glm(X, bad, likelihood, prior_precision=1.0)
    with pytest.raises(InvalidArgument, match=wanted):
        gp_classification(X, bad, KERNEL, likelihood)


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_are_positive(bad: float) -> None:
    for call in (
        lambda: glm(X, LABELS, LogisticLikelihood(), prior_precision=bad),
        lambda: ridge(X, LABELS, prior_precision=bad),
        lambda: ridge(X, LABELS, prior_precision=1.0, noise_precision=bad),
        lambda: linear_regression(X, LABELS, prior_precision=bad),
        lambda: linear_regression(X, LABELS, prior_precision=1.0, noise_rate=bad),
        lambda: gp_regression(X, LABELS, KERNEL, noise_std=bad),
        lambda: squared_exponential(scale=bad),
        lambda: squared_exponential(length=bad),
    ):
        with pytest.raises(InvalidArgument, match="positive"):
            call()


@pytest.mark.parametrize("likelihood", [LogisticLikelihood(), PoissonLikelihood()])
@pytest.mark.parametrize("labels", [LABELS.long(), LABELS.bool(), LABELS.float()])
def test_labels_may_have_any_type(likelihood: Any, labels: Tensor) -> None:
    wanted = global_step(glm(X, LABELS, likelihood, prior_precision=1.0), standard(), 0.5)["weights"]
    got = global_step(glm(X, labels, likelihood, prior_precision=1.0), standard(), 0.5)["weights"]
    assert torch.equal(got["linear"], wanted["linear"])


def test_data_are_taken_in_the_precision_of_the_posterior() -> None:
    single = glm(X.float(), LABELS.float(), LogisticLikelihood(), prior_precision=1.0)
    rounded = glm(X.float().double(), LABELS, LogisticLikelihood(), prior_precision=1.0)
    got, wanted = (global_step(model, standard(), 0.5)["weights"] for model in (single, rounded))
    assert got["linear"].dtype == torch.float64
    assert torch.equal(got["quadratic"], wanted["quadratic"])
    half = global_step(rounded, standard(torch.float32), 0.5)["weights"]
    torch.testing.assert_close(half["linear"], wanted["linear"].float())


def test_series_and_clouds_have_their_shapes() -> None:
    one, two = torch.ones((), dtype=torch.float64), torch.ones(2, dtype=torch.float64)
    first, rows = Dirichlet().from_concentration(two), Dirichlet().from_concentration(two.expand(2, 2))
    with pytest.raises(ShapeMismatch, match=r"\(6, 1\).*squeeze"):
        hidden_markov(
            LABELS[:, None], start_prior=first, transition_prior=rows,
            emission_prior=NormalGamma().from_usual(one, one, one, one),
        )  # fmt: skip
    with pytest.raises(ShapeMismatch, match=r"\(6,\).*unsqueeze"):
        complete_mixture(LABELS, 2)
    eye = torch.eye(2, dtype=torch.float64)
    walk = StateSpace(eye, eye, eye[:1], eye[:1, :1], two, eye)
    for run in (walk.smooth, walk.filter):
        with pytest.raises(ShapeMismatch, match=r"1 outputs.*\(6,\).*unsqueeze"):
            run(LABELS)
    with pytest.raises(ShapeMismatch, match=r"observation_covariance.*\(1, 1\).*\(2, 2\)"):
        StateSpace(eye, eye, eye[:1], eye, two, eye)


def test_a_process_is_predicted_where_inputs_fit() -> None:
    natural = gp_regression(X, LABELS, KERNEL, noise_std=0.1)
    with pytest.raises(ShapeMismatch, match=r"2 columns.*\(4, 3\)"):
        gp_predict(natural, X, torch.zeros(4, 3, dtype=torch.float64), KERNEL)
    with pytest.raises(ShapeMismatch, match=r"6 inputs.*5"):
        gp_predict(natural, X[:5], X, KERNEL)


def test_unknown_nodes_are_refused_with_the_nearest() -> None:
    model = linear_regression(X, LABELS, prior_precision=1.0)
    one = torch.ones((), dtype=torch.float64)
    start = standard() | {"noise": model.families["noise"].from_shape_rate(one, one)}  # type: ignore[attr-defined]
    fit_vmp(model, start, order=["weights"], sweeps=1)
    with pytest.raises(InvalidArgument, match=r"order.*'weigths'.*Did you mean 'weights'\?.*noise"):
        fit_vmp(model, start, order=["weigths"], sweeps=1)
    with pytest.raises(InvalidArgument, match=r"order.*list of names"):
        fit_vmp(model, start, order="weights", sweeps=1)
    with pytest.raises(InvalidArgument, match=r"naturals.*without 'noise'"):
        fit_vmp(model, standard(), order=["weights"], sweeps=1)
    with pytest.raises(InvalidArgument, match=r"naturals.*'nois'.*Did you mean 'noise'\?"):
        global_step(model, standard() | {"nois": start["noise"]}, 0.5)


def test_a_mean_and_a_precision_must_fit() -> None:
    for family, mean, precision in (
        (GaussianFull(), torch.zeros(3), torch.eye(2)),
        (GaussianFull(), torch.zeros(5, 2), torch.eye(2)),
        (GaussianFull(), torch.zeros(2), torch.ones(2)),
        (GaussianDiagonal(), torch.zeros(3), torch.ones(2)),
        (GaussianDiagonal(), torch.zeros(3), torch.eye(3)),
    ):
        with pytest.raises(ShapeMismatch, match=r"precision.*mean"):
            family.from_mean_precision(mean, precision)
    for family, precision in ((GaussianFull(), torch.eye(2)), (GaussianDiagonal(), torch.ones(2))):
        with pytest.raises(InvalidArgument, match=r"dtype.*float64.*float32"):
            family.from_mean_precision(torch.zeros(2, dtype=torch.float64), precision)


@pytest.mark.parametrize("count", [0, -1, 2.5])
def test_points_are_counted(count: Any) -> None:
    for make in (GaussHermite, MonteCarlo, LogisticLikelihood):
        with pytest.raises(InvalidArgument, match="whole number, 1 or more"):
            make(count)


def test_a_step_beyond_the_target_is_refused() -> None:
    (natural,) = standard().values()
    full = {"q": GaussianFull()}, {"q": natural}, {"q": natural}
    for size in (2.0, 1.0001, {"q": 1.5}):
        with pytest.raises(InvalidArgument, match=r"\(0, 1\]"):
            learning_rule.step(*full, step_size=size)
    learning_rule.step(*full, step_size=2.0, temperature=0.5)
    fixed = GaussianFixed(torch.eye(2, dtype=torch.float64))  # gradient descent: ρ is a learning rate
    at, slope = fixed.from_mean(X[0]), natural.map(lambda value: value + 1)
    moved = learning_rule.step({"q": fixed}, {"q": at}, {"q": type(at)(linear=slope["linear"])}, 3.0)["q"]
    torch.testing.assert_close(moved["linear"], X[0] - 3)
    model = glm(X, LABELS, LogisticLikelihood(), prior_precision=1.0)
    sites = [{"weights": 0.5 * natural}, {"weights": 0.5 * natural}]
    for size in (0.0, 2.0):
        with pytest.raises(InvalidArgument, match=r"\(0, 1\]"):
            local_step(model, sites, size)


def test_the_dictionary_with_other_names_is_named() -> None:
    (q,) = standard().values()
    full = GaussianFull()
    with pytest.raises(InvalidArgument, match=r"loss_gradients.*\['q'\].*\['r'\]"):
        learning_rule.step({"q": full}, {"q": q}, {"r": q}, 0.5)
    with pytest.raises(InvalidArgument, match=r"families.*\['q'\].*\['r'\]"):
        learning_rule.step({"r": full}, {"q": q}, {"q": q}, 0.5)
    with pytest.raises(InvalidArgument, match=r"step_size.*\['q'\].*\['r'\]"):
        learning_rule.step({"q": full}, {"q": q}, {"q": q}, {"r": 0.5})
    with pytest.raises(InvalidArgument, match=r"displacements.*\['q'\].*\['r'\]"):
        learning_rule.step({"q": full}, {"q": q}, {"q": q}, 0.5, displacements={"r": q})

"""What an estimator refuses and what it names instead; what `Auto` chooses."""

from __future__ import annotations

import pytest
import torch
from estimator_cases import ANY, ESTIMATORS, POSTERIORS, accepted, every_layer, posterior_of, recorded, refuses
from layers import layer

from bayesrule.errors import Unsupported
from bayesrule.estimators import Auto, LocalReparam, WeightSample
from bayesrule.posteriors import DiagonalCovariance, GaussianPosterior, Posterior


def structure(posterior: Posterior) -> str:
    return posterior.structure.removesuffix("Covariance").removesuffix("Posterior")


INDEPENDENT = {"Point", "Diagonal", "KTied", "ClippedLowRank"}
FACTORED = {"MatrixNormal", "MatrixNormalFreeDiagonal", "MatrixNormalKroneckerDiagonal", "EigenKronecker"}
UNPROJECTED = {"Full", "Mixture", "Bernoulli", "Restricted"}


@every_layer
def test_what_is_refused(layer_name: str) -> None:
    """A structure that is in none of the three sets decides here what it refuses."""
    op = layer(layer_name).contraction
    for name in POSTERIORS:
        if (posterior := posterior_of(name, layer_name)) is None:
            continue
        kind = structure(posterior)
        assert kind in INDEPENDENT | FACTORED | UNPROJECTED
        independent = kind in INDEPENDENT or name == "Restricted(KTied)"
        assert refuses("Flipout", posterior, op) is not independent
        projects = kind in INDEPENDENT or (kind in FACTORED and op.groups == 1)
        assert refuses("LocalReparam", posterior, op) is not projects


@pytest.mark.parametrize("estimator", ["Flipout", "LocalReparam"])
@pytest.mark.parametrize(
    "layer_name", ["linear", "conv2d-groups", "conv-transpose2d-groups", "augmented-conv2d-groups"]
)
def test_a_refusal_names_a_remedy_that_works(estimator: str, layer_name: str) -> None:
    example = layer(layer_name)
    refused = set(accepted("WeightSample", layer_name, ANY)) - set(accepted(estimator, layer_name, ANY))
    assert refused
    for name in refused:
        posterior = posterior_of(name, layer_name)
        with pytest.raises(Unsupported) as refusal:
            ESTIMATORS[estimator](posterior, example.contraction, example.x)
        remedies = [other for other in ESTIMATORS if other in refusal.value.remedy]
        assert "WeightSample" in remedies, name
        for remedy in remedies:
            assert ESTIMATORS[remedy](posterior, example.contraction, example.x).shape == example.output.shape, name


# Auto


@every_layer
def test_auto_draws_as_few_normals_as_it_can(layer_name: str) -> None:
    example = layer(layer_name)
    for name in accepted("Auto", layer_name, ANY):
        posterior, counts = posterior_of(name, layer_name), {}
        for estimator in ("Auto", "WeightSample", "LocalReparam"):
            if not refuses(estimator, posterior, example.contraction):
                _, tape = recorded(ESTIMATORS[estimator], posterior, example)
                counts[estimator] = sum(noise.numel() for noise in tape.normals)
        assert counts.pop("Auto") == min(counts.values()), name


def test_auto_takes_local_noise_below_fan_in_rows() -> None:
    linear, conv = layer("linear"), layer("conv2d-valid")  # fan-in 4; fan-in 12 at 4 positions an example
    for example, few, many in ((linear, linear.x[:3], linear.x[:4]), (conv, conv.x, conv.x.expand(3, -1, -1, -1))):
        posterior = GaussianPosterior(example.matrix, DiagonalCovariance(torch.ones_like(example.matrix)))
        assert Auto().choose(posterior, example.contraction, few) == LocalReparam()
        assert Auto().choose(posterior, example.contraction, many) == WeightSample()


@pytest.mark.parametrize(
    ("name", "layer_name"),
    [("Full(init_std=0.5, max_entries=20000)", "linear"), ("MatrixNormal(init_std=0.5)", "conv1d-groups")],
)
def test_auto_samples_the_weight_where_nothing_else_is_offered(name: str, layer_name: str) -> None:
    posterior, example = posterior_of(name, layer_name), layer(layer_name)
    one = example.x[:1]
    assert example.contraction.rows(one) < example.contraction.view.fan_in
    assert Auto().choose(posterior, example.contraction, one) == WeightSample()

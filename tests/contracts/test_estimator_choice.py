"""What an estimator refuses and what it names instead; what `Auto` chooses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from estimator_cases import ANY, ESTIMATORS, POSTERIORS, accepted, every_layer, posterior_of, recorded, refuses
from layers import layer
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

import bayesrule as br
from bayesrule.contractions import Contraction, Conv, Linear
from bayesrule.cuda_graphs import recorded_step
from bayesrule.errors import Unsupported
from bayesrule.estimators import Auto, Estimator, LocalReparam, WeightSample
from bayesrule.estimators.prices import CPU, EAGER_GPU, GPU, PLAIN_CPU, Prices, prices_for
from bayesrule.posteriors import Family, Posterior, Work
from bayesrule.posteriors.matrix_normal import TRIANGLE


def structure(posterior: Posterior) -> str:
    return posterior.structure.removesuffix("Covariance").removesuffix("Posterior")


INDEPENDENT = {"Point", "Diagonal", "KTied", "ClippedLowRank"}
FACTORED = {
    "MatrixNormal", "MatrixNormalFreeDiagonal", "MatrixNormalKroneckerDiagonal",
    "EigenKronecker", "TurnedEigenKronecker",
}  # fmt: skip
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
def test_auto_takes_nothing_that_is_refused(layer_name: str) -> None:
    example = layer(layer_name)
    for name in POSTERIORS:
        if (posterior := posterior_of(name, layer_name)) is not None:
            chosen = type(Auto().choose(posterior, example.contraction, example.x)).__name__
            assert not refuses(chosen, posterior, example.contraction), name


@every_layer
def test_the_normals_that_are_counted_are_drawn(layer_name: str) -> None:
    example = layer(layer_name)
    op, x = example.contraction, example.x
    for name in accepted("LocalReparam", layer_name, ANY):
        posterior = posterior_of(name, layer_name)
        counts = {"LocalReparam": posterior.projection_work(op, x).normals}
        if not (op.picks_rows and posterior.independent):  # of which only the rows used are drawn
            counts["WeightSample"] = posterior.draw_work().normals
        for estimator, expected in counts.items():
            _, tape = recorded(ESTIMATORS[estimator], posterior, example)
            assert sum(noise.numel() for noise in tape.normals) == expected, (name, estimator)


def zero_matrix(op: Contraction) -> Tensor:
    return torch.zeros(op.view.fan_in, op.view.fan_out)


def step_products(estimator: Estimator, family: Family, op: Contraction, x: Tensor) -> float:
    """Multiply-adds of a forward and a backward pass, as torch counts them."""
    parameters = {name: value.requires_grad_() for name, value in family.init(zero_matrix(op)).items()}
    with FlopCounterMode(display=False) as counter:
        estimator(family.build(parameters, event_dim=2), op, x).sum().backward()
    return counter.get_total_flops() / 2


DENSE, CONVOLUTION = nn.Linear(40, 24, bias=False), nn.Conv2d(3, 5, 3, stride=2, padding=1, bias=False)
LAYERS = {
    "dense": (Linear.of(DENSE), (7, 40)), "convolution": (Conv.of(CONVOLUTION), (4, 3, 8, 8)),
}  # fmt: skip


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("family", [br.Diagonal(), br.MatrixNormal()], ids=repr)
def test_the_products_that_are_counted_are_taken(kind: str, family: Family) -> None:
    op, shape = LAYERS[kind]
    x = torch.randn(*shape, requires_grad=True)
    posterior = family.build(family.init(zero_matrix(op)), event_dim=2)
    taken = {name: step_products(ESTIMATORS[name], family, op, x) for name in ("Mean", "WeightSample", "LocalReparam")}
    assert taken["WeightSample"] - taken["Mean"] == posterior.draw_work().products
    local, counted = taken["LocalReparam"] - taken["Mean"], posterior.projection_work(op, x).products
    if isinstance(family, br.Diagonal):
        assert local == counted
    else:  # so small a triangle is not cut into blocks: of m² products all are taken, where 0.6 m² are counted
        assert local == pytest.approx(counted + 3 * op.rows(x) * (1 - TRIANGLE) * op.view.fan_in**2, rel=1e-12)


def test_work_has_its_price() -> None:
    work = Work(10, 200, ((2, 1 << 16),)) + Work(1, 0, ((1, 1 << 20),))
    prices = Prices(normal=7, entry=0.5, call=1000, growth=0.25)
    # 11 normals; 200 multiply-adds are 400 FLOPs; two passes in the cache; one over 16 times that, at twice the price
    assert prices.of(work) == 77 + 400 + 2 * (1000 + 32_768) + (1000 + 0.5 * 2 * (1 << 20))
    assert prices_for(torch.empty(3, device="meta")) == EAGER_GPU
    with recorded_step():
        assert prices_for(torch.empty(3, device="meta")) == GPU


@pytest.mark.parametrize("compiled", [True, False])
def test_normals_are_cheap_where_there_is_compiled_code(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    monkeypatch.setattr("bayesrule.estimators.prices.is_there", lambda: compiled)
    assert prices_for(torch.empty(3)) == (CPU if compiled else PLAIN_CPU)
    assert prices_for(torch.empty(3, dtype=torch.float64)) == PLAIN_CPU
    assert PLAIN_CPU.of(Work(1)) == 12 * CPU.of(Work(1))


CHOICES = [
    # Mean-field, 1024²: a drawn entry costs a normal, 25, and 10 passes, at twice 90 each: 1,825. For each entry of the
    # weight, B rows of local noise cost 5 passes, 900, 6B for the products, and at B = 128 about 110 for 128·1024
    # normals and passes over inputs and outputs: 1,780. At B = 256 it is 900 + 1,536 + 250.
    (br.Diagonal(), (1024, 1024, 128), LocalReparam()),
    (br.Diagonal(), (1024, 1024, 256), WeightSample()),
    # 256²: 25 + 10·90 = 925 beside 450 + 6·32 + 90, and beside 450 + 6·128 + 380.
    (br.Diagonal(), (256, 256, 32), LocalReparam()),
    (br.Diagonal(), (256, 256, 128), WeightSample()),
    # 64²: 10 passes and a normal for each entry, 8, beside 5 for calls, 2 for passes over the weight, 8 for nodes.
    (br.Diagonal(), (64, 64, 1), WeightSample()),
    # 2-tied, 1024²: a normal and two passes, 25 + 360, beside B rows of products with 3 pairs, 36 at B = 1024, a normal
    # for each output, two passes over inputs and one over outputs: 36 + 25 + 540. An eighth of that at B = 128.
    (br.KTied(2), (1024, 1024, 128), LocalReparam()),
    (br.KTied(2), (1024, 1024, 1024), WeightSample()),
    # 256²: four times as many inputs and outputs as weights, beside 25 + 2·90.
    (br.KTied(2), (256, 256, 1024), WeightSample()),
    # 64²: calls decide, 15 for a draw and 23 for local noise.
    (br.KTied(2), (64, 64, 32), WeightSample()),
    # Matrix normal, 512²: a drawn entry takes 2m + 3n = 2,560 multiply-adds, B rows of local noise 3·1.6 B.
    (br.MatrixNormal(), (512, 512, 400), LocalReparam()),
    (br.MatrixNormal(), (512, 512, 1600), WeightSample()),
    # A fan-in of 800 and 196 positions an example: 6,272 rows × 6 for a diagonal, × 3·(0.6·800² + 64²)/(800·64)·2 = 45
    # for a matrix normal, whose draw takes 2·(2·800 + 3·64) = 3,584.
    (br.Diagonal(), (32, 64, 5, 14, 32), WeightSample()),
    (br.KTied(2), (32, 64, 5, 14, 32), WeightSample()),
    (br.MatrixNormal(), (32, 64, 5, 14, 32), WeightSample()),
    # Few rows and a wide kernel: 128 rows, a fan-in of 2,304. Half a million weights and 33,000 inputs and outputs.
    (br.KTied(2), (256, 256, 3, 4, 8), LocalReparam()),
]


@pytest.mark.parametrize(("family", "shape", "expected"), CHOICES)
def test_auto_takes_what_costs_less(
    monkeypatch: pytest.MonkeyPatch, family: Family, shape: tuple[int, ...], expected: Estimator
) -> None:
    monkeypatch.setattr("bayesrule.estimators.prices.is_there", lambda: True)
    if len(shape) == 3:
        (fan_in, fan_out, batch), inputs = shape, shape[2::-2]
        op: Contraction = Linear.of(nn.Linear(fan_in, fan_out, device="meta"))
    else:
        channels, fan_out, kernel, side, batch = shape
        op = Conv.of(nn.Conv2d(channels, fan_out, kernel, padding=kernel // 2, device="meta"))
        inputs = (batch, channels, side, side)
    assert Auto().choose(family.build(family.init(zero_matrix(op)), event_dim=2), op, torch.empty(*inputs)) == expected


@pytest.mark.parametrize("compiled", [True, False])
def test_small_tied_weights_of_a_model_are_drawn_together(monkeypatch: pytest.MonkeyPatch, compiled: bool) -> None:
    """By one call of compiled code, if there is such: then what each of them costs is its normals."""
    monkeypatch.setattr("bayesrule.estimators.prices.is_there", lambda: compiled)
    sizes = (784, 128, 400, 400)
    bnn = br.bayesianize(nn.Sequential(*map(nn.Linear, sizes, sizes[1:])), br.KTied(2))
    bnn(torch.randn(1, 784))
    chosen = [type(layer.last_choice[1]) for layer in bnn.module]
    assert chosen == [WeightSample if compiled else LocalReparam] * 2 + [LocalReparam]
    assert Work(10, 5, ((2, 7),), together=True) + Work(1) == Work(11, 5, ((2, 7),))


@pytest.mark.parametrize("groups", [1, 4])
def test_no_point_is_drawn(groups: int) -> None:
    op = Conv.of(nn.Conv2d(8, 8, 3, groups=groups))
    point = br.Point().build({"mean": zero_matrix(op)}, event_dim=2)
    assert (point.draw_work(), point.projection_work(op, torch.randn(1, 8, 5, 5))) == (Work(), Work())


@pytest.mark.parametrize(
    ("name", "layer_name"),
    [("Full(init_std=0.5, max_entries=20000)", "linear"), ("MatrixNormal(init_std=0.5)", "conv1d-groups")],
)
def test_auto_samples_the_weight_where_nothing_else_is_offered(name: str, layer_name: str) -> None:
    posterior, example = posterior_of(name, layer_name), layer(layer_name)
    one = example.x[:1]
    assert example.contraction.rows(one) < example.contraction.view.fan_in
    assert Auto().choose(posterior, example.contraction, one) == WeightSample()


def test_a_layer_chooses_anew_for_another_batch_and_another_posterior(monkeypatch: pytest.MonkeyPatch) -> None:
    """And remembers between: a dense layer takes local noise for few rows, a drawn weight for many."""
    monkeypatch.setattr("bayesrule.estimators.prices.is_there", lambda: True)
    bnn = br.bayesianize(nn.Linear(512, 512), br.KTied(2), br.Normal(1.0), Auto())
    layer, asked = bnn.module, []

    class Told(Auto):
        def choose(self, *arguments: Any) -> Estimator:
            asked.append(super().choose(*arguments))
            return asked[-1]

    layer.estimator = Told()
    for rows in (8, 8, 512, 512, 8):
        bnn(torch.randn(rows, 512))
    assert asked == [LocalReparam(), WeightSample(), LocalReparam()]
    with torch.no_grad():
        free = bnn.recast(
            {"": br.Diagonal()}, {"weight": {"log_std": torch.full((512, 512), -3.0)}}, {"weight": "now free"}
        )
    free(torch.randn(8, 512))
    assert len(asked) == 4

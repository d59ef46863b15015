"""Table 4: times of a training step of a point estimate, mean-field and 2-tied, on the network 784-128-10."""

from __future__ import annotations

import torch

from bayesrule.estimators import WeightSample
from bayesrule.experiments.context import Context
from bayesrule.experiments.experiment import Experiment, Preset
from bayesrule.experiments.ktied.claims import claim, fraction_of_first
from bayesrule.experiments.ktied.models import he_means, mlp
from bayesrule.experiments.ktied.published import published
from bayesrule.experiments.ktied.step_times import interleaved_times, median_and_error, training_step
from bayesrule.experiments.rows import Row
from bayesrule.likelihoods import Categorical
from bayesrule.nn import bayesianize
from bayesrule.posteriors import Diagonal, Family, KTied
from bayesrule.priors import Normal

NETWORK = "784-128-10"
METHODS: dict[str, Family | None] = {"point": None, "mean-field": Diagonal(), "2-tied": KTied(2)}
METRICS = ("step_ms", "ratio_to_point")
EXAMPLES, BATCH = 60_000, 32
"""Of the tutorial whose network and batches the paper times."""


def run(context: Context) -> list[Row]:
    """Medians of rounds in which the methods take turns; the batch is made up, since times do not depend on it."""
    generator = torch.Generator().manual_seed(context.seed)
    x = torch.randn(BATCH, 784, generator=generator).to(context.device)
    y = torch.randint(10, (BATCH,), generator=generator).to(context.device)
    steps = {name: training_step(_model(name, context), x, y, EXAMPLES) for name in ("point", *context.methods)}
    times = interleaved_times(steps, context.preset.settings["rounds"], context.device)
    point, _ = median_and_error(times["point"])
    rows = []
    for name in context.methods:
        seconds, error = median_and_error(times[name])
        sem = None if error is None else 1e3 * error
        rows.append(Row(NETWORK, name, f"batch {BATCH}", "step_ms", 1e3 * seconds, sem, len(times[name])))
        rows.append(Row(NETWORK, name, f"batch {BATCH}", "ratio_to_point", seconds / point, None, len(times[name])))
    return rows


def _model(name: str, context: Context) -> torch.nn.Module:
    net, family = he_means(mlp(hidden=(128,))), METHODS[name]
    model = net if family is None else bayesianize(net, family, Normal(0.2), WeightSample(), Categorical())
    return model.to(context.device)


TABLE4 = Experiment(
    id="ktied/table4",
    title="k-tied Normal, Table 4: times of a training step",
    presets={
        "smoke": Preset((NETWORK,), tuple(METHODS), {"rounds": 3}, synthetic=True),
        "quick": Preset((NETWORK,), tuple(METHODS), {"rounds": 100}),
        "paper": Preset((NETWORK,), tuple(METHODS), {"rounds": 300}),
    },
    methods=tuple(METHODS),
    datasets=lambda data: (NETWORK,),
    metrics=lambda dataset: METRICS,
    run=run,
    claims=(
        claim(
            "a 2-tied step takes at most 10 % longer than a mean-field one",
            [(NETWORK, method, "step_ms") for method in ("mean-field", "2-tied")], fraction_of_first(1.1),
        ),
    ),
    published=published("table4"),
    devices=("cuda", "cpu"),
)  # fmt: skip

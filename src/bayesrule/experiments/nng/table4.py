"""Table 4: the regression benchmark with two hidden layers   [App. D]."""

from __future__ import annotations

from pathlib import Path

from bayesrule.experiments.experiment import Experiment
from bayesrule.experiments.nng import regression
from bayesrule.experiments.nng.claims import none_diverges, none_stands_out, wins
from bayesrule.experiments.nng.data import known_sets
from bayesrule.experiments.nng.regression import PLAIN, QUICK_SETS, TWO_LAYERS, VALIDATED

SPLITS = 20

TABLE4 = Experiment(
    id="nng/table4",
    title="Noisy natural gradient, Table 4: regression with two hidden layers",
    presets=regression.presets(hidden=TWO_LAYERS),
    methods=(*regression.METHODS, "noisy-kfac-exact"),
    datasets=known_sets,
    metrics=lambda dataset: regression.METRICS,
    run=regression.run,
    claims=(
        wins(PLAIN, ("bbb", "noisy-adam"), QUICK_SETS, 17, SPLITS),
        wins(VALIDATED, ("bbb", "noisy-adam"), QUICK_SETS, 17, SPLITS),
        none_diverges(),
        none_stands_out(),
    ),
    published=Path(__file__).with_name("published") / "table4.json",
    devices=("cuda", "cpu"),
)

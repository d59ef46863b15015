"""Table 1: the regression benchmark with one hidden layer."""

from __future__ import annotations

from pathlib import Path

from bayesrule.experiments.experiment import Experiment
from bayesrule.experiments.nng import regression
from bayesrule.experiments.nng.claims import no_split_above, none_diverges, none_stands_out, reaches, wins
from bayesrule.experiments.nng.data import known_sets
from bayesrule.experiments.nng.regression import PLAIN, QUICK_SETS, VALIDATED, WEAK

SPLITS = 20
PLAIN_BOUNDS = {
    "boston": (2.95, -2.52), "concrete": (5.15, -3.06), "energy": (0.56, -1.45), "yacht": (0.98, -2.32),
}  # fmt: skip
VALIDATED_BOUNDS = {
    "boston": (2.85, -2.47), "concrete": (4.95, -3.04), "energy": (0.43, -1.31), "yacht": (0.65, -2.12),
}  # fmt: skip

TABLE1 = Experiment(
    id="nng/table1",
    title="Noisy natural gradient, Table 1: regression with one hidden layer",
    presets=regression.presets(hidden=None),
    methods=(*regression.METHODS, "noisy-kfac-exact"),
    datasets=known_sets,
    metrics=lambda dataset: regression.METRICS,
    run=regression.run,
    claims=(
        reaches("noisy K-FAC, one plain setting", "noisy-kfac", PLAIN, PLAIN_BOUNDS, SPLITS),
        reaches("Kin8nm, 500 epochs", "noisy-kfac", PLAIN, {"kin8nm": (0.078, 1.13)}, SPLITS),
        reaches("Naval, β 0.01, 200 epochs", "noisy-kfac", PLAIN, {"naval": (0.00015, 6.60)}, SPLITS),
        reaches("Protein, 50 epochs", "noisy-kfac", PLAIN, {"protein": (4.25, -2.87)}, 5),
        no_split_above("protein", "noisy-kfac", PLAIN, 4.5),
        reaches("noisy K-FAC, validated", "noisy-kfac", VALIDATED, VALIDATED_BOUNDS, SPLITS),
        reaches(
            "noisy K-FAC, validated, weak noise prior", "noisy-kfac", WEAK,
            {"energy": (None, -0.70), "yacht": (None, -1.00)}, SPLITS,
        ),
        wins(PLAIN, ("bbb", "noisy-adam"), QUICK_SETS, 17, SPLITS),
        wins(VALIDATED, ("bbb", "noisy-adam"), QUICK_SETS, 17, SPLITS),
        none_diverges(),
        none_stands_out(),
    ),
    published=Path(__file__).with_name("published") / "table1.json",
    devices=("cuda", "cpu"),
)  # fmt: skip

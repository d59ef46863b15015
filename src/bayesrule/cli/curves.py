"""Learning curves for TensorBoard, where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bayesrule.cli.display import OnProgress
from bayesrule.cli.outputs import CURVES
from bayesrule.train.member_loop import Progress as Standing


@contextmanager
def also_to_tensorboard(show: OnProgress, out: Path) -> Iterator[OnProgress]:
    """Passes progress on, and writes it below the model folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield show
        return
    with SummaryWriter(str(out / CURVES)) as writer:

        def both(standing: Standing) -> None:
            curves = {"nll": standing.nll, "kl_per_example": standing.kl_per_example, "valid_nll": standing.valid_nll}
            for name, value in curves.items():
                if value is not None:
                    writer.add_scalar(name, value, standing.step)
            show(standing)

        yield both

"""Learning curves for TensorBoard, where it is installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bayesrule.cli.display import OnProgress
from bayesrule.cli.outputs import CHECKPOINTS, CURVES
from bayesrule.train.member_loop import Progress as Standing


@contextmanager
def also_to_tensorboard(show: OnProgress, out: Path) -> Iterator[OnProgress]:
    """Passes progress on, and writes it below the model folder."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        yield show
        return
    with ExitStack() as stack:
        writers: list[SummaryWriter] = []

        def both(standing: Standing) -> None:
            if not writers:  # opened when there is something to say: a refused fit is to leave nothing behind
                writers.append(stack.enter_context(SummaryWriter(str(out / CHECKPOINTS / CURVES))))
            curves = {"nll": standing.nll, "kl_per_example": standing.kl_per_example, "valid_nll": standing.valid_nll}
            for name, value in curves.items():
                if value is not None:
                    writers[0].add_scalar(name, value, standing.step)
            show(standing)

        yield both

"""Under ``torchrun``: ``elastic_training.py OUT [KILL | TERM] [resume]`` trains by `br.fit`.

With the name of a signal, the second process gets it once, in the third epoch.

The first process writes what became of the weights, and how often it was started.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

import bayesrule as br
import distributed_cases as cases
from bayesrule.distributed import join, restarted


class Batches:
    """Shuffled anew by torch's generator every epoch."""

    def __init__(self, hit: signal.Signals | None) -> None:
        self.hit, self.epochs = hit, 0
        ((self.x, self.y),) = cases.batches((30,))

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        self.epochs += 1
        order = torch.randperm(30)
        for number, rows in enumerate(order.split(6)):
            if self.hit and not restarted() and join().rank == 1 and (self.epochs, number) == (3, 2):
                os.kill(os.getpid(), self.hit)
            yield self.x[rows], self.y[rows]


def main(out: Path, hit: signal.Signals | None, resume: bool) -> None:
    torch.set_num_threads(1)
    told: list[int] = []
    fitted = br.fit(
        cases.converted(), Batches(hit), epochs=5, lr=0.02, n_data=30, out=out, resume=resume,
        callbacks=[lambda loop, epoch: told.append(epoch.epoch)],
    )  # fmt: skip
    assert len(fitted.history) == 5
    if join().first:
        state = {**fitted.bnn.state_dict(), "told": torch.tensor(told)}
        torch.save({"state": state, "world": join().size, "restarted": restarted()}, out / "end.pt")
    else:
        assert not told


if __name__ == "__main__":
    signals = {"KILL": signal.SIGKILL, "TERM": signal.SIGTERM}
    main(Path(sys.argv[1]), signals.get(sys.argv[-1]), "resume" in sys.argv)

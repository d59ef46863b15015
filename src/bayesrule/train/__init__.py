"""The training loop, its checkpoints, and `fit`."""

from bayesrule.train.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from bayesrule.train.divergence import TrainingDiverged
from bayesrule.train.fit import Fitted, fit
from bayesrule.train.history import Epoch
from bayesrule.train.loading import load
from bayesrule.train.loop import Loop, TrainingInterrupted

__all__ = [
    "CheckpointError",
    "Epoch",
    "Fitted",
    "Loop",
    "TrainingDiverged",
    "TrainingInterrupted",
    "fit",
    "load",
    "read_checkpoint",
    "write_checkpoint",
]

"""The training loop, its checkpoints, and `fit`."""

from bayesrule.train.batches import TensorBatches
from bayesrule.train.captured import Captured, CapturedStep
from bayesrule.train.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from bayesrule.train.divergence import TrainingDiverged
from bayesrule.train.fit import Fitted, fit
from bayesrule.train.history import Epoch
from bayesrule.train.loading import load
from bayesrule.train.loop import Loop, TrainingInterrupted

__all__ = [
    "Captured",
    "CapturedStep",
    "CheckpointError",
    "Epoch",
    "Fitted",
    "Loop",
    "TensorBatches",
    "TrainingDiverged",
    "TrainingInterrupted",
    "fit",
    "load",
    "read_checkpoint",
    "write_checkpoint",
]

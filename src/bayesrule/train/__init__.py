"""The training loop, its checkpoints, and `fit`."""

from bayesrule.train.acquire import Acquisition, acquire
from bayesrule.train.active_learning import Learner, Rounds, active_learning
from bayesrule.train.batches import TensorBatches
from bayesrule.train.captured import Captured, CapturedStep
from bayesrule.train.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from bayesrule.train.divergence import TrainingDiverged
from bayesrule.train.fit import Fitted, fit
from bayesrule.train.history import Epoch
from bayesrule.train.loading import load
from bayesrule.train.loop import Loop, TrainingInterrupted

__all__ = [
    "Acquisition",
    "Captured",
    "CapturedStep",
    "CheckpointError",
    "Epoch",
    "Fitted",
    "Learner",
    "Loop",
    "Rounds",
    "TensorBatches",
    "TrainingDiverged",
    "TrainingInterrupted",
    "acquire",
    "active_learning",
    "fit",
    "load",
    "read_checkpoint",
    "write_checkpoint",
]

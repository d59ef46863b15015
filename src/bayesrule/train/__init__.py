"""The training loop, its checkpoints, and `fit`."""

from bayesrule.train.acquire import Acquisition, acquire
from bayesrule.train.active_learning import Learner, Rounds, active_learning
from bayesrule.train.batches import TensorBatches
from bayesrule.train.captured import Captured, CapturedStep
from bayesrule.train.checkpoint import CheckpointError, read_checkpoint, write_checkpoint
from bayesrule.train.compiling import compile_options
from bayesrule.train.divergence import TrainingDiverged
from bayesrule.train.fit import Fitted, fit
from bayesrule.train.gradient_snr import SNR, GradientSNR, gradient_snr
from bayesrule.train.history import Epoch
from bayesrule.train.loading import load
from bayesrule.train.loop import Loop, TrainingInterrupted
from bayesrule.train.replicas import ReplicaPredictive, Replicas

__all__ = [
    "SNR",
    "Acquisition",
    "Captured",
    "CapturedStep",
    "CheckpointError",
    "Epoch",
    "Fitted",
    "GradientSNR",
    "Learner",
    "Loop",
    "ReplicaPredictive",
    "Replicas",
    "Rounds",
    "TensorBatches",
    "TrainingDiverged",
    "TrainingInterrupted",
    "acquire",
    "active_learning",
    "compile_options",
    "fit",
    "gradient_snr",
    "load",
    "read_checkpoint",
    "write_checkpoint",
]

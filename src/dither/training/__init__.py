"""Private training: a loop of one's own with `make_private`, or one call of `train`."""

from dither.training.agreement import Shard
from dither.training.errors import RankLostError, StepError
from dither.training.evaluation import Public
from dither.training.history import Row
from dither.training.linear import train_linear
from dither.training.loop import TrainResult, train
from dither.training.make_private import make_private
from dither.training.models import MODELS
from dither.training.private import Private
from dither.training.residuals import (
    hinge_residuals,
    logistic_residuals,
    softmax_residuals,
    squared_residuals,
)
from dither.training.run_directory import Run

__all__ = [
    "MODELS",
    "Private",
    "Public",
    "RankLostError",
    "Row",
    "Run",
    "Shard",
    "StepError",
    "TrainResult",
    "hinge_residuals",
    "logistic_residuals",
    "make_private",
    "softmax_residuals",
    "squared_residuals",
    "train",
    "train_linear",
]

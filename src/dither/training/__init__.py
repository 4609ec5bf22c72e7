"""Private training: your own loop with `make_private`, or one call of `train`."""

from dither.training.distributed import Shard
from dither.training.errors import RankLostError, StepError
from dither.training.evaluation import Public
from dither.training.history import Row
from dither.training.linear import (
    LinearLoss,
    hinge_loss,
    logistic_loss,
    softmax_loss,
    squared_loss,
    train_linear,
)
from dither.training.loop import TrainResult, train
from dither.training.make_private import make_private
from dither.training.models import MODELS
from dither.training.private import Private
from dither.training.recipe import Recipe, recipe
from dither.training.run_directory import Run

__all__ = [
    "MODELS",
    "LinearLoss",
    "Private",
    "Public",
    "RankLostError",
    "Recipe",
    "Row",
    "Run",
    "Shard",
    "StepError",
    "TrainResult",
    "hinge_loss",
    "logistic_loss",
    "make_private",
    "recipe",
    "softmax_loss",
    "squared_loss",
    "train",
    "train_linear",
]

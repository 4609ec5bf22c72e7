"""Private training: your own loop with `make_private`, or one call of `train`."""

from dither.training.distributed import Shard
from dither.training.errors import RankLostError, StepError
from dither.training.evaluation import Public
from dither.training.history import Row
from dither.training.linear import (
    hinge_logit_gradients,
    logistic_logit_gradients,
    softmax_logit_gradients,
    squared_logit_gradients,
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
    "Private",
    "Public",
    "RankLostError",
    "Recipe",
    "Row",
    "Run",
    "Shard",
    "StepError",
    "TrainResult",
    "hinge_logit_gradients",
    "logistic_logit_gradients",
    "make_private",
    "recipe",
    "softmax_logit_gradients",
    "squared_logit_gradients",
    "train",
    "train_linear",
]

"""Private training: a loop of one's own with `make_private`, or one call of `train`."""

from dither.training.errors import StepError
from dither.training.evaluation import Public
from dither.training.history import Row
from dither.training.linear import train_linear
from dither.training.loop import TrainResult, train
from dither.training.making import make_private
from dither.training.models import MODELS
from dither.training.private import Private

__all__ = [
    "MODELS",
    "Private",
    "Public",
    "Row",
    "StepError",
    "TrainResult",
    "make_private",
    "train",
    "train_linear",
]

"""Private training: a loop of one's own with `make_private`, or one call of `train`."""

from dither.training.errors import StepError
from dither.training.private import Private, make_private

__all__ = ["Private", "StepError", "make_private"]

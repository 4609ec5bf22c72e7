"""Another schedule, held for stretches of equal length."""

from dataclasses import dataclass
from typing import final

import numpy as np

from dither import validate
from dither.types import FloatArray, Schedule


@final
@dataclass(frozen=True)
class Stairs:
    """The step sizes of ``inner`` for ``levels`` steps, each held for as long as the others.

    A run then has no more than so many different step sizes and noise levels, and is planned
    several times faster, at almost the same noise. A run of fewer steps follows ``inner``.

    >>> from dither.schedules import Linear
    >>> Stairs(Linear(1.0, 0.5), levels=3).stepsizes(7)
    array([1.  , 1.  , 1.  , 0.75, 0.75, 0.5 , 0.5 ])
    """

    inner: Schedule
    levels: int

    def __post_init__(self) -> None:
        """Check the parameters."""
        if isinstance(self.inner, type) or not isinstance(self.inner, Schedule):
            raise validate.InvalidTypeError(f"inner must be a schedule, got {self.inner!r}")
        object.__setattr__(self, "levels", validate.count(levels=self.levels))

    def stepsizes(self, steps: int) -> FloatArray:
        """Return the levels, each for its stretch."""
        T = validate.step_count(steps=steps)
        inner = validate.positives(stepsizes=self.inner.stepsizes(min(T, self.levels)))
        return np.asarray(inner[np.arange(T) * inner.size // T])

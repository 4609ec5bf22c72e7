"""A linear ramp in front of any other schedule."""

from dataclasses import dataclass
from typing import final

import numpy as np

from dither import validate
from dither.types import FloatArray, Schedule


@final
@dataclass(frozen=True)
class Warmup:
    """Rise linearly for ``steps`` steps to the first step size of ``inner``, then follow it.

    η_t = η⁰·(t+1)/W for t < W, where η⁰ is the inner schedule's first step size: the first step
    is above zero and the ramp ends at η⁰. The inner schedule then has the other T − W steps for
    itself, from its own first. A run of W steps or fewer has the ramp alone, towards the first of
    W inner steps.

    >>> from dither.schedules import Linear
    >>> Warmup(Linear(1.0, 0.5), steps=4).stepsizes(6)
    array([0.25, 0.5 , 0.75, 1.  , 1.  , 0.5 ])
    """

    inner: Schedule
    steps: int

    def __post_init__(self) -> None:
        """Check the parameters."""
        if isinstance(self.inner, type) or not isinstance(self.inner, Schedule):
            raise validate.InvalidTypeError(f"inner must be a schedule, got {self.inner!r}")
        object.__setattr__(self, "steps", validate.count(steps=self.steps))

    def stepsizes(self, steps: int) -> FloatArray:
        """Return the ramp and what follows it."""
        T, W = validate.step_count(steps=steps), self.steps
        inner = self.inner.stepsizes(T - W if T > W else W)
        ramp = inner[0] * np.arange(1, min(T, W) + 1, dtype=np.float64) / W
        return validate.positives(stepsizes=np.concatenate([ramp, inner])[:T])

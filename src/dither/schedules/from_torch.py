"""Step sizes of a ``torch.optim.lr_scheduler``, found by running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from dither import validate
from dither.types import FloatArray

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


@final
@dataclass(frozen=True)
class TorchSchedule:
    """The schedule of a torch scheduler; compares by the function that makes the scheduler.

    Example:
        >>> from torch.optim.lr_scheduler import ConstantLR
        >>> TorchSchedule(lambda optimizer: ConstantLR(optimizer, 0.5, 2)).stepsizes(3)
        array([0.5, 0.5, 1. ])
    """

    make_scheduler: Callable[[Optimizer], LRScheduler]
    stepsize: float = 1.0

    def __post_init__(self) -> None:
        """Check the parameters."""
        if not callable(self.make_scheduler):
            raise validate.InvalidTypeError(
                "make_scheduler must be a function from an optimizer to a scheduler, "
                f"got {self.make_scheduler!r}"
            )
        object.__setattr__(self, "stepsize", validate.positive(stepsize=self.stepsize))

    def stepsizes(self, steps: int) -> FloatArray:
        """Run a fresh scheduler for that many steps on an optimizer with nothing to optimise."""
        T = validate.step_count(steps=steps)
        import torch
        from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

        weight = torch.nn.Parameter(torch.zeros(()))
        # Schedulers that cycle the momentum refuse an optimizer that has none.
        optimizer = torch.optim.SGD([weight], lr=self.stepsize, momentum=0.9)
        scheduler = self.make_scheduler(optimizer)
        if isinstance(scheduler, ReduceLROnPlateau) or not isinstance(scheduler, LRScheduler):
            raise validate.InvalidTypeError(
                "make_scheduler must return a torch.optim.lr_scheduler whose learning rates are "
                f"known in advance, got {type(scheduler).__name__}"
            )
        if scheduler.optimizer is not optimizer:
            raise validate.InvalidValueError(
                "make_scheduler must attach its scheduler to the optimizer that it is given"
            )

        def advance() -> None:
            optimizer.step()
            scheduler.step()

        for _ in range(T):
            if optimizer.param_groups[0]["lr"] != 0.0:
                break
            advance()
        values = np.empty(T)
        for t in range(T):
            values[t] = optimizer.param_groups[0]["lr"]
            advance()
        if T > 1 and values[-1] == 0.0:
            values[-1] = values[-2]
        if not values.all():
            t = int(np.argmin(values != 0.0))
            raise validate.InvalidValueError(
                "make_scheduler must return a scheduler whose learning rate is 0 at its two ends "
                f"only, got 0 at step {t} of {T}: plan no more steps than it has"
            )
        return validate.positives(stepsizes=values)


def from_torch(
    make_scheduler: Callable[[Optimizer], LRScheduler], *, stepsize: float = 1.0
) -> TorchSchedule:
    """Return the schedule that a torch learning-rate scheduler would produce.

    A step with learning rate 0 would spend budget and move nothing, so there is none. A scheduler
    that begins at 0, as the warm-ups of ``transformers`` do, is read from its first positive rate
    on. If its rate is 0 at the last step, that step takes the rate of the step before. Zeros
    elsewhere are refused.

    Args:
        make_scheduler: takes an optimizer and returns the scheduler on it. It is called again for
            every call of ``stepsizes``, on an optimizer made for it.
        stepsize: the learning rate which that optimizer starts with.

    Returns:
        A schedule. torch is imported when its step sizes are asked for, not before.

    Example:
        >>> from torch.optim.lr_scheduler import StepLR
        >>> from_torch(lambda optimizer: StepLR(optimizer, step_size=2)).stepsizes(4)
        array([1. , 1. , 0.1, 0.1])
        >>> from torch.optim.lr_scheduler import LambdaLR
        >>> warmup = from_torch(lambda optimizer: LambdaLR(optimizer, lambda t: min(t / 4, 1)))
        >>> warmup.stepsizes(5)
        array([0.25, 0.5 , 0.75, 1.  , 1.  ])
    """
    return TorchSchedule(make_scheduler, stepsize)

"""Step sizes of a ``torch.optim.lr_scheduler``, read off by running it."""

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
    """What ``from_torch`` returns; compares by the function that makes the scheduler."""

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
        values = np.empty(T)
        for t in range(T):
            values[t] = optimizer.param_groups[0]["lr"]
            optimizer.step()
            scheduler.step()
        return validate.positives(stepsizes=values)


def from_torch(
    make_scheduler: Callable[[Optimizer], LRScheduler], *, stepsize: float = 1.0
) -> TorchSchedule:
    """Return the schedule that a torch learning-rate scheduler would produce.

    Args:
        make_scheduler: takes an optimizer and returns the scheduler on it. It is called anew for
            every reading, on an optimizer made for the purpose.
        stepsize: the learning rate which that optimizer starts with.

    Returns:
        A schedule. torch is imported when its step sizes are asked for, not before. A scheduler
        that ends at zero is refused when they are: a step size must be positive.

    Example:
        >>> from torch.optim.lr_scheduler import StepLR
        >>> from_torch(lambda optimizer: StepLR(optimizer, step_size=2)).stepsizes(4)
        array([1. , 1. , 0.1, 0.1])
    """
    return TorchSchedule(make_scheduler, stepsize)

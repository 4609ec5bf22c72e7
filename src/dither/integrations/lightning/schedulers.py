"""The step sizes of the learning rate schedulers that a module configures."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from lightning.pytorch import LightningModule
from torch.optim import Optimizer

from dither.training.optimizer_hooks import set_learning_rate
from dither.types import FloatArray
from dither.validate import InvalidValueError

_REMEDY = "give PrivateStrategy stepsizes= and let configure_optimizers return the optimizer alone"


def stepsizes_of(
    schedulers: Sequence[Any],
    module: LightningModule,
    optimizer: Optimizer,
    *,
    steps: int,
    epoch: int,
) -> FloatArray:
    """Return a factor of the learning rate for every step, and leave the optimizer without them.

    The schedulers are stepped when the trainer would. A factor of 0 at either end, where a step
    would move nothing, becomes that of the nearest step.

    Args:
        schedulers: as the trainer keeps them, with their interval and frequency.
        module: which may step them in a way of its own.
        optimizer: on which they are.
        steps: of the plan.
        epoch: steps in an epoch.
    """
    if any(each.reduce_on_plateau for each in schedulers):
        raise InvalidValueError(
            "configure_optimizers must have schedulers that are known before the run, got "
            f"ReduceLROnPlateau: {_REMEDY}"
        )
    groups = optimizer.param_groups
    rates = np.empty((steps, len(groups)))
    with warnings.catch_warnings(action="ignore"):  # no step of the optimizer goes before
        for t in range(steps):
            rates[t] = [float(group["lr"]) for group in groups]
            for each in schedulers:
                if _is_due(each, t, epoch):
                    module.lr_scheduler_step(each.scheduler, None)
    initial = [float(group.pop("initial_lr", group["lr"])) for group in groups]
    for group, rate in zip(groups, initial, strict=True):
        set_learning_rate(group, rate)
    factors = rates / initial
    if not np.allclose(factors, factors[:, :1]):
        raise InvalidValueError(
            "configure_optimizers must have a scheduler with the same factor for all groups of "
            f"parameters, got different ones: {_REMEDY}"
        )
    return _without_zeros(factors[:, 0])


def _is_due(scheduler: Any, step: int, epoch: int) -> bool:
    """Return whether the trainer would step a scheduler after a step."""
    epochs, batch = divmod(step, epoch)
    if scheduler.interval == "step":
        return bool((batch + 1) % scheduler.frequency == 0)
    return bool(batch + 1 == epoch and (epochs + 1) % scheduler.frequency == 0)


def _without_zeros(factors: FloatArray) -> FloatArray:
    positive = np.flatnonzero(factors > 0.0)
    if not positive.size or (factors[positive[0] : positive[-1]] <= 0.0).any():
        raise InvalidValueError(
            "configure_optimizers must have a scheduler whose learning rate is positive between "
            f"its ends, got 0: {_REMEDY}"
        )
    return factors[np.clip(np.arange(factors.size), positive[0], positive[-1])]

"""Optimizers by name."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from dither.clipping.batch import trainable
from dither.training.optimizer_hooks import check_trainable
from dither.validate import InvalidTypeError, choice

OPTIMIZERS: dict[str, Callable[[Iterable[Tensor]], Optimizer]] = {
    "adam": lambda parameters: Adam(parameters, lr=1e-3),
    "adamw": lambda parameters: AdamW(parameters, lr=1e-3),
    "momentum": lambda parameters: SGD(parameters, lr=1.0, momentum=0.9),
    "sgd": lambda parameters: SGD(parameters, lr=1.0),
}


def optimizer_of(optimizer: Any, model: nn.Module) -> Optimizer:
    """Return an optimizer by its name, from a function, or as it is given."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    if isinstance(optimizer, str):
        optimizer = OPTIMIZERS[choice(OPTIMIZERS, optimizer=optimizer)]
    if not callable(optimizer):
        raise InvalidTypeError(
            "optimizer must be a name, an optimizer or a function that makes one, "
            f"got {optimizer!r}"
        )
    check_trainable(model)
    made: Optimizer = optimizer(trainable(model).values())
    return made

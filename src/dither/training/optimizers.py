"""Optimizers by name, with the learning rate that a recipe or a plan gives them."""

from collections.abc import Callable, Iterable
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from dither import validate
from dither.clipping.batch import trainable
from dither.training.optimizer_hooks import check_trainable

MOMENTUM = 0.9

OPTIMIZERS: dict[str, Callable[[Iterable[Tensor], float], Optimizer]] = {
    "adam": lambda parameters, lr: Adam(parameters, lr=lr),
    "adamw": lambda parameters, lr: AdamW(parameters, lr=lr),
    "momentum": lambda parameters, lr: SGD(parameters, lr=lr, momentum=MOMENTUM),
    "sgd": lambda parameters, lr: SGD(parameters, lr=lr),
}
UNIT_RATES = {"adam": 1e-3, "adamw": 1e-3, "momentum": 1.0, "sgd": 1.0}
"""Learning rates with a plan, whose step sizes multiply them."""

GivenOptimizer = str | Callable[[Iterable[Tensor]], Optimizer] | Optimizer
"""An optimizer as `dither.train` takes it: a name, a function from parameters, or itself."""


def named_optimizer(name: str, model: nn.Module, learning_rate: float) -> Optimizer:
    """Return the optimizer of that name for the model's trainable parameters."""
    build = OPTIMIZERS[validate.choice(OPTIMIZERS, optimizer=name)]
    check_trainable(model)
    return build(trainable(model).values(), learning_rate)


def given_optimizer(optimizer: Any, model: nn.Module) -> Optimizer:
    """Return an optimizer as given, or from a function of the parameters."""
    if isinstance(optimizer, Optimizer):
        return optimizer
    if not callable(optimizer):
        raise validate.InvalidTypeError(
            "optimizer must be a name, an optimizer or a function that makes one, "
            f"got {optimizer!r}"
        )
    check_trainable(model)
    return cast(Optimizer, optimizer(trainable(model).values()))

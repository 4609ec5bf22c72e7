"""Optimizers by name, with the learning rate that a recipe or a plan gives them."""

from collections.abc import Callable, Iterable
from typing import Any, cast

from torch import Tensor, nn
from torch.optim import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
)

from dither import validate
from dither.clipping.batch import trainable
from dither.planning import Plan, ReactivePlan
from dither.training.optimizer_hooks import check_trainable

MOMENTUM = 0.9

MEAN_INPUTS, _LEAST_INPUTS = 64, 32
"""Inputs of a layer whose rate is the learning rate, and the fewest that count."""

OPTIMIZERS: dict[str, Callable[[Iterable[Any], float], Optimizer]] = {
    "adam": lambda parameters, lr: Adam(parameters, lr=lr),
    "adamw": lambda parameters, lr: AdamW(parameters, lr=lr),
    "momentum": lambda parameters, lr: SGD(parameters, lr=lr, momentum=MOMENTUM),
    "sgd": lambda parameters, lr: SGD(parameters, lr=lr),
}
UNIT_RATES = {"adam": 1e-3, "adamw": 1e-3, "momentum": 1.0, "sgd": 1.0}
"""Learning rates with a plan, whose step sizes multiply them."""
_SCALING = (Adadelta, Adagrad, Adam, AdamW, Adamax, NAdam, RAdam, RMSprop)

GivenOptimizer = str | Callable[[Iterable[Tensor]], Optimizer] | Optimizer
"""An optimizer as `dither.train` takes it: a name, a function from parameters, or itself."""


def named_optimizer(
    name: str, model: nn.Module, learning_rate: float, *, layer_rates: bool = False
) -> Optimizer:
    """Return the optimizer of that name for the model's trainable parameters.

    With ``layer_rates`` the parameters are in groups, whose rates have the layers' factors.
    """
    build = OPTIMIZERS[validate.choice(OPTIMIZERS, optimizer=name)]
    check_trainable(model)
    if not layer_rates:
        return build(trainable(model).values(), learning_rate)
    groups: dict[float, list[Tensor]] = {}
    for parameter, factor in layer_factors(model).items():
        groups.setdefault(factor, []).append(parameter)
    return build(
        [{"params": group, "lr": learning_rate * factor} for factor, group in groups.items()],
        learning_rate,
    )


def layer_factors(model: nn.Module) -> dict[Tensor, float]:
    """Return for every trainable parameter (64/inputs)^¼, with the inputs of its layer.

    The noise of a layer's weights adds up over its inputs, the entries of a row of its weight.
    Their square root would make up for all of it, but the signal adds up as well.
    Layers of fewer than 32 inputs are taken as of 32, and those without a matrix as of 64:
    embeddings, of which one row is an output, and normalization.

    Example:
        >>> layer = nn.Linear(1024, 10)
        >>> layer_factors(layer)[layer.weight], layer_factors(layer)[layer.bias]
        (0.5, 0.5)
    """
    factors: dict[Tensor, float] = {}
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))
        is_table = isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for parameter in own.values():
            matrix = own.get("weight", parameter) if parameter.ndim < 2 else parameter
            inputs = MEAN_INPUTS if is_table or matrix.ndim < 2 else matrix[0].numel()
            if parameter.requires_grad:
                factors.setdefault(parameter, (MEAN_INPUTS / max(inputs, _LEAST_INPUTS)) ** 0.25)
    return factors


def warn_of_scaling(optimizer: Optimizer, plan: Plan | ReactivePlan) -> None:
    """Warn of correlated noise with an optimizer that divides by the size of the noise."""
    if plan.bands > 1 and isinstance(optimizer, _SCALING):
        validate.warn(
            f"{type(optimizer).__name__} divides every step by the size of its noise, which undoes "
            "what correlated noise gains: take torch.optim.SGD with momentum, or noise that is not "
            "correlated"
        )


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

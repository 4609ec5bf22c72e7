"""Losses by name, one value a record."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from dither.clipping.batch import Loss
from dither.validate import InvalidTypeError, InvalidValueError, choice


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Classes from logits, records × classes, or records × classes × places."""
    losses = functional.cross_entropy(_tensor(outputs), targets, reduction="none")
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Yes or no from one logit a target."""
    logits = _like(outputs, targets)
    losses = functional.binary_cross_entropy_with_logits(
        logits, targets.to(logits.dtype), reduction="none"
    )
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Numbers: the mean square over a record's own."""
    losses = (_like(outputs, targets) - targets).square()
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def _like(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the outputs in the shape of the targets; what is said has nothing of the batch."""
    if _tensor(outputs).shape[1:].numel() != targets.shape[1:].numel():
        raise InvalidValueError(
            f"targets must be as many numbers a record as the model's outputs, "
            f"{outputs.shape[1:].numel()}, got {targets.shape[1:].numel()}"
        )
    return outputs.reshape(targets.shape)


def _tensor(outputs: object) -> Tensor:
    if isinstance(outputs, Tensor):
        return outputs
    raise InvalidTypeError(
        f"loss must be a function where the model returns no tensor, got a name for "
        f"{type(outputs).__name__}: dither.integrations.transformers has losses for such outputs"
    )


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "binary_cross_entropy": binary_cross_entropy,
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
}


def loss_of(loss: str | Loss) -> Loss:
    """Return a loss by its name, or as it is given."""
    if callable(loss):
        return loss
    if not isinstance(loss, str):
        raise InvalidTypeError(f"loss must be a name or a function, got {loss!r}")
    return LOSSES[choice(LOSSES, loss=loss)]

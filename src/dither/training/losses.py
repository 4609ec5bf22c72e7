"""Losses by name, one value per record."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from dither.clipping.batch import (
    Loss,
    check_losses,
    check_weights,
    count_records,
    forward,
    slice_rows,
)
from dither.training.evaluation import arguments_of
from dither.training.records import check_pair
from dither.validate import InvalidTypeError, InvalidValueError, choice

RecordWeights = Callable[[Any], Tensor]
"""From targets to one weight per record."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Classes from logits, records × classes, or records × classes × places."""
    if _tensor(outputs).shape[1:2].numel() < 2:  # 1 for outputs of one dimension, too
        raise InvalidValueError(
            "loss must be squared_error, binary_cross_entropy or a function for a model with one "
            "output, got 'cross_entropy'"
        )
    if targets.is_floating_point() and targets.shape != outputs.shape:
        raise InvalidValueError(
            "loss must be squared_error or a function for targets that are no classes, got "
            f"'cross_entropy' with {targets.dtype} targets"
        )
    losses = functional.cross_entropy(outputs, targets, reduction="none")
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def binary_cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Two classes from one logit per target."""
    logits = _like(outputs, targets)
    losses = functional.binary_cross_entropy_with_logits(
        logits, targets.to(logits.dtype), reduction="none"
    )
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Numbers: the mean squared error of each record."""
    losses = (_like(outputs, targets) - targets).square()
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def _like(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the outputs in the shape of the targets; the error reveals nothing of the batch."""
    if _tensor(outputs).shape[1:].numel() != targets.shape[1:].numel():
        raise InvalidValueError(
            f"targets must be as many numbers per record as the model's outputs, "
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


class PerRecordLoss:
    """The losses of a batch (inputs, …, targets), one per record.

    The first batch shows that every record has its own value, whatever the others are: the loss is
    computed again for each half. A mean over the batch, a weighted or ``ignore_index`` mean, or
    statistics of the batch would give another value.
    """

    def __init__(self, loss: Loss) -> None:
        self._loss, self._is_checked = loss, False

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """Return the losses of a model."""
        *inputs, targets = check_pair(batch)
        outputs = forward(model, arguments_of(inputs))
        losses = check_losses(self._loss(outputs, targets), count_records(targets=targets), "loss")
        if not self._is_checked and len(losses) > 1:
            check_halves(self._loss, (outputs, targets), losses.detach(), "loss")
            self._is_checked = int(torch.isfinite(losses).sum()) > 1  # else a total hides in NaN
        return losses


def weigh(record_weights: RecordWeights | None, batch: Any) -> Tensor | None:
    """Return the weights of the records of a batch; raise if they depend on other records."""
    if record_weights is None:
        return None
    targets = check_pair(batch)[-1]
    weights = check_weights(record_weights(targets), count_records(targets=targets))
    if len(weights) > 1:
        check_halves(record_weights, (targets,), weights, "record_weights")
    return weights


def check_halves(
    function: Callable[..., Tensor], arguments: tuple[Any, ...], values: Tensor, name: str
) -> None:
    """Raise if the values of a half of the batch are not those of the complete batch."""
    records = len(values)
    for rows in (slice(0, (records + 1) // 2), slice((records + 1) // 2, records)):
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            half = function(*slice_rows(arguments, rows, records))
        if not _are_close(values[rows], half):
            raise InvalidValueError(
                f"{name} must give every record its own value, whatever the other records are, "
                "but it gives others for a half of the batch: divide by constants or by what "
                "belongs to the record, never by the number of records, tokens or weights in "
                "the batch"
            )


def _are_close(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape:
        return False
    tolerance = 8.0 * torch.finfo(one.dtype).eps ** (2.0 / 3.0)
    finite = torch.isfinite(one)
    floor = tolerance * float(one[finite].abs().mean()) if bool(finite.any()) else 0.0
    close = (one - two).abs() <= floor + tolerance * one.abs()
    return bool((close | ~finite & ~torch.isfinite(two)).all())


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "binary_cross_entropy": binary_cross_entropy,
    "cross_entropy": cross_entropy,
    "squared_error": squared_error,
}


def find_loss(loss: str | Loss) -> Loss:
    """Return a loss by its name, or as given."""
    if callable(loss):
        return loss
    if not isinstance(loss, str):
        raise InvalidTypeError(f"loss must be a name or a function, got {loss!r}")
    return LOSSES[choice(LOSSES, loss=loss)]

"""Several views of every record, whose gradients are averaged before they are clipped."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from dither.clipping.batch import mapped
from dither.validate import InvalidValueError

Augment = Callable[[Tensor], Tensor]


def with_views(batch: Any, augment: Augment, records: int) -> tuple[Any, int]:
    """Return a batch of one row a view, and the number of views of a record."""
    if not isinstance(batch, tuple) or not isinstance(batch[0], Tensor):
        raise InvalidValueError(
            "augment needs a dataset of (inputs, targets, …) whose inputs are one tensor"
        )
    made: object = augment(batch[0])
    if not isinstance(made, Tensor) or made.dim() < 2 or len(made) != records or not made.shape[1]:
        got = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise InvalidValueError(
            f"augment must return the views of {records} records as (records, views, …), got {got}"
        )
    views = made.shape[1]
    others = mapped(batch[1:], lambda tensor: tensor.repeat_interleave(views, 0))
    return (made.flatten(0, 1), *others), views

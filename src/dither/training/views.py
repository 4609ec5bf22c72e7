"""Several views of every record, whose gradients are averaged before they are clipped."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dither.clipping.batch import mapped
from dither.validate import InvalidValueError

Augment = Callable[[Tensor], Tensor]


def _refuse_mixed_views(augment: Augment, inputs: Tensor, made: Tensor, state: Tensor) -> None:
    """Raise if a record's views change when every second record is another, with the same dice."""
    exchanged = inputs.clone()
    exchanged[::2] = inputs.roll(1, 0)[::2] * (-100 if inputs.is_floating_point() else 1)
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(state)
        again = augment(exchanged)
    if again.shape != made.shape or not torch.equal(
        again[1::2].nan_to_num(), made[1::2].nan_to_num()
    ):
        raise InvalidValueError(
            "augment must make the views of a record from that record alone, and from torch's "
            "random numbers, but they change when other records of the batch do"
        )


def with_views(batch: Any, augment: Augment, records: int) -> tuple[Any, int]:
    """Return a batch of one row a view, and the number of views of a record."""
    if not isinstance(batch, tuple) or not isinstance(batch[0], Tensor):
        raise InvalidValueError(
            "augment needs a dataset of (inputs, targets, …) whose inputs are one tensor"
        )
    state = torch.get_rng_state()
    made: object = augment(batch[0])
    if not isinstance(made, Tensor) or made.dim() < 2 or len(made) != records or not made.shape[1]:
        got = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise InvalidValueError(
            f"augment must return the views of {records} records as (records, views, …), got {got}"
        )
    _refuse_mixed_views(augment, batch[0], made, state)
    views = made.shape[1]
    others = mapped(batch[1:], lambda tensor: tensor.repeat_interleave(views, 0))
    return (made.flatten(0, 1), *others), views

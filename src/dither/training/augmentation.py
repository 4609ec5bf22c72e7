"""Augmentation multiplicity: several views of every record, averaged before they are clipped."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from dither.clipping.batch import map_tensors
from dither.clipping.independence import IndependenceCheck
from dither.validate import InvalidValueError

Augment = Callable[[Tensor], Tensor]
"""From records to (records, views, …)."""


class Augmentation:
    """Makes the views of a batch; the first batch shows that each comes from its own record."""

    def __init__(self, augment: Augment) -> None:
        self._augment, self._is_checked = augment, False

    def views_of(self, batch: Any, records: int) -> tuple[Any, int]:
        """Return a batch of one row per view, and the number of views of a record."""
        if not isinstance(batch, tuple | list) or not isinstance(batch[0], Tensor):
            raise InvalidValueError(
                "augment needs a dataset of (inputs, targets, …) whose inputs are one tensor"
            )
        inputs, check = batch[0], None
        if not self._is_checked and records > 1:
            check = IndependenceCheck(nn.Module(), self._augment, (inputs,), {}, records)
        made = _checked(self._augment(inputs), inputs)
        if check is not None:
            if check.result([made]).mixed:
                raise InvalidValueError(
                    "augment must make the views of a record from that record alone, and from "
                    "torch's random numbers, but they change when other records of the batch do"
                )
            self._is_checked = True
        views = made.shape[1]
        others = map_tensors(tuple(batch[1:]), lambda tensor: tensor.repeat_interleave(views, 0))
        return (made.flatten(0, 1), *others), views


def _checked(made: object, inputs: Tensor) -> Tensor:
    if (
        isinstance(made, Tensor)
        and made.dim() == inputs.dim() + 1
        and len(made) == len(inputs)
        and made.shape[1] > 0
    ):
        return made
    got = f"{made.dim()} dimensions" if isinstance(made, Tensor) else type(made).__name__
    raise InvalidValueError(
        f"augment must return the views of all records as (records, views, …), got {got} for "
        f"inputs of {inputs.dim()} dimensions"
    )

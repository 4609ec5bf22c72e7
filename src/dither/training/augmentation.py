"""Augmentation multiplicity: gradients of copies of a record are averaged before clipping."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from dither.clipping.batch import map_tensors
from dither.clipping.independence import IndependenceCheck
from dither.validate import InvalidValueError

Augment = Callable[[Tensor], Tensor]
"""From records to (records, multiplicity, …)."""


class Augmentation:
    """Augments batches; the first shows that every copy comes from its own record alone."""

    def __init__(self, augment: Augment) -> None:
        self._augment, self._is_checked = augment, False

    def apply(self, batch: Any, records: int) -> tuple[Any, int]:
        """Return a batch with one row per augmented copy, and the number of copies per record."""
        if not isinstance(batch, tuple | list) or not isinstance(batch[0], Tensor):
            raise InvalidValueError(
                "augment needs a dataset of (inputs, targets, …) whose inputs are one tensor"
            )
        inputs, check = batch[0], None
        if not self._is_checked and records > 1:
            check = IndependenceCheck(nn.Module(), self._augment, (inputs,), {}, records)
        copies = _check_copies(self._augment(inputs), inputs)
        if check is not None:
            if check.result([copies]).mixed:
                raise InvalidValueError(
                    "augment must make the copies of a record from that record alone, and from "
                    "torch's random numbers, but they change when other records of the batch do"
                )
            self._is_checked = True
        multiplicity = copies.shape[1]
        others = map_tensors(
            tuple(batch[1:]), lambda tensor: tensor.repeat_interleave(multiplicity, 0)
        )
        return (copies.flatten(0, 1), *others), multiplicity


def _check_copies(copies: object, inputs: Tensor) -> Tensor:
    if (
        isinstance(copies, Tensor)
        and copies.dim() == inputs.dim() + 1
        and len(copies) == len(inputs)
        and copies.shape[1] > 0
    ):
        return copies
    got = f"{copies.dim()} dimensions" if isinstance(copies, Tensor) else type(copies).__name__
    raise InvalidValueError(
        f"augment must return the shape (records, multiplicity, …), got {got} for "
        f"inputs of {inputs.dim()} dimensions"
    )

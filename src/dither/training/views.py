"""Several views of every record, whose gradients are averaged before they are clipped."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dither.clipping.batch import mapped
from dither.clipping.recorder import Recorder
from dither.validate import InvalidValueError

Augment = Callable[[Tensor], Tensor]


class Views:
    """Makes the views, and sees that each comes from one record.

    Args:
        augment: from records to (records, views, …); called with single records where it does what
            could tell it about others.
    """

    def __init__(self, augment: Augment) -> None:
        self._augment = augment
        self._tried: set[int] = set()

    def of(self, batch: Any, records: int) -> tuple[Any, int]:
        """Return a batch of one row a view, and the number of views of a record."""
        if not isinstance(batch, tuple) or not isinstance(batch[0], Tensor):
            raise InvalidValueError(
                "augment needs a dataset of (inputs, targets, …) whose inputs are one tensor"
            )
        inputs, state = batch[0], torch.get_rng_state()
        recorder = Recorder({}, inputs, records)
        with recorder:
            made = _checked(self._augment(inputs), inputs)
        kind = -1 if recorder.tells_values else recorder.trace
        if kind not in self._tried:
            for side in (0, 1):
                for factor in (-100, 100):
                    _refuse_mixed(self._augment, inputs, made, state, side, factor)
            self._tried.add(kind)
        if recorder.tells_values:
            alone = [self._augment(inputs[i : i + 1]) for i in range(records)]
            made = _checked(torch.cat(alone), inputs)
        views = made.shape[1]
        others = mapped(batch[1:], lambda tensor: tensor.repeat_interleave(views, 0))
        return (made.flatten(0, 1), *others), views


def _checked(made: object, inputs: Tensor) -> Tensor:
    if (
        isinstance(made, Tensor)
        and made.dim() == inputs.dim() + 1
        and len(made) == len(inputs)
        and made.shape[1] > 0
    ):
        return made
    got = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
    raise InvalidValueError(
        f"augment must return the views of {len(inputs)} records as (records, views, …), got {got} "
        f"for inputs of shape {tuple(inputs.shape)}"
    )


def _refuse_mixed(
    augment: Augment, inputs: Tensor, made: Tensor, state: Tensor, side: int, factor: int
) -> None:
    """Raise if a record's views change when every second record is another, with the same dice."""
    exchanged = inputs.clone()
    others = inputs.roll(1, 0)[side::2]
    exchanged[side::2] = others * factor if inputs.is_floating_point() else others
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(state)
        again = augment(exchanged)
    kept = slice(1 - side, None, 2)
    if again.shape != made.shape or not torch.equal(
        again[kept].nan_to_num(), made[kept].nan_to_num()
    ):
        raise InvalidValueError(
            "augment must make the views of a record from that record alone, and from torch's "
            "random numbers, but they change when other records of the batch do"
        )

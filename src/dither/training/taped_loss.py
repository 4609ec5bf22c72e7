"""The losses of a user's loop as something that can be computed again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dither.clipping.batch import take
from dither.clipping.check import probe
from dither.training.tape import Tape, plain
from dither.validate import InvalidValueError

_FAILURES = (RuntimeError, IndexError, ValueError, TypeError)


@dataclass(frozen=True)
class TapedLoss:
    """What a tape ends with: losses one a row, or one number for all.

    Attributes:
        tape: the tape, stopped.
        reduction: None for one loss a row, else "mean" or "sum".
        views: rows a record.
        sizes_vary: whether steps draw different numbers of records, so that a loss that depends on
            the number tells of others.
    """

    tape: Tape
    reduction: str | None
    views: int
    sizes_vary: bool

    @property
    def key(self) -> object:
        """What a proof depends on besides the model."""
        return self.reduction, self.views, self.tape.key

    def values(self, called: Callable[..., Any], batch: Any, records: int) -> Tensor:
        """Return the losses, or if there is only one number, what the model gave of each row."""
        losses, outputs = self._played(lambda: called, batch, slice(0, records))
        with torch._C.DisableTorchFunction():
            return losses if self.reduction is None else probe(outputs, None)

    def loss_of_one(self, called: Callable[..., Any], batch: Any) -> Tensor:
        """Return the loss of a single row."""
        losses, _ = self._played(lambda: called, batch, slice(0, 1))
        if losses.numel() != 1:
            raise InvalidValueError(
                "losses must be computed from the batch and from constants that are the same for "
                "all records, got a constant with one entry a record"
            )
        return losses.reshape(())

    def by_row(self, losses: Tensor) -> Tensor:
        """Return what was given as losses as one a row, or as their sum; a record's add up to 1."""
        shape, rows = tuple(losses.shape), self.tape.rows
        if self.reduction is None:
            if shape != (rows,):
                raise InvalidValueError(
                    f"losses must be one a record, a tensor of shape ({rows},), got {shape}; "
                    'torch.nn.functional gives them with reduction="none", and '
                    'make_private(..., reduction="mean") takes the mean over a batch'
                )
        elif shape != ():
            raise InvalidValueError(
                f"losses must be a single number with reduction={self.reduction!r}, got shape "
                f"{shape}; leave reduction out for one loss a record"
            )
        weight = (rows if self.reduction == "mean" else 1) / self.views
        return losses if weight == 1.0 else losses * weight

    @torch.no_grad()
    def refuse_mixed_losses(self, losses: Tensor) -> None:
        """Raise unless a batch's loss is made of its halves' losses, the model's outputs given.

        One number for a batch hides what each record gives to it: the mean over a batch with class
        weights divides by all the records' weights, with ``ignore_index`` by those that are left.
        """
        rows = self.tape.rows
        if self.reduction is None or rows < 2:
            return
        middle = (rows + 1) // 2
        parts = [self._of_rows(slice(0, middle)), self._of_rows(slice(middle, rows))]
        if self.reduction == "mean":
            parts = [parts[0] * (middle / rows), parts[1] * (1.0 - middle / rows)]
        size = sum(float(part.abs()) for part in parts)
        slack = 64.0 * torch.finfo(losses.dtype).eps * (size + float(losses.abs()))
        if abs(float(losses) - sum(float(part) for part in parts)) > slack:
            raise InvalidValueError(
                f"the loss of a batch must be the {self.reduction} of its records' own losses, but "
                "its halves give another one (class weights and ignore_index under a mean do that, "
                'and contrastive losses); give one loss a record with reduction="none"'
            )

    def _of_rows(self, rows: slice) -> Tensor:
        """Return the loss of some rows, for which the model returns what it has returned."""

        def returning() -> Callable[..., Any]:
            returned = iter(self.tape.outputs)
            return lambda *_, **__: take(next(returned), rows)

        losses, _ = self._played(returning, take(plain(self.tape.batch), rows), rows)
        return losses

    def _played(
        self, calling: Callable[[], Callable[..., Any]], batch: Any, rows: slice
    ) -> tuple[Tensor, Any]:
        try:
            return self.tape.play(calling(), batch, rows)
        except _FAILURES as problem:
            if isinstance(problem, InvalidValueError):
                raise
        try:  # a number may equal the number of rows by chance
            return self.tape.play(calling(), batch, rows, recount=False)
        except _FAILURES as problem:
            asked, had = rows.stop - rows.start, self.tape.rows
            raise InvalidValueError(
                f"the loop must work for any number of records, but what it did for {had} fails "
                f"for {asked}: {' '.join(str(problem).split())[:200]}"
            ) from None

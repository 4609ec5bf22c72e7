"""The loss of a user's loop, taken apart: what each record alone adds to it.

A loop computes losses for a whole batch, in ways that nobody knows. Its tape is played again for
every row by itself, with that row's outputs of the model, so that the gradient which a record's
loss sends to the model cannot depend on other records. What comes of it is compared with what the
loop has computed: a loop whose records do depend on each other is told so.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from dither.clipping.batch import tensors, vmapped
from dither.clipping.check import probe
from dither.clipping.precision import full_precision
from dither.training.tape import PREPARE, Output, Tape, Taped
from dither.validate import InvalidValueError

_OWN_LOSS = (
    "a loss that the model computes from labels is one number for the batch; leave the labels out "
    "of its inputs, and compute one loss a record from its outputs"
)
_FAILURES = (RuntimeError, IndexError, ValueError, TypeError)
_ENTRY_BY_ENTRY = frozenset(
    {
        functional.mse_loss,
        functional.l1_loss,
        functional.smooth_l1_loss,
        functional.huber_loss,
        functional.binary_cross_entropy_with_logits,
    }
)
_CLOSE = 1e-3
_Play = Callable[[None, dict[int, Tensor], int], tuple[Tensor, Any]]


def rows_alone(tape: Tape, arguments: Any, sizes_vary: bool) -> Any:
    """Return what a loop gives to the model, computed for every row by itself.

    Raises:
        InvalidValueError: it is not what the loop has computed.
    """
    tape.refuse_changes()
    fresh = {id(each) for each in (*tensors(tape.batch), *(out.given for out in tape.outputs))}
    made = [
        each for each in tensors(arguments) if isinstance(each, Taped) and id(each) not in fresh
    ]
    if not made:
        return arguments
    try:
        alone = tape.rows_alone(made, recount=sizes_vary)
    except _FAILURES as problem:
        raise _unfit(problem, tape.rows, 1) from None
    for whole, rows in zip(made, alone, strict=True):
        same = whole.shape == rows.shape and _is_close(whole.as_subclass(Tensor), rows)
        if not (same or tape.is_random):
            raise InvalidValueError(
                "what the model is called with must come from each record alone, but for a record "
                "by itself it is something else than in its batch"
            )
    known = {id(whole): rows for whole, rows in zip(made, alone, strict=True)}
    return tree_map_only(Tensor, lambda tensor: known.get(id(tensor), tensor), arguments)


@dataclass(frozen=True)
class TapedLoss:
    """What a tape ends with: losses one a row, or one number for all.

    Attributes:
        tape: the tape, stopped.
        reduction: None for one loss a row, else "mean" or "sum".
        views: rows a record.
        sizes_vary: whether steps draw different numbers of records, so that a model that depends on
            the number tells of others.
    """

    tape: Tape
    reduction: str | None
    views: int
    sizes_vary: bool

    @property
    def key(self) -> object:
        """What a proof depends on besides the model."""
        return self.views, self.tape.key

    def values(self, called: Callable[..., Any], batch: Any, records: int) -> Tensor:
        """Return a number for each row of the model's output."""
        _, outputs = self._played(called, self._known(batch), records)
        with torch._C.DisableTorchFunction():
            return probe(outputs, None)

    def loss_of_one(self, called: Callable[..., Any], batch: Any) -> Tensor:
        """Return the loss of a single row."""
        losses, _ = self._played(called, self._known(batch), 1)
        return losses.reshape(())

    def sent_back(self) -> Tensor:
        """Return, for each row, a sum whose gradient is that of the row's own loss.

        It is the model's outputs times the gradients of the loss with respect to them.
        """
        self._refuse_shape()
        outputs = [each for each in self.tape.outputs if each.value.requires_grad]
        if not outputs:
            raise InvalidValueError(
                "losses must depend on the trainable parameters, got outputs without a graph"
            )
        for each in outputs:
            if each.value.shape[:1] != (self.tape.rows,):
                remedy = "" if each.value.dim() else f": {_OWN_LOSS}"
                raise InvalidValueError(
                    f"model must return one entry a record along the first dimension, "
                    f"{self.tape.rows}, got shape {tuple(each.value.shape)}{remedy}"
                )
        gradients = self._gradients(outputs)
        with full_precision(outputs[0].value.device.type):
            parts = [
                (each.value * gradient.to(each.value.dtype)).reshape(self.tape.rows, -1).sum(1)
                for each, gradient in zip(outputs, gradients, strict=True)
            ]
            return torch.stack(parts).sum(0) / self.views

    def _gradients(self, outputs: Sequence[Output]) -> Sequence[Tensor]:
        if self._is_by_row():
            assert self.tape.losses is not None  # noqa: S101 (stopped tapes have losses)
            total = self.tape.losses.as_subclass(Tensor).sum()
            leaves = [each.leaf for each in outputs]
            return torch.autograd.grad(total, leaves, allow_unused=True, materialize_grads=True)
        gradients, losses = self._row_by_row(outputs)
        self._compare(losses)
        return gradients

    def _is_by_row(self) -> bool:
        """Return whether no more follows the model than a loss that is known to keep rows apart.

        Then its own graph has the gradients.
        """
        calls, batch = self.tape.calls, tensors(self.tape.batch)
        models = [place for place, call in enumerate(calls) if call.function is None]
        if self.reduction is not None or models != [len(calls) - 2]:
            return False
        function, call = calls[-1].function, calls[-1]
        if call.kwargs.get("reduction") != "none" or len(call.args) != 2:
            return False
        outputs, targets = call.args
        direct = any(outputs is each.given for each in self.tape.outputs) and any(
            targets is each for each in batch
        )
        if not direct or call.output is not self.tape.losses or outputs.shape[0] != self.tape.rows:
            return False
        if function is functional.cross_entropy:
            return bool(outputs.dim() == 2 and targets.shape[:1] == outputs.shape[:1])
        return function in _ENTRY_BY_ENTRY and outputs.shape == targets.shape

    def _row_by_row(self, outputs: Sequence[Output]) -> tuple[list[Tensor], Tensor]:
        """Return the gradients of every row's own loss, and the losses, by playing row by row."""
        others = [each for each in self.tape.outputs if not each.value.requires_grad]
        fixed = [*(each.given for each in others), *tensors(self.tape.batch)]
        given = [each.given for each in outputs]
        values = [each.as_subclass(Tensor).detach() for each in given]
        rest = [each.as_subclass(Tensor).detach() for each in fixed]

        def loss(play: _Play, moving: Sequence[Tensor], still: Sequence[Tensor]) -> Tensor:
            rows = [row[None] for row in (*moving, *still)]
            known = {id(old): new for old, new in zip((*given, *fixed), rows, strict=True)}
            return play(None, known, 1)[0].sum()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of single records
            try:
                by_rows = torch.func.grad_and_value(partial(loss, self._play))
                gradients, losses = vmapped(by_rows, randomness="different")(values, rest)
                return list(gradients), losses
            except _FAILURES:
                return _in_a_loop(partial(loss, self._played), values, rest)

    def _compare(self, alone: Tensor) -> None:
        """Raise if the rows' own losses are not those of the batch."""
        if self.tape.is_random or self.tape.losses is None:
            return
        whole = self.tape.losses.as_subclass(Tensor).detach()
        if self.reduction is not None:
            alone = alone.mean() if self.reduction == "mean" else alone.sum()
        if _is_close(whole, alone):
            return
        if self.reduction is not None:
            raise InvalidValueError(
                f"the loss of a batch must be the {self.reduction} of its records' own losses, but "
                "the records alone give another one (class weights and ignore_index under a mean "
                "do that, contrastive losses, and outputs and targets of different shapes); give "
                'one loss a record with reduction="none"'
            )
        raise InvalidValueError(
            "the loss of a record must come from that record alone, but by itself it is another "
            "one than in its batch: does it depend on other records, or on their number?"
        )

    def _refuse_shape(self) -> None:
        assert self.tape.losses is not None  # noqa: S101 (stopped tapes have losses)
        shape, rows = tuple(self.tape.losses.shape), self.tape.rows
        remedy = (
            'torch.nn.functional gives them with reduction="none"; in a loop of your own, '
            'make_private(..., reduction="mean") takes the mean over a batch'
        )
        if shape == () and any(each.value.dim() == 0 for each in self.tape.outputs):
            remedy = _OWN_LOSS
        elif len(shape) > 1 and shape[0] == rows:
            remedy = "add up the rest, as .flatten(1).sum(1) does"
        if self.reduction is None and shape != (rows,):
            raise InvalidValueError(
                f"losses must be one a record, a tensor of shape ({rows},), got {shape}; {remedy}"
            )
        if self.reduction is not None and shape != ():
            raise InvalidValueError(
                f"losses must be a single number with reduction={self.reduction!r}, got shape "
                f"{shape}; leave reduction out for one loss a record"
            )

    def _known(self, batch: Any) -> dict[int, Tensor]:
        pairs = zip(tensors(self.tape.batch), tensors(batch), strict=True)
        return {id(old): new for old, new in pairs}

    def _play(
        self, called: Callable[..., Any] | None, known: dict[int, Tensor], rows: int
    ) -> tuple[Tensor, Any]:
        return self.tape.play(called, known, rows, recount=self.sizes_vary)

    def _played(
        self, called: Callable[..., Any] | None, known: dict[int, Tensor], rows: int
    ) -> tuple[Tensor, Any]:
        """Play, or say why it cannot be done."""
        try:
            return self._play(called, known, rows)
        except _FAILURES as problem:
            if isinstance(problem, InvalidValueError):
                raise
            raise _unfit(problem, self.tape.rows, rows) from None


def _unfit(problem: Exception, whole: int, rows: int) -> InvalidValueError:
    if "vmap: It looks like" in str(problem):
        return InvalidValueError(
            "model and loop must not look at values of records, with .item() or in an if, got a "
            f"model or a loop that does; {PREPARE}"
        )
    return InvalidValueError(
        f"the loop must work for any number of records, but what it did for {whole} fails for "
        f"{rows}: {' '.join(str(problem).split())[:200]}"
    )


def _is_close(whole: Tensor, alone: Tensor) -> bool:
    """Return whether the rows' own values are those of the batch, as far as both are finite."""
    whole, alone = (
        each.detach() if each.is_floating_point() else each.double() for each in (whole, alone)
    )
    typical = alone.abs().nan_to_num(0.0, 0.0, 0.0).mean()
    slack = _CLOSE * (alone.abs() + whole.abs() + typical)
    return bool((((alone - whole).abs() <= slack) | ~torch.isfinite(whole)).all())


def _in_a_loop(
    loss: Callable[..., Tensor], values: Sequence[Tensor], rest: Sequence[Tensor]
) -> tuple[list[Tensor], Tensor]:
    """Return gradients and losses of one row after the other."""
    found, losses = [], []
    for row in range(len(values[0])):
        moving = [value[row].clone().requires_grad_() for value in values]
        with torch.enable_grad():
            own = loss(moving, [each[row] for each in rest])
        gradients = torch.autograd.grad(own, moving, allow_unused=True, materialize_grads=True)
        found.append(gradients)
        losses.append(own.detach())
    return [torch.stack(each) for each in zip(*found, strict=True)], torch.stack(losses)

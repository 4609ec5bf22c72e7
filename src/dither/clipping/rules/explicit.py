"""The slow way for one call alone: it is repeated for every record by itself."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import _VF, Tensor

from dither.clipping.batch import accumulation_dtype, tensors, vmapped
from dither.clipping.contributions import Contribution, PerRecord
from dither.clipping.recorder import Recorder, Use
from dither.clipping.registry import UnseenUseError

_CELLS = (_VF.lstm_cell, _VF.gru_cell, _VF.rnn_tanh_cell, _VF.rnn_relu_cell)
Pairs = Iterable[tuple[Tensor, Contribution]]


def one_by_one(use: Use, gradients: Sequence[Tensor | None], recorder: Recorder) -> Pairs:
    """Repeat a call that has no rule for every record: all at once by vmap, else in a loop."""
    if any(shape[:1] != (recorder.records,) for shape in use.shapes):
        raise UnseenUseError(f"{use.name} does not have the records along its first dimension")
    held = _distinct(
        t for t in tensors((use.args, use.kwargs)) if recorder.stands_for_parameters(t)
    )
    others = [t for t in tensors((use.args, use.kwargs)) if not recorder.stands_for_parameters(t)]
    states = use.function in _CELLS  # their first states are constants, one a record
    batch = _distinct(
        t for t in others if id(t) in use.from_batch or (states and len(t) == recorder.records)
    )
    if any(id(t) in use.from_batch and t.shape[:1] != (recorder.records,) for t in others):
        raise UnseenUseError(f"{use.name} has inputs without the records first")
    wanted = [k for k, gradient in enumerate(gradients) if gradient is not None]
    given = [gradient for gradient in gradients if gradient is not None]

    def pull(record: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
        def function(*parameters: Tensor) -> tuple[Tensor, ...]:
            values = {id(old): new for old, new in zip(held, parameters, strict=True)}
            values |= {id(old): new[None] for old, new in zip(batch, record, strict=True)}
            output = use.function(*replaced(use.args, values), **replaced(use.kwargs, values))
            made = tensors(output)
            return tuple(made[k][0] for k in wanted)

        back = torch.func.vjp(function, *(tensor.detach() for tensor in held))[1]
        found: tuple[Tensor, ...] = back(tuple(cotangents))
        return found

    inputs = [tensor.detach() for tensor in batch]
    try:
        rows = list(vmapped(pull)(inputs, given))
    except RuntimeError:
        rows = _in_a_loop(
            use, lambda i: pull([x[i] for x in inputs], [g[i] for g in given]), recorder
        )
    return pairs(held, rows)


def _in_a_loop(
    use: Use, pull: Callable[[int], Sequence[Tensor]], recorder: Recorder
) -> list[Tensor]:
    try:
        return stacked(pull, recorder.records)
    except (RuntimeError, ValueError, IndexError, TypeError) as reason:
        raise UnseenUseError(f"{use.name} cannot be repeated for a single record") from reason


def stacked(pull: Callable[[int], Sequence[Tensor]], records: int) -> list[Tensor]:
    """Return the gradients of every record, computed one record after the other."""
    found = [pull(record) for record in range(records)]
    return [torch.stack(each) for each in zip(*found, strict=True)]


def pairs(held: Sequence[Tensor], rows: Iterable[Tensor]) -> Pairs:
    """Return parameters with their gradients, one a record."""
    return [
        (tensor, PerRecord(gradients.to(accumulation_dtype(gradients.dtype))))
        for tensor, gradients in zip(held, rows, strict=True)
    ]


def replaced(arguments: Any, values: dict[int, Any]) -> Any:
    """Return the arguments with some tensors replaced, by their ids."""
    if isinstance(arguments, tuple | list):
        return type(arguments)(replaced(argument, values) for argument in arguments)
    if isinstance(arguments, dict):
        return {name: replaced(argument, values) for name, argument in arguments.items()}
    return values.get(id(arguments), arguments)


def _distinct(found: Iterable[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in found}.values())

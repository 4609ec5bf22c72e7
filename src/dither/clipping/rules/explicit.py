"""The slow way for one call alone: it is repeated for every record by itself."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from dither.clipping.batch import tensors, wide
from dither.clipping.contributions import KEPT, Contribution, PerRecord
from dither.clipping.recorder import Recorder, Use
from dither.clipping.registry import UnseenUseError

Pairs = Iterable[tuple[Tensor, Contribution]]


def one_by_one(use: Use, gradients: Sequence[Tensor | None], recorder: Recorder) -> Pairs:
    """Repeat a call that has no rule for every record: all at once by vmap, else in a loop."""
    if any(shape[:1] != (recorder.records,) for shape in use.shapes):
        raise UnseenUseError(f"{use.name} does not have the records along its first dimension")
    held = _distinct(
        t for t in tensors((use.args, use.kwargs)) if recorder.stands_for_parameters(t)
    )
    batch = _distinct(t for t in tensors((use.args, use.kwargs)) if id(t) in use.from_batch)
    if any(tensor.shape[:1] != (recorder.records,) for tensor in batch):
        raise UnseenUseError(f"{use.name} has inputs without the records first")
    refuse_large(held, use, recorder)
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
        rows = list(torch.func.vmap(pull, randomness="error")(inputs, given))
    except RuntimeError:
        rows = stacked(
            lambda i: pull([x[i] for x in inputs], [g[i] for g in given]),
            recorder.records,
        )
    return pairs(held, rows)


def stacked(pull: Callable[[int], Sequence[Tensor]], records: int) -> list[Tensor]:
    """Return the gradients of every record, computed one record after the other."""
    found = [pull(record) for record in range(records)]
    return [torch.stack(each) for each in zip(*found, strict=True)]


def pairs(held: Sequence[Tensor], rows: Iterable[Tensor]) -> Pairs:
    """Return parameters with their gradients, one a record."""
    return [
        (tensor, PerRecord(gradients.to(wide(gradients.dtype))))
        for tensor, gradients in zip(held, rows, strict=True)
    ]


def refuse_large(held: Sequence[Tensor], use: Use, recorder: Recorder) -> None:
    """Leave to the oracle, which works in pieces, what would not fit into memory."""
    if recorder.records * sum(tensor.numel() for tensor in held) > 4 * KEPT:
        raise UnseenUseError(f"{use.name} is too large to be computed record by record")


def replaced(arguments: Any, values: dict[int, Any]) -> Any:
    """Return the arguments with some tensors replaced, by their ids."""
    if isinstance(arguments, tuple | list):
        return type(arguments)(replaced(argument, values) for argument in arguments)
    if isinstance(arguments, dict):
        return {name: replaced(argument, values) for name, argument in arguments.items()}
    return values.get(id(arguments), arguments)


def _distinct(found: Iterable[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in found}.values())

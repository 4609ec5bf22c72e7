"""Calls of functions without a rule, repeated for every record."""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from dither.clipping.batch import accumulation_dtype, map_tensors, quiet_vmap, tensors
from dither.clipping.contributions import Contribution, PerRecord
from dither.clipping.recorder import Recorder, Use
from dither.clipping.rules.registry import UnsupportedCallError

Pairs = Iterable[tuple[Tensor, Contribution]]


def repeat_per_record(use: Use, gradients: Sequence[Tensor | None], recorder: Recorder) -> Pairs:
    """Repeat a call that has no rule for every record: all at once by vmap, else in a loop."""
    if any(shape[:1] != (recorder.records,) for shape in use.shapes):
        raise UnsupportedCallError(
            f"{use.name} does not have the records along its first dimension"
        )
    held = _distinct(
        t for t in tensors((use.args, use.kwargs)) if recorder.stands_for_parameters(t)
    )
    others = [t for t in tensors((use.args, use.kwargs)) if not recorder.stands_for_parameters(t)]
    batch = _distinct(t for t in others if id(t) in use.from_batch)
    if any(id(t) in use.from_batch and t.shape[:1] != (recorder.records,) for t in others):
        raise UnsupportedCallError(f"{use.name} has inputs without the records first")
    wanted = [k for k, gradient in enumerate(gradients) if gradient is not None]
    given = [gradient for gradient in gradients if gradient is not None]

    def pull(record: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
        def function(*parameters: Tensor) -> tuple[Tensor, ...]:
            values = {id(old): new for old, new in zip(held, parameters, strict=True)}
            values |= {id(old): new[None] for old, new in zip(batch, record, strict=True)}
            args, kwargs = map_tensors(
                (use.args, use.kwargs), lambda tensor: values.get(id(tensor), tensor)
            )
            output = use.function(*args, **kwargs)
            made = tensors(output)
            return tuple(made[k][0] for k in wanted)

        back = torch.func.vjp(function, *(tensor.detach() for tensor in held))[1]
        found: tuple[Tensor, ...] = back(tuple(cotangents))
        return found

    inputs = [tensor.detach() for tensor in batch]
    try:
        rows = list(quiet_vmap(pull)(inputs, given))
    except RuntimeError:
        rows = _loop_over_records(
            use, lambda i: pull([x[i] for x in inputs], [g[i] for g in given]), recorder
        )
    return pair_with_parameters(held, rows)


def _loop_over_records(
    use: Use, pull: Callable[[int], Sequence[Tensor]], recorder: Recorder
) -> list[Tensor]:
    try:
        return stack_gradients(pull, recorder.records)
    except (RuntimeError, ValueError, IndexError, TypeError) as reason:
        raise UnsupportedCallError(f"{use.name} cannot be repeated for a single record") from reason


def stack_gradients(pull: Callable[[int], Sequence[Tensor]], records: int) -> list[Tensor]:
    """Return the gradients of every record, computed one record after another."""
    found = [pull(record) for record in range(records)]
    return [torch.stack(each) for each in zip(*found, strict=True)]


def pair_with_parameters(held: Sequence[Tensor], rows: Iterable[Tensor]) -> Pairs:
    """Return parameters with their gradients, one per record."""
    return [
        (tensor, PerRecord(gradients.to(accumulation_dtype(gradients.dtype))))
        for tensor, gradients in zip(held, rows, strict=True)
    ]


def _distinct(found: Iterable[Tensor]) -> list[Tensor]:
    return list({id(tensor): tensor for tensor in found}.values())

"""Finds out whose rows are whose, where records were moved: sorted, packed, routed to experts.

The losses are multiplied by powers of two, which say the number of a record in digits, and
differentiated again. A row of a gradient that belongs to one record is multiplied by the same
power, without any rounding. So each row says whose it is; one that does not has several records.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dither.clipping.apply_rules import Gradients, gradients_at
from dither.clipping.gradient_checks import tolerance_of
from dither.clipping.layouts import Rows
from dither.clipping.recorder import Recorder
from dither.clipping.rules.registry import layout_by_rule, rule_of, takes_any_leading_dims

_DIGITS = 64


def locate_rows(recorder: Recorder, losses: Tensor, gradients: Mapping[int, Gradients]) -> bool:
    """Note in uses whose rows may have been moved where they are; return whether there are any.

    Args:
        recorder: what was recorded.
        losses: one per record.
        gradients: position of a use → the gradients of its outputs.
    """
    doubtful = {
        k: gradients[k][0]
        for k in gradients
        if recorder.uses[k].is_moved and _can_have_rows(recorder.uses[k].function)
    }
    plain = {k: each for k, each in doubtful.items() if each is not None and each.numel()}
    if not plain or recorder.records == 1:
        return False
    coded = _coded_gradients(recorder, losses, list(plain))
    found = False
    for k, gradient in plain.items():
        use = recorder.uses[k]
        leading = {1, gradient.dim() - 1} if takes_any_leading_dims(use.function) else {1}
        for dims in sorted(leading - {0}):
            owners = owners_of_rows(gradient, [each[k] for each in coded], dims, recorder.records)
            if owners is not None:
                rows = Rows(gradient.shape[:dims], owners, recorder.records)
                recorder.uses[k] = replace(use, layout=rows, is_moved=False)
                found = True
                break
    return found


def _can_have_rows(function: Callable[..., Any]) -> bool:
    return rule_of(function) is not None and layout_by_rule(function) is None


def _coded_gradients(
    recorder: Recorder, losses: Tensor, uses: Sequence[int]
) -> list[dict[int, Tensor | None]]:
    """Return the gradients at uses for losses that are multiplied by digits of their number."""
    edges = [edge for k in uses for edge in recorder.uses[k].edges[:1] if edge is not None]
    numbers = torch.arange(recorder.records, device=losses.device)
    found: list[dict[int, Tensor | None]] = []
    while not found or bool(numbers.any()):
        weights = torch.exp2((numbers % _DIGITS - _DIGITS // 2).to(losses))
        coded = gradients_at(losses, edges, weights=weights)
        found.append(dict(zip(uses, coded, strict=True)))
        numbers = numbers // _DIGITS
    return found


def owners_of_rows(
    gradient: Tensor, coded: Iterable[Tensor | None], dims: int, records: int
) -> Tensor | None:
    """Return the record of every row, −1 for rows without a gradient; None if any has several."""
    plain = gradient.flatten(0, dims - 1).flatten(1).double()
    squares = plain.square().sum(1)
    owners, value = torch.zeros_like(squares, dtype=torch.int64), 1
    for each in coded:
        if each is None:
            return None
        rows = each.flatten(0, dims - 1).flatten(1).double()
        powers = ((rows * plain).sum(1) / squares).log2().round()
        expected = torch.where(squares[:, None] > 0.0, plain * powers.exp2()[:, None], 0.0)
        off, size = (torch.linalg.vector_norm(x, dim=1) for x in (rows - expected, expected))
        if not bool((off <= tolerance_of(gradient) * size).all()):
            return None
        digits = powers.nan_to_num() + _DIGITS // 2
        if bool(((digits < 0) | (digits >= _DIGITS)).any()):
            return None
        owners, value = owners + value * digits.long(), value * _DIGITS
    owners = torch.where(squares > 0.0, owners, -1)
    return None if bool((owners >= records).any()) else owners

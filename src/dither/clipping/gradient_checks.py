"""Checks of losses and rules that differentiate the losses once more.

Shapes can mislead (a sequence as long as the batch), rules can be wrong, losses can mix records.
:func:`check_own_rows` checks that every loss depends on the model's outputs for its own record
alone. :func:`find_mismatches` checks for every kind of use that a weighted sum of the records'
gradients, with a different weight for every record, is the gradient that plain autograd gives.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from dither.clipping.apply_rules import gradients_at
from dither.clipping.batch import accumulation_dtype
from dither.clipping.contributions import Contribution
from dither.clipping.contributions.base import row_norms
from dither.clipping.layouts import Layout, Rows
from dither.clipping.recorder import Recorder, Use
from dither.clipping.recording import Output
from dither.clipping.rows import random_half, record_axes
from dither.validate import InvalidValueError

_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.float16: 0.004, torch.bfloat16: 0.03}


def gradients_of_half(losses: Tensor, outputs: Sequence[Output]) -> list[Tensor | None]:
    """Return the gradients of a half of the losses with respect to the model's outputs."""
    chosen = random_half(len(losses)).to(losses.device)
    return gradients_at(losses, [each.edge for each in outputs], weights=chosen)


def check_own_rows(
    losses: Tensor,
    outputs: Sequence[Output],
    of_half: Sequence[Tensor | None],
    gradients: Sequence[Tensor | None],
) -> None:
    """Raise if a loss depends on the model's outputs for another record.

    The losses of a half of the records were differentiated alone: the outputs of the others must
    get no gradient, and those of their own records the same as before.

    Args:
        losses: one per record.
        outputs: tensors that calls of the model have returned.
        of_half: from :func:`gradients_of_half`.
        gradients: of the sum of all losses with respect to them.
    """
    records = len(losses)
    chosen = random_half(records).to(losses.device)
    for output, full, half in zip(outputs, gradients, of_half, strict=True):
        if full is None or output.is_constant:
            continue
        half = torch.zeros_like(full) if half is None else half
        axes = record_axes(full, records)
        if not axes or (len(full) != records and not _shares_rows(full, half)):
            continue
        pairs = (_by_record(full, half, *each) for each in axes)
        if not any(_is_own(*pair, chosen.to(full.device)) for pair in pairs):
            raise InvalidValueError(
                "losses must be one per record, each from the model's outputs for its own record, "
                "got losses that depend on other records of the batch: leave out what compares or "
                "averages over records (contrastive terms, statistics of the batch), and keep the "
                "rows in one order between the model's calls and the losses"
            )


def _by_record(full: Tensor, half: Tensor, axis: int, owners: Tensor) -> tuple[Tensor, Tensor]:
    """Return both gradients as records × rest, for these owners of the indices along an axis."""
    pair = full, half
    if bool((owners.diff() < 0).any()):
        order = owners.argsort(stable=True).to(full.device)
        pair = full.index_select(axis, order), half.index_select(axis, order)
    records = int(owners.max()) + 1
    one, two = (each.movedim(axis, 0).reshape(records, -1) for each in pair)
    return one, two


def _is_own(full: Tensor, half: Tensor, chosen: Tensor) -> bool:
    """Return whether half of the losses give all of the gradient of their rows, and no other."""
    off = torch.where(chosen, row_norms(half - full), row_norms(half))
    return not bool(_differs(off, row_norms(full), tolerance_of(full)).any())


def _shares_rows(full: Tensor, half: Tensor) -> bool:
    """Return whether a row gets gradients from both halves of the losses.

    Records may have different numbers of rows, so that it is unknown whose they are.
    """
    full, half = full.flatten(1), half.flatten(1)
    size, tolerance = row_norms(full), tolerance_of(full)
    of_half = _differs(row_norms(half), size, tolerance)
    return bool((of_half & _differs(row_norms(full - half), size, tolerance)).any())


def tolerance_of(*gradients: Tensor | None) -> float:
    """Return what rounding may change in gradients that went through the types of all of these."""
    dtypes = {gradient.dtype for gradient in gradients if gradient is not None}
    return max((_TOLERANCE.get(dtype, 0.03) for dtype in dtypes), default=0.0)


def _differs(off: Tensor, size: Tensor, tolerance: float) -> Tensor:
    """Return which rows of this size are off by too much, as far as both are finite."""
    typical = size[torch.isfinite(size)].mean() if bool(torch.isfinite(size).any()) else 0.0
    far: Tensor = torch.isfinite(off) & (off > tolerance * (size + 0.01 * typical))
    return far


def record_weights(norms: Tensor) -> Tensor:
    """Return weights that give every record another norm near 1; zero for norms not finite."""
    generator = torch.Generator().manual_seed(0)
    shares = 0.5 + torch.rand(len(norms), generator=generator, dtype=torch.float64)
    finite = torch.isfinite(norms)
    typical = float(norms[finite].median()) if bool(finite.any()) else 1.0
    weights = shares.to(norms.device) / norms.clamp(min=typical * 1e-3 + 1e-30)
    return torch.where(finite, weights, 0.0)


def find_mismatches(
    recorder: Recorder,
    losses: Tensor,
    contributions: Mapping[str, Contribution],
    names: Sequence[str],
    gradients: Mapping[int, Sequence[Tensor | None]],
) -> tuple[set[str], bool]:
    """Return the parameters that are not computed as plain autograd does, record by record.

    Every record gets a different weight. The rows of the gradients at the outputs of the uses must
    be weighted by those of the records, and the weighted sum of the records' gradients must be the
    gradient of the weighted losses. A record whose gradient is not finite makes every sum of plain
    autograd useless: then only rows are compared, and the second value is False.

    Args:
        recorder: what was recorded.
        losses: one per record.
        contributions: of the parameters that are computed by rules.
        names: the parameters to compare.
        gradients: position of a use → the gradients of its outputs.
    """
    squared = {name: part.norms()[0] for name, part in contributions.items()}
    norms = sum(squared.values(), start=torch.zeros(())).sqrt().expand(len(losses))
    weights = record_weights(norms)
    leaves = [get_gradient_edge(recorder.parameters[name]) for name in names]
    tolerance = tolerance_of(*(g for each in gradients.values() for g in each))
    wrong: set[str] = set()

    def compare(use: Use, plain: Tensor, place: int, arriving: Sequence[Tensor | None]) -> None:
        compared = use.layout, plain, arriving[place], weights, torch.isfinite(norms)
        if _rows_differ(*compared, tolerance):
            wrong.update({*use.names} & {*names})

    with ExitStack() as hooks:  # which see gradients that are not kept
        for k, (plain, *_) in gradients.items():
            use, edge = recorder.uses[k], recorder.uses[k].edges[0]
            is_wanted = {*use.names} & {*names}
            if plain is not None and edge is not None and is_wanted:
                hook = partial(compare, use, plain, edge.output_nr)
                hooks.callback(edge.node.register_prehook(hook).remove)
        found = gradients_at(losses, leaves, weights=weights)
    if not bool(torch.isfinite(norms).all()):
        return wrong, False
    full = float((weights * norms).norm())
    for name, gradient in zip(names, found, strict=False):
        parameter, part = recorder.parameters[name], contributions.get(name)
        difference = torch.zeros_like(parameter, dtype=accumulation_dtype(parameter.dtype))
        if part is not None:
            difference += part.weighted_sum(weights.to(parameter.device, part.dtype))
        if gradient is not None:
            difference -= gradient.to_dense() if gradient.is_sparse else gradient
        scale = float((weights * squared[name].sqrt()).norm()) if part is not None else 0.0
        if not float(difference.norm()) <= tolerance * (scale + 0.01 * full):
            wrong.add(name)
    return wrong, True


def _rows_differ(
    layout: Layout | Rows | None,
    plain: Tensor | None,
    weighted: Tensor | None,
    weights: Tensor,
    finite: Tensor,
    tolerance: float,
) -> bool:
    """Return whether a use's rows are not weighted as the records are."""
    if layout is None or plain is None or weighted is None:
        return False
    records = len(weights)
    one, two = (layout.record_first(g, records).reshape(records, -1) for g in (plain, weighted))
    expected = weights.to(one)[:, None] * one
    size = row_norms(expected)
    far = _differs(row_norms(expected.sub_(two)), size, tolerance)
    return bool((far & finite.to(one.device)).any())

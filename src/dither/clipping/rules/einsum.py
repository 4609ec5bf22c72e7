"""Sums of products over named dimensions: einsum, and batches of matrix products.

The gradient of a parameter is a sum of products, too. Its dimensions are those that it shares with
the output (the height of outer products), with the other operands (their width), or with both
(groups); what is left of the dimensions of a record are its terms.
"""

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

import torch
from torch import Tensor

from dither.clipping.contributions import Contribution, Outer, PerRecord
from dither.clipping.layouts import Layout
from dither.clipping.rules.registry import Call, UnsupportedCallError, register

_RECORD = "record"
Labels = tuple[str, ...]
Named = tuple[Tensor, Labels]
"""A tensor with the names of its dimensions."""


def _locate(call: Call, shape: torch.Size) -> Layout | None:
    """The records are along a dimension of the output that no parameter has: an input's first."""
    try:
        operands, output = _named_operands(call)
    except UnsupportedCallError:
        return None
    taken = {label for tensor, labels in operands if call.is_parameter(tensor) for label in labels}
    first = {labels[0] for tensor, labels in operands if labels and not call.is_parameter(tensor)}
    free = [axis for axis, label in enumerate(output) if label not in taken]
    free.sort(key=lambda axis: output[axis] not in first)
    for joined in ("", "after"):
        for layout in (Layout(axis, joined) for axis in free):
            if layout.fits_shape(shape, call.records):
                return layout
    return None


@register(torch.einsum, torch.bmm, Tensor.bmm, torch.baddbmm, Tensor.baddbmm, locate=_locate)
def einsum(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """One contribution for every operand that is a parameter."""
    operands, output = _named_operands(call)
    assert isinstance(call.layout, Layout)  # noqa: S101 (from _locate)
    return products_with(call, operands, (gradient, output), output[call.layout.axis])


def products_with(
    call: Call, operands: Sequence[Named], output: Named, label: str
) -> list[tuple[Tensor, Contribution]]:
    """Return the contributions of the parameters among the operands of a sum of products.

    Args:
        call: the call.
        operands: with the names of their dimensions.
        output: the gradient at the output, likewise.
        label: the name of the records' dimension.
    """
    if any(len({*labels}) < len(labels) for _, labels in operands):
        raise UnsupportedCallError("einsum takes a diagonal")
    moved = [_record_first(named, label, call) for named in operands]
    found: list[tuple[Tensor, Contribution]] = []
    for place, (parameter, labels) in enumerate(moved):
        if call.is_parameter(parameter):
            others = [(t.detach().conj(), n) for k, (t, n) in enumerate(moved) if k != place]
            part = _outer(_record_first(output, label, call), others, parameter, labels)
            found.append((parameter, part))
    return found


def _outer(output: Named, others: Sequence[Named], parameter: Tensor, own: Labels) -> Contribution:
    of_records = [each for each in others if _RECORD in each[1]]
    gradient, names = output
    constants = [each for each in others if _RECORD not in each[1]]
    for place, (constant, labels) in enumerate(constants):
        ahead = [*of_records, *constants[place + 1 :]]
        wanted = {_RECORD, *own, *(name for _, each in ahead for name in each)}
        kept = tuple(name for name in dict.fromkeys(names + labels) if name in wanted)
        gradient, names = _product([(gradient, names), (constant, labels)], kept), kept
    needed = dict.fromkeys(name for _, each in of_records for name in each)
    shared = tuple(name for name in needed if name in {*names, *own})
    inputs = _product(of_records, shared) if of_records else None
    if inputs is None or any(name not in {*names, *shared} for name in own):
        raise UnsupportedCallError("a parameter has a dimension that no other operand has")
    groups = tuple(name for name in own if name in names and name in shared)
    height = tuple(name for name in own if name in names and name not in shared)
    width = tuple(name for name in own if name not in names)
    terms = tuple(name for name in names if name in shared and name not in {*own, _RECORD})
    left = _ordered((gradient, names), groups, terms, height)
    right = _ordered((inputs, shared), groups, terms, width)
    formed = groups + height + width
    sizes = [parameter.shape[own.index(name)] for name in formed]
    part = Outer(left, right, sizes, [formed.index(name) for name in own])
    return PerRecord(part.rows(0, part.records)) if left.is_complex() else part


def _ordered(named: Named, *parts: Labels) -> Tensor:
    """Return the records, then each part of the dimensions joined to one."""
    tensor, labels = named
    order = [labels.index(name) for name in (_RECORD, *(n for part in parts for n in part))]
    tensor = tensor.permute(order)
    sizes, start = [len(tensor)], 1
    for part in parts:
        sizes.append(tensor.shape[start : start + len(part)].numel())
        start += len(part)
    return tensor.reshape(sizes)


def _product(operands: Sequence[Named], output: Labels) -> Tensor:
    found = dict.fromkeys(name for _, labels in operands for name in labels)
    letters = dict(zip(found, ascii_letters, strict=False))
    inputs = ",".join("".join(letters[name] for name in labels) for _, labels in operands)
    into = "".join(letters[name] for name in output)
    result: Tensor = torch.einsum(f"{inputs}->{into}", *(tensor for tensor, _ in operands))
    return result


def _record_first(named: Named, label: str, call: Call) -> Named:
    """Return an operand with its records first, if it has any."""
    tensor, labels = named
    if label not in labels:
        return named
    layout = Layout(labels.index(label), call.layout.joined)
    if not layout.fits(tensor, call.records):
        raise UnsupportedCallError("an operand is broadcast over the records")
    rest = [name for name in labels if name != label]
    rest[layout.axis : layout.axis] = [label] if layout.joined else []
    return layout.record_first(tensor, call.records), (_RECORD, *rest)


def _named_operands(call: Call) -> tuple[list[Named], Labels]:
    """Return the operands of a call and its output with the names of their dimensions."""
    if call.function is torch.einsum:
        equation, *operands = call.args
        if len(operands) == 1 and isinstance(operands[0], list | tuple):
            operands = [*operands[0]]
        return _named_by(equation, operands)
    if call.kwargs:
        raise UnsupportedCallError("a matrix product has scales or named arguments")
    *added, one, other = call.args
    if any(call.is_parameter(each) for each in added):
        raise UnsupportedCallError("a parameter is added to a batch of matrix products")
    return [(one, ("b", "i", "j")), (other, ("b", "j", "k"))], ("b", "i", "k")


def _named_by(equation: Any, operands: Sequence[Tensor]) -> tuple[list[Named], Labels]:
    if not isinstance(equation, str):
        raise UnsupportedCallError("einsum is called without an equation")
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    given = inputs.split(",")
    if not arrow:
        single = sorted({x for x in inputs if x.isalpha() and inputs.count(x) == 1})
        output = "..." * ("..." in inputs) + "".join(single)
    pairs = zip(operands, given, strict=True)
    sizes = [tensor.dim() - len(names.replace("...", "")) for tensor, names in pairs]
    more = max(s if "..." in names else 0 for s, names in zip(sizes, given, strict=True))

    def named(names: str, own: int) -> Labels:
        before, dots, after = names.partition("...")
        between = [f".{more - own + k}" for k in range(own)] if dots else []
        return (*before, *between, *after)

    labelled = [named(names, own) for names, own in zip(given, sizes, strict=True)]
    return list(zip(operands, labelled, strict=True)), named(output, more)


def matrix_product(one: Tensor, other: Tensor) -> tuple[Labels, Labels, Labels]:
    """Return names for the dimensions of two matrices, or batches of them, and of their product."""
    leading = max(one.dim(), other.dim()) - 2
    names = [f".{k}" for k in range(leading)]
    of_one, of_other = (names[leading + 2 - x.dim() :] for x in (one, other))
    return (*of_one, "i", "j"), (*of_other, "j", "k"), (*names, "i", "k")

"""Rows of records in tensors: where they may be, how to overwrite and how to compare them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ENOUGH_RECORDS = 16
"""With fewer records, a pair that mixes may be in one half: another batch is checked, too."""

_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-4, torch.float16: 2e-3, torch.bfloat16: 0.01}


@dataclass(frozen=True)
class RowAssignment:
    """Which arguments have rows of records: position → (dimension, the record of every index).

    It is a guess where the records are not just along the first dimension: there may be more rows
    of one record than of another, and a size may be that of the batch by chance.
    """

    rows: dict[int, tuple[int, Tensor]]
    is_guess: bool = False


def row_assignments(given: Sequence[Tensor], records: int) -> list[RowAssignment]:
    """Return how arguments may have rows of records, the most likely way first.

    Records are along the first dimension; repeated along it, as neighbours or apart, if no argument
    has just as many; else along the second. A vector or a square matrix may also be a constant that
    has as many entries as there are records.
    """
    every = torch.arange(records)
    first = {
        place: (1 if _is_transposed(tensor, records) else 0, every)
        for place, tensor in enumerate(given)
        if tensor.shape[:1] == (records,)
    }
    if first:
        vectors = {place for place in first if given[place].dim() == 1}
        squares = {place for place in first if given[place].shape == (records, records)}
        constants = [vectors, squares, *({place} for place in vectors | squares), vectors | squares]
        rest = [{p: first[p] for p in first if p not in each} for each in constants]
        return [
            RowAssignment(first),
            *(RowAssignment(each) for each in rest if 0 < len(each) < len(first)),
        ]
    second = {
        place: (1, every) for place, tensor in enumerate(given) if tensor.shape[1:2] == (records,)
    }
    if second:
        return [RowAssignment(second, is_guess=True)]
    repeated = {
        place: len(tensor) // records
        for place, tensor in enumerate(given)
        if tensor.dim() and len(tensor) and len(tensor) % records == 0
    }
    as_neighbours = {p: (0, every.repeat_interleave(times)) for p, times in repeated.items()}
    apart = {place: (0, every.repeat(times)) for place, times in repeated.items()}
    return [RowAssignment(each, is_guess=True) for each in (as_neighbours, apart) if each]


def _is_transposed(tensor: Tensor, records: int) -> bool:
    """Return whether a square tensor has its records, which lie apart in memory, second."""
    return tensor.shape[1:2] == (records,) and tensor.stride(1) > tensor.stride(0)


def random_half(records: int, attempt: int = 0) -> Tensor:
    """Return a half of the records, in no particular order, the same one for every run.

    Some mirror images, neighbours and records at the distance of a half are not in the same half,
    so that models which exchange records are found. Of up to four, a half is a single one.
    """
    generator = torch.Generator().manual_seed(attempt)
    far = records // 2
    while True:
        half = torch.randperm(records, generator=generator) < (far if records > 4 else 1)
        even, low, high = half[: 2 * far], half[:far], half[far : 2 * far]
        pairs = (half, half.flip(0)), (even[::2], even[1::2]), (low, high)
        if records < 4 or all(bool((one != two).any()) for one, two in pairs):
            return half


def overwrite_half(tensor: Tensor, axis: int, owners: Tensor, half: Tensor, out: Tensor) -> Tensor:
    """Return a tensor in which the rows of a half of the records are copies of others' rows.

    It is in the memory of ``out``, a copy of the tensor: new memory would take more time than this.
    """
    replaced = half[owners].nonzero().squeeze(1)
    kept = (~half[owners]).nonzero().squeeze(1)
    index = torch.arange(len(owners))
    index[replaced] = kept[torch.arange(len(replaced)) % len(kept)]
    torch.index_select(tensor.detach(), axis, index.to(tensor.device), out=out.detach())
    return out


def record_axes(tensor: Tensor, records: int) -> list[tuple[int, Tensor]]:
    """Return the dimensions that may be the records', with the record of every index."""
    every = torch.arange(records)
    found = [(axis, every) for axis, size in enumerate(tensor.shape) if size == records]
    if tensor.dim() and len(tensor) > records and len(tensor) % records == 0:
        times = len(tensor) // records
        found += [(0, every.repeat_interleave(times)), (0, every.repeat(times))]
    return found


def rows_agree(one: Tensor, two: Tensor, kept: Tensor, records: int) -> bool:
    """Return whether the rows of the records that were kept agree, along any dimension of theirs.

    A tensor without such a dimension does not agree.
    """
    for axis, owners in record_axes(one, records):
        rows = kept[owners].nonzero().squeeze(1).to(one.device)
        if almost_equal(one.index_select(axis, rows), two.index_select(axis, rows)):
            return True
    return False


def almost_equal(one: Tensor, two: Tensor) -> bool:
    """Return whether two tensors are equal but for rounding."""
    if one is two or one.shape != two.shape:
        return one is two
    if one.layout != torch.strided or not (one.is_floating_point() or one.is_complex()):
        return one.layout != torch.strided or torch.equal(one, two)
    one, two = one.detach(), two.detach()
    if torch.equal(one, two):
        return True
    tolerance = _TOLERANCE.get(one.dtype, 1e-4)
    size = one.abs()
    if not math.isfinite(mean := float(size.mean(dtype=torch.float64))):
        finite = torch.isfinite(one)
        if not torch.equal(finite, torch.isfinite(two)):
            return False
        one, two = torch.where(finite, one, 0.0), torch.where(finite, two, 0.0)
        size = one.abs()
        mean = float(size.mean(dtype=torch.float64))
    return bool(((one - two).abs() <= size.mul_(tolerance).add_(tolerance * mean)).all())


def all_almost_equal(ones: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return whether two lists of tensors are equal but for rounding."""
    return len(ones) == len(others) and all(map(almost_equal, ones, others))


def shares_rows(output: Tensor, half: Tensor, leaves: Sequence[Tensor]) -> bool:
    """Return whether a row of any leaf has an effect on both halves of the rows of an output.

    This decides where it is unknown which rows belong to which record.
    """
    if not output.requires_grad or not leaves:
        return False
    with torch.enable_grad():
        totals = [output[which].sum() for which in (half, ~half)]
    one, two = (
        torch.autograd.grad(
            total, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
        )
        for total in totals
    )
    both = zip(one, two, strict=True)
    return any(bool((_are_reached(a) & _are_reached(b)).any()) for a, b in both)


def _are_reached(gradient: Tensor) -> Tensor:
    return gradient.flatten(1).abs().sum(1) > 0

"""Gradients of parts of a parameter: views of it, such as its transpose or one expert's matrix."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Self

import torch
from torch import Tensor

from dither.clipping.contributions.base import Contribution, Records
from dither.clipping.contributions.grouped import Grouped


class Place(NamedTuple):
    """Where a view's entries are among those of a contiguous parameter; each is there once."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def of(self, parameter: Tensor) -> Tensor:
        """Return the view of a tensor like the parameter."""
        start = int(parameter.storage_offset())
        return parameter.as_strided(self.size, self.stride, start + self.offset)

    def end(self) -> int:
        """Return the number of the entry after the last one."""
        steps = ((n - 1) * step for n, step in zip(self.size, self.stride, strict=True))
        return self.offset + sum(steps) + 1


def place_of(view: Tensor, parameter: Tensor) -> Place | None:
    """Return where a view of a parameter is in it; None if it is none, or repeats entries.

    >>> table = torch.nn.Parameter(torch.ones(2, 3))
    >>> place_of(table.t(), table)
    Place(size=(3, 2), stride=(1, 3), offset=0)
    """
    if view._base is not parameter or view.dtype != parameter.dtype or view.numel() == 0:
        return None
    if not parameter.is_contiguous() or view.is_conj() or view.is_neg():
        return None
    reach = 1
    for stride, size in sorted(zip(view.stride(), view.size(), strict=True)):
        if size > 1:
            if stride < reach:
                return None
            reach = stride * size
    offset = view.storage_offset() - parameter.storage_offset()
    return Place(tuple(view.size()), tuple(view.stride()), int(offset))


def are_apart(places: Sequence[Place]) -> bool:
    """Return whether no two places are known to have entries between the ends of each other."""
    ordered = sorted(places, key=lambda place: place.offset)
    return all(one.end() <= other.offset for one, other in pairwise(ordered))


class Placed(Contribution):
    """Gradients of views of a parameter that have no entry in common; zero elsewhere.

    Args:
        parts: the gradients of the views.
        places: where these are.
        shape: of the parameter.

    Example:
        >>> from dither.clipping import PerRecord
        >>> part = Placed([PerRecord(torch.ones(5, 3))], [Place((3,), (1,), 3)], (2, 3))
        >>> part.weighted_sum(torch.ones(5))
        tensor([[0., 0., 0.],
                [5., 5., 5.]])
    """

    def __init__(
        self, parts: Sequence[Contribution], places: Sequence[Place], shape: Sequence[int]
    ) -> None:
        self.parts, self.places, self.shape = list(parts), list(places), tuple(shape)
        self.records, self.dtype = parts[0].records, parts[0].dtype
        self.size = torch.Size(shape).numel()

    @property
    def is_kept(self) -> bool:
        return all(part.is_kept for part in self.parts)

    def rows(self, start: int, stop: int) -> Tensor:
        found = [part.rows(start, stop) for part in self.parts]
        made = found[0].new_zeros(stop - start, *self.shape)
        for row, *views in zip(made, *found, strict=True):
            for place, view in zip(self.places, views, strict=True):
                place.of(row).copy_(view.reshape(place.size))
        return made

    def norms(self) -> tuple[Tensor, Tensor | None]:
        found = [part.norms() for part in self.parts]
        hidden = [each for _, each in found if each is not None]
        squared = torch.stack([norms for norms, _ in found]).sum(0)
        return squared, torch.stack(hidden).sum(0) if hidden else None

    def magnitudes(self) -> Tensor:
        found = torch.stack([part.magnitudes() for part in self.parts])
        return found.square().sum(0).sqrt()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total = weights.new_zeros(self.shape, dtype=self.dtype)
        for part, place in zip(self.parts, self.places, strict=True):
            place.of(total).copy_(part.weighted_sum(weights).reshape(place.size))
        return total

    def select(self, records: Records) -> Self:
        return self._with([part.select(records) for part in self.parts])

    def double(self) -> Self:
        return self._with([part.double() for part in self.parts])

    def join(self, count: int) -> Self:
        return self._with([part.join(count) for part in self.parts])

    def merge(self, counts: Tensor) -> Grouped:
        return Grouped(self, counts)

    def _with(self, parts: Sequence[Contribution]) -> Self:
        return type(self)(parts, self.places, self.shape)

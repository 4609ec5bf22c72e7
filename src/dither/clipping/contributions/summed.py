"""The sum of several contributions to one parameter, cross terms included."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Self

import torch
from torch import Tensor

from dither.clipping.contributions.base import (
    Contribution,
    Lookup,
    PerRecord,
    Records,
    cancellation_bound,
    chunks,
    row_norms,
    unit_roundoff,
)
from dither.clipping.contributions.convolved import Convolved
from dither.clipping.contributions.grouped import Grouped
from dither.clipping.contributions.outer import Outer
from dither.clipping.contributions.placed import Placed, are_apart


def add_up(parts: Sequence[Contribution]) -> Contribution:
    """Return the sum of contributions to one parameter.

    Those of one kind become one, so that a parameter that is used at every step of a loop costs as
    much as one that is used for all steps at once. Views that have no entry in common become one.

    >>> part = Outer(torch.ones(2, 1, 3), torch.ones(2, 1, 4))
    >>> add_up([part, part]).terms
    2
    """
    by_kind: defaultdict[Hashable, list[Contribution]] = defaultdict(list)
    for part in parts:
        by_kind[_kind(part)].append(part)
    joined = [found[0] if len(found) == 1 else _joined(found) for found in by_kind.values()]
    views = [part for part in joined if isinstance(part, Placed)]
    places = [place for part in views for place in part.places]
    if len(views) > 1 and are_apart(places):
        together = Placed([part for view in views for part in view.parts], places, views[0].shape)
        joined = [together, *(part for part in joined if not isinstance(part, Placed))]
    return joined[0] if len(joined) == 1 else Summed(joined)


def _kind(part: Contribution) -> Hashable:
    """Return a key that is the same for contributions that can become one."""
    if isinstance(part, Outer) and not part.right.is_copied and part.groups == 1:
        return Outer, part.dtype, part.shape, part.axes, part.height
    if isinstance(part, PerRecord | Lookup):
        return type(part), part.dtype
    return (Placed, *part.places) if isinstance(part, Placed) else id(part)


def _joined(parts: Sequence[Contribution]) -> Contribution:
    first = parts[0]
    if isinstance(first, PerRecord):
        return PerRecord(torch.stack([part.rows(0, part.records) for part in parts]).sum(0))
    if isinstance(first, Placed):
        of_places = zip(*(part.parts for part in parts if isinstance(part, Placed)), strict=True)
        return Placed([add_up(found) for found in of_places], first.places, first.shape)
    heights, widths = (torch.cat(each, 1) for each in zip(*map(_factors, parts), strict=True))
    if isinstance(first, Lookup):
        return Lookup(heights, widths, first.height)
    assert isinstance(first, Outer)  # noqa: S101 (for the type checker: no other kind gets here)
    return Outer(heights, widths, first.shape, first.axes)


class Summed(Contribution):
    """The gradients of a parameter that is used more than once, in different ways."""

    def __init__(self, parts: Sequence[Contribution]) -> None:
        self.parts = list(parts)
        self.records, self.dtype, self.size = parts[0].records, parts[0].dtype, parts[0].size

    def rows(self, start: int, stop: int) -> Tensor:
        first, *others = (part.rows(start, stop) for part in self.parts)
        return sum(others, start=first)

    def norms(self) -> tuple[Tensor, Tensor | None]:
        inner = self._inner_products_are_cheaper()
        formed, converted = self._terms() ** 2 if inner else self.size, 0
        if inner:
            converted = sum(each[0].numel() for part in self.parts for each in _factors(part))
        squared, hidden = [], []
        for i, j in chunks(self.records, formed=formed, converted=converted):
            exact = self.select(slice(i, j)).double()
            if inner:
                norms, error = exact._norms_by_inner_products()
                hidden.append(error)
            else:
                norms = row_norms(exact.rows(0, j - i).reshape(j - i, -1)).square_()
            squared.append(norms)
        total = torch.cat(squared)
        bound = cancellation_bound(total, self.magnitudes(), self._terms(), self.dtype)
        return total, bound + torch.cat(hidden) if inner else bound

    def magnitudes(self) -> Tensor:
        return torch.stack([part.magnitudes() for part in self.parts]).sum(0)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        total = self.parts[0].weighted_sum(weights)
        for part in self.parts[1:]:
            total += part.weighted_sum(weights)
        return total

    def select(self, records: Records) -> Self:
        return type(self)([part.select(records) for part in self.parts])

    def double(self) -> Self:
        return type(self)([part.double() for part in self.parts])

    def join(self, count: int) -> Self:
        return type(self)([part.join(count) for part in self.parts])

    def merge(self, counts: Tensor) -> Grouped:
        return Grouped(self, counts)

    def _terms(self) -> int:
        return sum(map(_terms_of, self.parts))

    def _inner_products_are_cheaper(self) -> bool:
        terms = self._terms()
        return all(_has_inner_products(part) for part in self.parts) and 2 * terms**2 < self.size

    def _norms_by_inner_products(self) -> tuple[Tensor, Tensor]:
        squared = torch.zeros(())
        for position, part in enumerate(self.parts):
            squared = squared + _inner_products(part, part)
            for other in self.parts[:position]:
                squared = squared + 2.0 * _inner_products(part, other)
        terms = sum(sum(each.shape[1:]) for part in self.parts for each in _factors(part))
        return squared, terms * unit_roundoff(self.dtype) * self.magnitudes().square_()


def _terms_of(part: Contribution) -> int:
    """Return how many terms a record's gradient is the sum of."""
    if isinstance(part, Summed | Placed):
        return sum(map(_terms_of, part.parts))
    if isinstance(part, Convolved):
        return part.products.terms
    return part.terms if isinstance(part, Outer | Lookup) else 1


def _has_inner_products(part: Contribution) -> bool:
    plain = isinstance(part, Outer) and part.groups == 1 and not part.right.is_copied
    return plain or isinstance(part, Lookup)


def _inner_products(one: Contribution, other: Contribution) -> Tensor:
    """Return the inner product of each record's two gradients, from their factors."""
    (heights, widths), (other_heights, other_widths) = _factors(one), _factors(other)
    if not heights.is_floating_point():
        heights, other_heights = other_heights, heights
        widths, other_widths = other_widths, widths
    common = widths @ other_widths.transpose(1, 2)
    if not heights.is_floating_point():
        alike = heights[:, :, None] == other_heights[:, None, :]
        return (common * alike).sum((1, 2))
    if not other_heights.is_floating_point():
        picked = other_heights[:, None, :].expand(-1, heights.shape[1], -1)
        return (common * heights.gather(2, picked)).sum((1, 2))
    return (common * (heights @ other_heights.transpose(1, 2))).sum((1, 2))


def _factors(part: Contribution) -> tuple[Tensor, Tensor]:
    if isinstance(part, Lookup):
        return part.indices, part.values
    assert isinstance(part, Outer)  # noqa: S101 (for the type checker: no other kind gets here)
    return part.left.squeeze(1), part.right.rows(0, part.records).squeeze(1)

"""Sums of outer products, as linear layers and convolutions have them."""

from collections.abc import Iterator, Sequence
from math import prod, sqrt
from typing import Self

import torch
from torch import Tensor

from dither.clipping.contributions.base import (
    Contribution,
    Records,
    block_norms,
    cancellation_bound,
    chunks,
    row_norms,
    unit_roundoff,
)
from dither.clipping.contributions.grouped import Grouped

TERMS = 64
"""Terms that are added up at a time where the rounding of their sum matters."""

NARROW = 16
"""Products with fewer rows or columns than this add up all of their terms in a single run."""

INNER_COST = 2.25
"""What an operation of inner products costs, in float64, relative to one of a formed gradient."""


class Factor:
    """One factor of outer products, records × groups × terms × width: here a plain tensor."""

    is_copied = False

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.records, self.groups, self.terms, self.width = values.shape

    @property
    def stored(self) -> int:
        """How many numbers per record are in memory for this factor."""
        return self.groups * self.terms * self.width

    def rows(self, start: int, stop: int, space: Tensor | None = None) -> Tensor:
        """Return the factors of these records, perhaps in ``space`` made for them."""
        return self.values[start:stop]

    @property
    def gram_work(self) -> int:
        """The products that the inner products of a record's factors take, in a group."""
        return self.terms**2 * self.width

    def gram(self, start: int, stop: int) -> Tensor:
        """Return the inner products of all pairs of terms, in float64."""
        values = self.rows(start, stop).double()
        return values @ values.transpose(2, 3)

    def space(self, records: int) -> Tensor | None:
        """Return memory for the factors of that many records, if they are to be copied."""
        return None

    def select(self, records: Records) -> "Factor":
        """Return the factors of these records alone."""
        return Factor(self.values[records])

    def double(self) -> "Factor":
        """Return the same in float64."""
        return Factor(self.values.double())

    def join(self, count: int) -> "Factor":
        """Return the factors with the terms of every ``count`` neighbouring rows joined."""
        return Factor(_join_terms(self.values, count))


class Outer(Contribution):
    """Gradients Σ_t left[i, t] ⊗ right[i, t], as every matrix product has them.

    The norms come from whichever is cheaper: the T × T inner products of both factors, or the
    gradients themselves, formed a few records at a time.

    Args:
        left: records × terms × height, or records × groups × terms × height.
        right: records × terms × width, or a :class:`Factor` that computes them when needed.
        shape: of the gradient as it is formed; height × width by default.
        axes: the order of that shape's axes in the parameter, if it is another.

    Example:
        >>> part = Outer(torch.ones(2, 1, 3), torch.ones(2, 1, 4))
        >>> part.weighted_sum(torch.ones(2)).shape
        torch.Size([3, 4])
    """

    def __init__(
        self,
        left: Tensor,
        right: Tensor | Factor,
        shape: Sequence[int] | None = None,
        axes: Sequence[int] | None = None,
    ) -> None:
        self.left = left if left.dim() == 4 else left.unsqueeze(1)
        if isinstance(right, Tensor):
            right = Factor(right if right.dim() == 4 else right.unsqueeze(1))
        self.right = right
        self.records, self.groups, self.terms, self.height = self.left.shape
        self.dtype = left.dtype
        self.shape = tuple(shape or (self.groups * self.height, right.width))
        self.axes, self.size = tuple(axes or range(len(self.shape))), prod(self.shape)
        self._always_form = False
        self._norms: tuple[Tensor, Tensor | None] | None = None
        # What is smaller vanishes when it is squared, or loses digits when it is scaled down.
        self._lost = torch.finfo(self.dtype).tiny ** 0.5

    def rows(self, start: int, stop: int) -> Tensor:
        formed = self.form(start, stop, self.right.rows(start, stop))
        order = (0, *(axis + 1 for axis in self.axes))
        return formed.view(stop - start, *self.shape).permute(order)

    def norms(self) -> tuple[Tensor, Tensor | None]:
        if self._norms is None:
            self._norms = self._compute_norms()
        return self._norms

    def _compute_norms(self) -> tuple[Tensor, Tensor | None]:
        if self.terms == 1 and self.groups == 1:
            return self.magnitudes().double().square_(), None
        if self.inner_products_are_cheaper() and not self._always_form:
            return self._norms_by_inner_products()
        return self._norms_by_forming()

    def magnitudes(self) -> Tensor:
        rights = [row_norms(right.flatten(1)) for _, _, right in self.rights()]
        right = rights[0] if len(rights) == 1 else torch.cat(rights)
        right = right.add_(sqrt(self.right.terms * self.right.width) * self._lost)
        left = row_norms(self.left.flatten(1)).add_(sqrt(self.terms * self.height) * self._lost)
        return left.mul_(right)

    def inner_products_are_cheaper(self) -> bool:
        """Return whether T²·(p + D) operations in float64 are cheaper than T·p·D in float32."""
        inner = self.terms**2 * self.height + self.right.gram_work
        return INNER_COST * inner < self.terms * self.height * self.right.width

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self.groups == 1 and not self.right.is_copied:
            right = self.right.rows(0, self.records)
            total = _weighted_product(self.left.flatten(0, 2), right.flatten(0, 2), weights)
        else:
            total = self.left.new_empty(self.groups, self.height, self.right.width)
            for i, j, right in self.rights():
                left = _by_group(self.left[i:j] * weights[i:j, None, None, None])
                beta = 1.0 if i else 0.0
                total.baddbmm_(left.transpose(1, 2), _by_group(right), beta=beta)
        return reordered(total.view(self.shape), self.axes)

    def select(self, records: Records) -> Self:
        return type(self)(self.left[records], self.right.select(records), self.shape, self.axes)

    def double(self) -> Self:
        made = type(self)(self.left.double(), self.right.double(), self.shape, self.axes)
        made._always_form = True
        return made

    def join(self, count: int) -> Self:
        left = _join_terms(self.left, count)
        return type(self)(left, self.right.join(count), self.shape, self.axes)

    def merge(self, counts: Tensor) -> Grouped:
        return Grouped(self, counts)

    def _norms_by_inner_products(self) -> tuple[Tensor, Tensor]:
        squared, magnitudes = [], []
        converted = self.groups * self.terms * (self.height + self.right.width)
        for i, j in chunks(self.records, formed=self.terms**2, converted=converted):
            left = self.left[i:j].double()
            lefts, rights = left @ left.transpose(2, 3), self.right.gram(i, j)
            of_left = lefts.diagonal(dim1=2, dim2=3).sqrt() + sqrt(self.height) * self._lost
            of_right = rights.diagonal(dim1=2, dim2=3).sqrt() + sqrt(self.right.width) * self._lost
            magnitudes.append((of_left * of_right).sum((1, 2)))
            squared.append(lefts.mul_(rights).sum((1, 2, 3)))
        total, most = torch.cat(squared), torch.cat(magnitudes)
        terms = self.height + self.right.width + self.terms**2
        hidden = cancellation_bound(total, most, self.terms, self.dtype)
        return total, hidden + terms * unit_roundoff(torch.float64) * most.square()

    def _norms_by_forming(self) -> tuple[Tensor, Tensor]:
        space, norms = None, []
        for i, j, right in self.rights(self.size):
            if space is None:
                space = self.left.new_empty(j * self.groups, self.height, self.right.width)
            into = space[: (j - i) * self.groups]
            self._form_in_blocks(i, j, right, into)
            norms.append(block_norms(into.view(j - i, -1)))
        squared = row_norms(torch.cat(norms)).double().square_()
        return squared, cancellation_bound(squared, self.magnitudes(), self.terms, self.dtype)

    def form(self, start: int, stop: int, right: Tensor, into: Tensor | None = None) -> Tensor:
        """Return the gradients of these records, from their right factor, in their own shape."""
        left = self.left[start:stop].flatten(0, 1).transpose(1, 2)
        return torch.bmm(left, right.flatten(0, 1), out=into)

    def _form_in_blocks(self, start: int, stop: int, right: Tensor, into: Tensor) -> None:
        left, right = self.left[start:stop].flatten(0, 1), right.flatten(0, 1)
        for block in range(0, self.terms, TERMS):
            lefts = left[:, block : block + TERMS].transpose(1, 2)
            rights = right[:, block : block + TERMS]
            if block == 0:
                torch.bmm(lefts, rights, out=into)
            elif min(self.height, self.right.width) < NARROW:
                into.add_(torch.bmm(lefts, rights))
            else:
                into.baddbmm_(lefts, rights)

    def rights(self, formed: int = 0) -> Iterator[tuple[int, int, Tensor]]:
        """Yield records and right factors in chunks, for so many numbers formed for each of them.

        What is yielded may be overwritten by what follows.
        """
        copied = self.groups * self.terms * self.right.width if self.right.is_copied else 0
        space = None
        for start, stop in chunks(self.records, copied, formed):
            space = self.right.space(stop) if start == 0 else space
            yield start, stop, self.right.rows(start, stop, space)


def _weighted_product(left: Tensor, right: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_t w_t·left[t] ⊗ right[t], the weights scaling the smaller factor."""
    terms = left.shape[0] // weights.shape[0]
    scale = (weights if terms == 1 else weights.repeat_interleave(terms)).unsqueeze(1)
    if left.shape[1] < right.shape[1]:
        left = left * scale
    else:
        right = right * scale
    if terms <= TERMS or min(left.shape[1], right.shape[1]) >= NARROW:
        return left.t() @ right
    blocks = len(left) // TERMS * TERMS
    lefts, rights = (each[:blocks].unflatten(0, (-1, TERMS)) for each in (left, right))
    total: Tensor = (lefts.transpose(1, 2) @ rights).sum(0)
    return total.add_(left[blocks:].t() @ right[blocks:])


def reordered(total: Tensor, axes: Sequence[int]) -> Tensor:
    """Return a copy with its axes in another order, made in runs along what is now the last."""
    if list(axes) == sorted(axes):
        return total
    if not 1 < total.shape[1:-1].numel() <= 128:  # as many runs as a kernel has entries
        return total.permute(*axes).contiguous()
    made = total.new_empty([total.shape[axis] for axis in axes])
    places = made.permute([axes.index(axis) for axis in range(len(axes))])
    for into, values in zip(
        places.flatten(1, -2).unbind(1), total.flatten(1, -2).unbind(1), strict=True
    ):
        into.copy_(values)
    return made


def _join_terms(factor: Tensor, count: int) -> Tensor:
    """Make the terms of neighbouring rows one record's: records × groups × terms × width."""
    by_record: Tensor = factor.unflatten(0, (-1, count))
    return by_record.transpose(1, 2).flatten(2, 3)


def _by_group(factor: Tensor) -> Tensor:
    """Join records and terms: groups × (records · terms) × width."""
    return factor.transpose(0, 1).flatten(1, 2)

"""What one use of a parameter adds to each record's gradient, without forming it if possible.

A contribution stands for one gradient a record. It knows its squared norms with a bound on their
rounding errors, the weighted sum over records, and, a few records at a time, the gradients
themselves. Three kinds are enough: gradients that are small anyway (:class:`PerRecord`), sums of
outer products as matrix products have them (:class:`Outer`), and rows of a table
(:class:`Lookup`). A parameter that is used twice has a :class:`Summed` one.

**Rounding.** The bound beside a squared norm covers what rounding can hide of it, in the norm or in
the sum: a record must not count for more than its norm says. Gradients that are kept are summed as
they are, and only the rounding of their norm counts. Otherwise norm and sum are two computations
on the same factors, and large terms that cancel leave errors in proportion to S = Σ_t ‖l_t‖·‖r_t‖,
what the norm would be if nothing cancelled. Inner products, in which cancellation is worst, are
taken in float64; gradients that are formed for their norms alone are added up in blocks of 64
terms: with u the unit roundoff, sums of 64 equal terms are off by up to 14u, and T/64 such sums by
T/320·u more.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import prod, sqrt
from typing import Self

import torch
from torch import Tensor

BLOCK = 256
"""Squares are added up in blocks of this length, so that rounding errors do not pile up."""

CHUNK = 2**21
"""Numbers that a chunk of copied inputs may occupy: a few MiB, which stay in the cache."""

FORMED = 2**19
"""Numbers of per-record gradients that are formed at a time."""

TERMS = 64
"""Terms that are added up at a time where the rounding of their sum matters."""

KEPT = 2**25
"""Per-record gradients of a convolution are kept if they are no more numbers than this, …"""

KEPT_SHARE = 4
"""… and no more than this multiple of what the forward pass holds for the layer anyway."""


class Contribution(ABC):
    """One gradient a record, of the shape of a parameter."""

    records: int
    dtype: torch.dtype

    @abstractmethod
    def rows(self, start: int, stop: int) -> Tensor:
        """Return the gradients of these records, one after the other."""

    @abstractmethod
    def norms(self) -> tuple[Tensor, Tensor | None]:
        """Return squared norms, one a record, and what cancellation may hide of them.

        Rounding by 64 unit roundoffs of the squared norm itself is allowed for elsewhere.
        """

    @abstractmethod
    def magnitudes(self) -> Tensor:
        """Return what the norms would be if no terms cancelled, one a record."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return Σ_i weights[i]·gradient[i]."""

    @abstractmethod
    def select(self, records: Tensor) -> Self:
        """Return the contribution of these records alone."""

    @abstractmethod
    def double(self) -> Self:
        """Return the same in float64."""


class PerRecord(Contribution):
    """Gradients that were formed one a record: ``gradients[i]`` has the parameter's shape."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients
        self.records, self.dtype = len(gradients), gradients.dtype

    def rows(self, start: int, stop: int) -> Tensor:  # noqa: D102
        return self.gradients[start:stop]

    def norms(self) -> tuple[Tensor, Tensor | None]:  # noqa: D102
        return row_norms(self.gradients.reshape(self.records, -1)).double().square_(), None

    def magnitudes(self) -> Tensor:  # noqa: D102
        return row_norms(self.gradients.reshape(self.records, -1))

    def weighted_sum(self, weights: Tensor) -> Tensor:  # noqa: D102
        flat = self.gradients.reshape(self.records, -1)
        return (weights @ flat).view(self.gradients.shape[1:])

    def select(self, records: Tensor) -> Self:  # noqa: D102
        return type(self)(self.gradients[records])

    def double(self) -> Self:  # noqa: D102
        return type(self)(self.gradients.double())


class Factor:
    """One factor of outer products, records × groups × terms × width: here a plain tensor."""

    is_copied = False

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.records, self.groups, self.terms, self.width = values.shape

    @property
    def held(self) -> int:
        """The numbers a record that are in memory for this factor."""
        return self.groups * self.terms * self.width

    def rows(self, start: int, stop: int, space: Tensor | None = None) -> Tensor:
        """Return the factors of these records, perhaps in ``space`` made for them."""
        return self.values[start:stop]

    def space(self, records: int) -> Tensor | None:
        """Return memory for the factors of that many records, if they are to be copied."""
        return None

    def select(self, records: Tensor) -> "Factor":
        """Return the factors of these records alone."""
        return Factor(self.values[records])

    def double(self) -> "Factor":
        """Return the same in float64."""
        return Factor(self.values.double())


class Outer(Contribution):
    """Gradients Σ_t left[i, t] ⊗ right[i, t], as every matrix product has them.

    The norms come from whichever is cheaper: the T × T inner products of both factors, or the
    gradients themselves, formed a few records at a time and kept only if they are small.

    Args:
        left: records × terms × height, or records × groups × terms × height.
        right: records × terms × width, or a :class:`Factor` that makes them when they are asked
            for.
        shape: of the gradient as it is formed; height × width by default.
        axes: the order of that shape's axes in the parameter, if it is another.
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
        self.axes = tuple(axes or range(len(self.shape)))
        self._always_form = False
        self._kept: PerRecord | None = None

    def rows(self, start: int, stop: int) -> Tensor:  # noqa: D102
        formed = self._form(start, stop, self.right.rows(start, stop))
        order = (0, *(axis + 1 for axis in self.axes))
        return formed.view(stop - start, *self.shape).permute(order)

    def norms(self) -> tuple[Tensor, Tensor | None]:  # noqa: D102
        if self.terms == 1 and self.groups == 1:
            return self.magnitudes().square_(), None
        if self.inner_products_are_cheaper() and not self._always_form:
            return self._norms_by_inner_products()
        return self._norms_by_forming()

    def magnitudes(self) -> Tensor:  # noqa: D102
        pieces = [self._lengths(i, j, right) for i, j, right in self._rights()]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    def inner_products_are_cheaper(self) -> bool:
        """Return whether T²·(p + D) operations in float64 are clearly fewer than T·p·D."""
        return 4 * self.terms * (self.height + self.right.width) < self.height * self.right.width

    def weighted_sum(self, weights: Tensor) -> Tensor:  # noqa: D102
        if self._kept is not None:
            return self._kept.weighted_sum(weights).permute(self.axes)
        if self.groups == 1 and not self.right.is_copied:
            right = self.right.rows(0, self.records)
            total = _weighted_product(self.left.flatten(0, 2), right.flatten(0, 2), weights)
        else:
            total = self.left.new_zeros(self.groups, self.height, self.right.width)
            for i, j, right in self._rights():
                left = _by_group(self.left[i:j] * weights[i:j, None, None, None])
                total.baddbmm_(left.transpose(1, 2), _by_group(right))
        return total.view(self.shape).permute(self.axes)

    def select(self, records: Tensor) -> Self:  # noqa: D102
        made = type(self)(self.left[records], self.right.select(records), self.shape, self.axes)
        made._kept = None if self._kept is None else self._kept.select(records)
        return made

    def double(self) -> Self:  # noqa: D102
        made = type(self)(self.left.double(), self.right.double(), self.shape, self.axes)
        made._always_form = True
        return made

    def _lengths(self, start: int, stop: int, right: Tensor) -> Tensor:
        """Return Σ_t ‖l_t‖·‖r_t‖ of these records, not less for squares that were lost."""
        lost = torch.finfo(self.dtype).tiny ** 0.5
        lefts = row_norms(self.left[start:stop]).double() + sqrt(self.height) * lost
        rights = row_norms(right) + sqrt(self.right.width) * lost
        return torch.sum(lefts * rights, dim=(1, 2))

    def _norms_by_inner_products(self) -> tuple[Tensor, Tensor]:
        squared, magnitudes = [], []
        for i, j, right in self._rights(self.terms**2):
            left, right = self.left[i:j].double(), right.double()
            lefts, rights = left @ left.transpose(2, 3), right @ right.transpose(2, 3)
            diagonals = lefts.diagonal(dim1=2, dim2=3) * rights.diagonal(dim1=2, dim2=3)
            magnitudes.append(diagonals.sqrt_().sum((1, 2)))
            squared.append(lefts.mul_(rights).sum((1, 2, 3)))
        whole, most = torch.cat(squared), torch.cat(magnitudes)
        terms = self.height + self.right.width + self.terms**2
        hidden = hidden_by_the_sum(whole, most, self.terms, self.dtype)
        return whole, hidden + terms * unit(torch.float64) * most.square()

    def _norms_by_forming(self) -> tuple[Tensor, Tensor | None]:
        size = prod(self.shape)
        held = KEPT_SHARE * (self.groups * self.terms * self.height + self.right.held)
        keep = self.right.is_copied and self.records * size <= KEPT and size <= held
        formed, norms, magnitudes = None, [], []
        for i, j, right in self._rights(size):
            if formed is None:
                formed = self.left.new_empty(
                    self.records if keep else j, self.groups, self.height, self.right.width
                )
            into = formed[i:j] if keep else formed[: j - i]
            if keep:
                self._form(i, j, right, into.flatten(0, 1))
            else:
                self._form_in_blocks(i, j, right, into.flatten(0, 1))
                magnitudes.append(self._lengths(i, j, right))
            norms.append(row_norms(into.flatten(1)))
        lengths = torch.cat(norms)
        if keep and formed is not None:
            self._kept = PerRecord(formed.view(self.records, *self.shape))
            return lengths.double().square_(), None
        squared = lengths.double().square_()
        return squared, hidden_by_the_sum(squared, torch.cat(magnitudes), self.terms, self.dtype)

    def _form(self, start: int, stop: int, right: Tensor, into: Tensor | None = None) -> Tensor:
        left = self.left[start:stop].flatten(0, 1).transpose(1, 2)
        return torch.bmm(left, right.flatten(0, 1), out=into)

    def _form_in_blocks(self, start: int, stop: int, right: Tensor, into: Tensor) -> None:
        left, right = self.left[start:stop].flatten(0, 1), right.flatten(0, 1)
        for block in range(0, self.terms, TERMS):
            lefts = left[:, block : block + TERMS].transpose(1, 2)
            rights = right[:, block : block + TERMS]
            if block == 0:
                torch.bmm(lefts, rights, out=into)
            else:
                into.baddbmm_(lefts, rights)

    def _rights(self, formed: int = 0) -> Iterator[tuple[int, int, Tensor]]:
        """Yield records and their right factors in chunks, for ``formed`` numbers a record.

        What is yielded may be overwritten by what follows.
        """
        copied = self.groups * self.terms * self.right.width if self.right.is_copied else 0
        space = None
        for start, stop in chunks(self.records, copied, formed):
            space = self.right.space(stop) if start == 0 else space
            yield start, stop, self.right.rows(start, stop, space)


class Lookup(Contribution):
    """Gradients of a table of which each record used some rows: ``table[indices[i, t]]``.

    Everything costs by the rows that were used, whatever the size of the table.

    Args:
        indices: records × terms, the rows that were used.
        values: records × terms × width, the gradients with respect to what was looked up.
        size: the number of rows of the table.
    """

    def __init__(self, indices: Tensor, values: Tensor, size: int) -> None:
        self.records, self.terms, self.width = values.shape
        self.indices, self.values, self.size, self.dtype = indices, values, size, values.dtype
        self._sums: tuple[Tensor, Tensor, Tensor] | None = None

    def rows(self, start: int, stop: int) -> Tensor:  # noqa: D102
        count = stop - start
        offsets = torch.arange(count, device=self.indices.device)[:, None] * self.size
        table = self.values.new_zeros(count * self.size, self.width)
        keys = (self.indices[start:stop] + offsets).flatten()
        table.index_add_(0, keys, self.values[start:stop].flatten(0, 1))
        return table.view(count, self.size, self.width)

    def norms(self) -> tuple[Tensor, Tensor | None]:  # noqa: D102
        owners, _, sums = self._by_record()
        squared = sums.new_zeros(self.records, dtype=torch.float64)
        return squared.index_add_(0, owners, row_norms(sums).double().square_()), None

    def magnitudes(self) -> Tensor:  # noqa: D102
        return row_norms(self.values).sum(1)

    def weighted_sum(self, weights: Tensor) -> Tensor:  # noqa: D102
        owners, indices, sums = self._by_record()
        table = self.values.new_zeros(self.size, self.width)
        return table.index_add_(0, indices, sums * weights[owners, None])

    def select(self, records: Tensor) -> Self:  # noqa: D102
        return type(self)(self.indices[records], self.values[records], self.size)

    def double(self) -> Self:  # noqa: D102
        return type(self)(self.indices, self.values.double(), self.size)

    def _by_record(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return, for every row that a record used: the record, the row, its gradient."""
        if self._sums is None:
            records = torch.arange(self.records, device=self.indices.device)
            keys = (self.indices + records[:, None] * self.size).flatten()
            used, places = keys.unique(return_inverse=True)
            sums = self.values.new_zeros(len(used), self.width, dtype=torch.float64)
            sums.index_add_(0, places, self.values.flatten(0, 1).double())
            self._sums = used // self.size, used % self.size, sums.to(self.dtype)
        return self._sums


class Summed(Contribution):
    """The gradients of a parameter that is used more than once."""

    def __init__(self, parts: Sequence[Contribution]) -> None:
        self.parts = list(parts)
        self.records, self.dtype = parts[0].records, parts[0].dtype

    def rows(self, start: int, stop: int) -> Tensor:  # noqa: D102
        first, *others = (part.rows(start, stop) for part in self.parts)
        return sum(others, start=first)

    def norms(self) -> tuple[Tensor, Tensor | None]:  # noqa: D102
        exact, size = self.double(), self.rows(0, 1).numel()
        if self._inner_products_are_cheaper(size):
            squared, hidden = exact._norms_by_inner_products()
        else:
            norms = [
                row_norms(exact.rows(i, j).reshape(j - i, -1))
                for i, j in chunks(self.records, 0, size)
            ]
            squared = torch.cat(norms).square_()
            hidden = torch.zeros_like(squared)
        return squared, hidden + hidden_by_the_sum(
            squared, self.magnitudes(), self._terms(), self.dtype
        )

    def magnitudes(self) -> Tensor:  # noqa: D102
        return torch.stack([part.magnitudes() for part in self.parts]).sum(0)

    def weighted_sum(self, weights: Tensor) -> Tensor:  # noqa: D102
        first, *others = (part.weighted_sum(weights) for part in self.parts)
        return sum(others, start=first)

    def select(self, records: Tensor) -> Self:  # noqa: D102
        return type(self)([part.select(records) for part in self.parts])

    def double(self) -> Self:  # noqa: D102
        return type(self)([part.double() for part in self.parts])

    def _terms(self) -> int:
        return sum(part.terms if isinstance(part, Outer | Lookup) else 1 for part in self.parts)

    def _inner_products_are_cheaper(self, size: int) -> bool:
        return (
            all(_has_inner_products(part) for part in self.parts) and 2 * self._terms() ** 2 < size
        )

    def _norms_by_inner_products(self) -> tuple[Tensor, Tensor]:
        squared = torch.zeros(())
        for position, part in enumerate(self.parts):
            squared = squared + _inner_products(part, part)
            for other in self.parts[:position]:
                squared = squared + 2.0 * _inner_products(part, other)
        terms = sum(sum(each.shape[1:]) for part in self.parts for each in _factors(part))
        return squared, terms * unit(self.dtype) * self.magnitudes().square_()


def row_norms(values: Tensor) -> Tensor:
    """Return norms along the last dimension, with errors that do not grow with its length."""
    length = values.shape[-1]
    norms: Tensor
    if length <= 4 * BLOCK:
        norms = torch.linalg.vector_norm(values, dim=-1)
        return norms
    whole = length // BLOCK * BLOCK
    blocks = torch.linalg.vector_norm(values[..., :whole].unflatten(-1, (-1, BLOCK)), dim=-1)
    norms = row_norms(blocks)
    if whole < length:
        norms = torch.hypot(norms, torch.linalg.vector_norm(values[..., whole:], dim=-1))
    return norms


def hidden_by_the_sum(
    squared: Tensor, magnitudes: Tensor, terms: int, dtype: torch.dtype
) -> Tensor:
    """Return what cancellation may hide of squared norms if the sum is computed in this type."""
    error = (16.0 + terms / 256.0) * unit(dtype) * magnitudes.double()
    return error * (2.0 * squared.clamp(min=0.0).sqrt() + error)


def unit(dtype: torch.dtype) -> float:
    """Return the unit roundoff of a type."""
    return torch.finfo(dtype).eps / 2.0


def chunks(records: int, copied: int, formed: int = 0) -> Iterator[tuple[int, int]]:
    """Yield ranges of records, given the numbers that are copied and formed for each of them."""
    most = min(CHUNK // max(1, copied), FORMED // max(1, formed))
    step = max(1, min(records, most))
    for start in range(0, records, step):
        yield start, min(records, start + step)


def _weighted_product(left: Tensor, right: Tensor, weights: Tensor) -> Tensor:
    """Return Σ_t w_t·left[t] ⊗ right[t], the weights scaling the smaller factor."""
    weights = weights.repeat_interleave(len(left) // len(weights))[:, None]
    if left.shape[1] < right.shape[1]:
        return (left * weights).t() @ right
    return left.t() @ (right * weights)


def _by_group(factor: Tensor) -> Tensor:
    """Join records and terms: groups × (records · terms) × width."""
    return factor.transpose(0, 1).flatten(1, 2)


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

"""What every contribution can do, the two simple kinds, and norms with known rounding errors."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Self, TypeAlias

import torch
from torch import Tensor

Records: TypeAlias = slice | Tensor
"""Which records, as an index of a tensor: a slice if they are neighbours, which are not copied."""

BLOCK = 256
"""Squares are added up in blocks of this length, so that rounding errors do not pile up."""

CHUNK = 2**21
"""Numbers that a chunk of copied inputs may occupy: a few MiB, which stay in the cache."""

FORMED = 2**20
"""Numbers of per-record gradients that are formed at a time."""

CONVERTED = 2**18
"""Numbers that are converted to float64 at a time: 2 MiB, which stay in the cache."""


def row_norms(values: Tensor) -> Tensor:
    """Return norms along the last dimension, with errors that do not grow with its length."""
    blocks = block_norms(values)
    return blocks.squeeze(-1) if blocks.shape[-1] == 1 else row_norms(blocks)


def block_norms(values: Tensor) -> Tensor:
    """Return norms of blocks along the last dimension: the norm of these is that of all."""
    length = values.shape[-1]
    blocks: Tensor
    if length <= 4 * BLOCK:
        blocks = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
        return blocks
    end = length // BLOCK * BLOCK
    blocks = torch.linalg.vector_norm(values[..., :end].unflatten(-1, (-1, BLOCK)), dim=-1)
    if end == length:
        return blocks
    rest = torch.linalg.vector_norm(values[..., end:], dim=-1, keepdim=True)
    return torch.cat([blocks, rest], dim=-1)


def cancellation_bound(
    squared: Tensor, magnitudes: Tensor, terms: int, dtype: torch.dtype
) -> Tensor:
    """Return what cancellation may hide of squared norms if the sum is computed in this type."""
    error = (16.0 + terms / 256.0) * unit_roundoff(dtype) * magnitudes.double()
    return error * (2.0 * squared.clamp(min=0.0).sqrt() + error)


def unit_roundoff(dtype: torch.dtype) -> float:
    """Return the unit roundoff of a type."""
    return torch.finfo(dtype).eps / 2.0


def chunks(
    records: int, copied: int = 0, formed: int = 0, converted: int = 0
) -> Iterator[tuple[int, int]]:
    """Yield ranges of records, given what is copied, formed and converted for each of them.

    Products of several records are spread over the cores: an equal number for each of these.
    """
    most = min(CHUNK // max(1, copied), FORMED // max(1, formed), CONVERTED // max(1, converted))
    cores = torch.get_num_threads()
    step = max(1, min(records, most if most < cores else most // cores * cores))
    for start in range(0, records, step):
        yield start, min(records, start + step)


class Clippable(ABC):
    """One gradient per record, of the shape of a parameter, as far as it is clipped and added up.

    Example:
        >>> part = PerRecord(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        >>> isinstance(part.merge(torch.tensor([2])), Clippable)
        True
    """

    records: int
    dtype: torch.dtype
    size: int
    """The number of a parameter's entries."""

    @abstractmethod
    def norms(self) -> tuple[Tensor, Tensor | None]:
        """Return squared norms, one per record, and what cancellation may hide of them.

        Rounding by 64 unit roundoffs of the squared norm itself is allowed for elsewhere.
        """

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return Σ_i weights[i]·gradient[i]."""

    @abstractmethod
    def select(self, records: Records) -> Self:
        """Return the contribution of these records alone."""

    @abstractmethod
    def double(self) -> Self:
        """Return the same in float64."""


class Contribution(Clippable):
    """One gradient per record, of the shape of a parameter.

    Example:
        >>> isinstance(PerRecord(torch.ones(2, 3)), Contribution)
        True
    """

    @property
    def is_kept(self) -> bool:
        """Whether the sum is taken of gradients that are stored, of which the norms are, too."""
        return False

    @abstractmethod
    def rows(self, start: int, stop: int) -> Tensor:
        """Return the gradients of these records, one after the other."""

    @abstractmethod
    def magnitudes(self) -> Tensor:
        """Return what the norms would be if no terms cancelled, one per record."""

    @abstractmethod
    def join(self, count: int) -> Self:
        """Return the same with every ``count`` neighbouring rows added up, as one record."""

    @abstractmethod
    def merge(self, counts: Tensor) -> Clippable:
        """Return the same with neighbouring rows added up, so many of them for each record."""


def runs_of(counts: Tensor) -> Iterator[tuple[int, slice, slice]]:
    """Yield numbers of rows, the neighbouring records that have so many, and their rows.

    >>> list(runs_of(torch.tensor([1, 1, 3])))
    [(1, slice(0, 2, None), slice(0, 2, None)), (3, slice(2, 3, None), slice(2, 5, None))]
    """
    records = rows = 0
    found = counts.unique_consecutive(return_counts=True)
    for count, length in zip(*(each.tolist() for each in found), strict=True):
        ahead, end = records + length, rows + count * length
        yield count, slice(records, ahead), slice(rows, end)
        records, rows = ahead, end


SMALL = 2**14
"""Up to this many numbers, a matrix product costs more to start than to compute."""


class PerRecord(Contribution):
    """Gradients that were formed, one per record: ``gradients[i]`` has the parameter's shape.

    Example:
        >>> part = PerRecord(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        >>> part.weighted_sum(torch.tensor([0.5, 1.0]))
        tensor([1.5000, 3.0000])
    """

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients
        self.records, self.dtype = len(gradients), gradients.dtype
        self.size = gradients.shape[1:].numel()

    def rows(self, start: int, stop: int) -> Tensor:
        return self.gradients[start:stop]

    def norms(self) -> tuple[Tensor, Tensor | None]:
        return row_norms(self.gradients.reshape(self.records, -1)).double().square_(), None

    def magnitudes(self) -> Tensor:
        return row_norms(self.gradients.reshape(self.records, -1))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        flat = self.gradients.reshape(self.records, -1)
        if flat.numel() <= SMALL:
            return (flat * weights.unsqueeze(1)).sum(0).view(self.gradients.shape[1:])
        return (weights @ flat).view(self.gradients.shape[1:])

    def select(self, records: Records) -> Self:
        return type(self)(self.gradients[records])

    def double(self) -> Self:
        return type(self)(self.gradients.double())

    @property
    def is_kept(self) -> bool:
        return True

    def join(self, count: int) -> Self:
        return type(self)(self.gradients.unflatten(0, (-1, count)).sum(1))

    def merge(self, counts: Tensor) -> Self:
        sums = self.gradients.new_empty(len(counts), *self.gradients.shape[1:])
        for count, records, rows in runs_of(counts):
            torch.sum(self.gradients[rows].unflatten(0, (-1, count)), 1, out=sums[records])
        return type(self)(sums)


class TableRows(Clippable):
    """Gradients of a table of which each record has some rows, stored as they are added up.

    Args:
        owners: whose row each is.
        indices: which row of the table.
        sums: the gradient with respect to that row.
        records: the number of records.
        height: the number of rows of the table.

    Example:
        >>> part = TableRows(torch.tensor([0, 0]), torch.tensor([0, 2]), torch.ones(2, 1), 1, 3)
        >>> part.weighted_sum(torch.ones(1)).T
        tensor([[1., 0., 1.]])
    """

    def __init__(
        self, owners: Tensor, indices: Tensor, sums: Tensor, records: int, height: int
    ) -> None:
        self.owners, self.indices, self.sums = owners, indices, sums
        self.records, self.height = records, height
        self.dtype, self.size = sums.dtype, height * sums.shape[1]

    def norms(self) -> tuple[Tensor, Tensor | None]:
        squared = self.sums.new_zeros(self.records, dtype=torch.float64)
        return squared.index_add_(0, self.owners, row_norms(self.sums).double().square_()), None

    def weighted_sum(self, weights: Tensor) -> Tensor:
        table = self.sums.new_zeros(self.height, self.sums.shape[1])
        return table.index_add_(0, self.indices, self.sums * weights[self.owners, None])

    def select(self, records: Records) -> Self:
        wanted = torch.arange(self.records, device=self.owners.device)[records]
        places = torch.full((self.records,), -1, device=self.owners.device)
        places[wanted] = torch.arange(len(wanted), device=self.owners.device)
        kept = places[self.owners] >= 0
        owners, indices, sums = self.owners[kept], self.indices[kept], self.sums[kept]
        return type(self)(places[owners], indices, sums, len(wanted), self.height)

    def double(self) -> Self:
        return type(self)(self.owners, self.indices, self.sums.double(), self.records, self.height)


class Lookup(Contribution):
    """Gradients of a table of which each record used some rows: ``table[indices[i, t]]``.

    Everything costs by the rows that were used, whatever the size of the table.

    Args:
        indices: records × terms, the rows that were used.
        values: records × terms × width, the gradients with respect to what was looked up.
        size: the number of rows of the table.

    Example:
        >>> part = Lookup(torch.tensor([[0, 0, 2]]), torch.ones(1, 3, 1), size=4)
        >>> part.weighted_sum(torch.ones(1)).T
        tensor([[2., 0., 1., 0.]])
    """

    def __init__(self, indices: Tensor, values: Tensor, size: int) -> None:
        self.records, self.terms, self.width = values.shape
        self.indices, self.values, self.height = indices, values, size
        self.dtype, self.size = values.dtype, size * self.width
        self._sums: TableRows | None = None

    def rows(self, start: int, stop: int) -> Tensor:
        count = stop - start
        offsets = torch.arange(count, device=self.indices.device)[:, None] * self.height
        table = self.values.new_zeros(count * self.height, self.width)
        keys = (self.indices[start:stop] + offsets).flatten()
        table.index_add_(0, keys, self.values[start:stop].flatten(0, 1))
        return table.view(count, self.height, self.width)

    def norms(self) -> tuple[Tensor, Tensor | None]:
        return self._by_record().norms()

    def magnitudes(self) -> Tensor:
        return row_norms(self.values).sum(1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        return self._by_record().weighted_sum(weights)

    def select(self, records: Records) -> Self:
        return type(self)(self.indices[records], self.values[records], self.height)

    def double(self) -> Self:
        return type(self)(self.indices, self.values.double(), self.height)

    def merge(self, counts: Tensor) -> TableRows:
        return self._added_up(counts.to(self.indices.device))

    def join(self, count: int) -> Self:
        terms = count * self.terms
        values = self.values.reshape(-1, terms, self.width)
        return type(self)(self.indices.reshape(-1, terms), values, self.height)

    def _by_record(self) -> TableRows:
        if self._sums is None:
            self._sums = self._added_up(torch.ones_like(self.indices[:, 0]))
        return self._sums

    def _added_up(self, counts: Tensor) -> TableRows:
        """Return the rows that each record used, which has some neighbouring rows of this."""
        owners = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
        keys = (self.indices + owners[:, None] * self.height).flatten()
        used, places = keys.unique(return_inverse=True)
        sums = self.values.new_zeros(len(used), self.width, dtype=torch.float64)
        sums.index_add_(0, places, self.values.flatten(0, 1).double())
        owners, indices = used // self.height, used % self.height
        return TableRows(owners, indices, sums.to(self.dtype), len(counts), self.height)

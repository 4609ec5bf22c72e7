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


def chunks(records: int, copied: int, formed: int = 0) -> Iterator[tuple[int, int]]:
    """Yield ranges of records, given the numbers that are copied and formed for each of them."""
    most = min(CHUNK // max(1, copied), FORMED // max(1, formed))
    step = max(1, min(records, most))
    for start in range(0, records, step):
        yield start, min(records, start + step)


class Contribution(ABC):
    """One gradient per record, of the shape of a parameter.

    Example:
        >>> isinstance(PerRecord(torch.ones(2, 3)), Contribution)
        True
    """

    records: int
    dtype: torch.dtype
    size: int
    """The number of a parameter's entries."""

    @abstractmethod
    def rows(self, start: int, stop: int) -> Tensor:
        """Return the gradients of these records, one after the other."""

    @abstractmethod
    def norms(self) -> tuple[Tensor, Tensor | None]:
        """Return squared norms, one per record, and what cancellation may hide of them.

        Rounding by 64 unit roundoffs of the squared norm itself is allowed for elsewhere.
        """

    @abstractmethod
    def magnitudes(self) -> Tensor:
        """Return what the norms would be if no terms cancelled, one per record."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return Σ_i weights[i]·gradient[i]."""

    @abstractmethod
    def select(self, records: Records) -> Self:
        """Return the contribution of these records alone."""

    @abstractmethod
    def double(self) -> Self:
        """Return the same in float64."""

    @abstractmethod
    def merge(self, multiplicity: int) -> Self:
        """Return the same with every ``multiplicity`` neighbouring rows added up, as one record."""


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

    def merge(self, multiplicity: int) -> Self:
        return type(self)(self.gradients.unflatten(0, (-1, multiplicity)).sum(1))


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
        self._sums: tuple[Tensor, Tensor, Tensor] | None = None

    def rows(self, start: int, stop: int) -> Tensor:
        count = stop - start
        offsets = torch.arange(count, device=self.indices.device)[:, None] * self.height
        table = self.values.new_zeros(count * self.height, self.width)
        keys = (self.indices[start:stop] + offsets).flatten()
        table.index_add_(0, keys, self.values[start:stop].flatten(0, 1))
        return table.view(count, self.height, self.width)

    def norms(self) -> tuple[Tensor, Tensor | None]:
        owners, _, sums = self._by_record()
        squared = sums.new_zeros(self.records, dtype=torch.float64)
        return squared.index_add_(0, owners, row_norms(sums).double().square_()), None

    def magnitudes(self) -> Tensor:
        return row_norms(self.values).sum(1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        owners, indices, sums = self._by_record()
        table = self.values.new_zeros(self.height, self.width)
        return table.index_add_(0, indices, sums * weights[owners, None])

    def select(self, records: Records) -> Self:
        return type(self)(self.indices[records], self.values[records], self.height)

    def double(self) -> Self:
        return type(self)(self.indices, self.values.double(), self.height)

    def merge(self, multiplicity: int) -> Self:
        terms = multiplicity * self.terms
        values = self.values.reshape(-1, terms, self.width)
        return type(self)(self.indices.reshape(-1, terms), values, self.height)

    def _by_record(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return, for every row that a record used: the record, the row, its gradient."""
        if self._sums is None:
            records = torch.arange(self.records, device=self.indices.device)
            keys = (self.indices + records[:, None] * self.height).flatten()
            used, places = keys.unique(return_inverse=True)
            sums = self.values.new_zeros(len(used), self.width, dtype=torch.float64)
            sums.index_add_(0, places, self.values.flatten(0, 1).double())
            self._sums = used // self.height, used % self.height, sums.to(self.dtype)
        return self._sums

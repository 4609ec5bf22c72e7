"""Rows of a table, as embeddings have them."""

from typing import Self

import torch
from torch import Tensor

from dither.clipping.contributions.base import Contribution
from dither.clipping.contributions.rounding import row_norms


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

    def select(self, records: Tensor) -> Self:
        return type(self)(self.indices[records], self.values[records], self.height)

    def double(self) -> Self:
        return type(self)(self.indices, self.values.double(), self.height)

    def merged(self, views: int) -> Self:
        terms = views * self.terms
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

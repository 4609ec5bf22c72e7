"""Records as rows of a matrix, for the direct path of linear models: products, and norms.

Of users with few rows there are also *short rows*: they have the same inner products within a user
as the rows themselves, so that Xᵀ·R of a user has the norm of Lᵀ·R, where L has as many columns as
the user has rows. L·Lᵀ = X·Xᵀ is a Cholesky decomposition, once for all steps.
"""

from collections.abc import Iterator
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from dither.clipping.clip import Clip, bounded_weights
from dither.clipping.contributions import Records

BLOCK = 2**10
"""How many rows are summed in their own precision before they are added to a sum in float64. The
rounding of float32 then takes about a fourth of `dither.release.margin`."""

LOST = 1e-150
"""More than the norm of any row whose squares vanish in float64: norms stay upper bounds."""

_LONGEST = 1e30
"""A longer row counts as zeros: it would multiply what is lost where r is tiny in float32."""

_WIDEST = 32
"""The most columns of short rows; of rows with fewer than twice as many, half of theirs."""

_RIDGE = 1e-14
"""Added to squares of unit vectors, per column and for 10^5 columns more. It exceeds what rounding
takes off inner products, so that norms by short rows are upper bounds by about 1e-9."""

_FORMED = 2**16
"""Numbers that are formed at a time, and stay in the cache."""


@final
class DenseRows:
    """Rows of a tensor, float32 or float64, whose gradients are clipped.

    Args:
        values: records × columns; a row longer than 1e30, or not finite, counts as zeros.
        clip: how the gradient of a record is clipped.
        record_weights: one per record, from 0 to 1, which multiplies its clipped gradient; None is
            1 for all.
        ends: where the rows of each user end, those with few rows first; None has no users.

    Attributes:
        norms: of the rows, as `row_norms` returns them.
        limits: for flat clipping, the largest ‖r‖ at which a record is not clipped.
        columns: how many there are.
        short: short rows, of unit length, of the first records: of users with few rows.
    """

    def __init__(
        self,
        values: Tensor,
        clip: Clip,
        record_weights: Tensor | None = None,
        ends: NDArray[np.int64] | None = None,
    ) -> None:
        norms, too_long = row_norms(values)
        if too_long.any():
            values = values.masked_fill(too_long[:, None], 0.0)
        self.values, self.clip, self.columns = values, clip, values.shape[1]
        self.norms, self.limits = norms, _limits(norms, clip, values.dtype)
        self.weights = None if record_weights is None else bounded_weights(record_weights)[:, None]
        self.short = _short_rows(self, ends, values.dtype)

    def take(self, records: Records) -> Tensor:
        """Return a matrix with those rows; neighbours are not copied."""
        return self.values[records]

    def matmul(self, taken: Tensor, weight: Tensor) -> Tensor:
        """Return X·W."""
        return taken @ weight

    def transposed_matmul(self, taken: Tensor, logit_gradients: Tensor) -> Tensor:
        """Return Xᵀ·R, as (Rᵀ·X)ᵀ: that runs along the rows, several times faster."""
        whole = len(taken) // BLOCK * BLOCK
        blocks, r = taken[:whole].unflatten(0, (-1, BLOCK)), logit_gradients[:whole]
        sums = torch.bmm(r.unflatten(0, (-1, BLOCK)).mT, blocks).sum(dim=0, dtype=torch.float64)
        return (sums + logit_gradients[whole:].T @ taken[whole:]).T

    def inner_products(self, records: slice, count: int) -> Tensor:
        """Return those of rows of unit length with each other, within each ``count`` rows."""
        units = self.values[records] / self.norms[records, None]  # in float64
        units = units.unflatten(0, (-1, count))
        return torch.bmm(units, units.mT)

    def size(self) -> int:
        """Return how many numbers a row has."""
        return self.columns

    def norms_of_sums(self, taken: Tensor, r: Tensor, counts: NDArray[np.int64]) -> Tensor:
        """Return the norm of Xᵀ·R of every user, which is formed, in float64."""
        found, start = [], 0
        for count, users in equal_counts(counts):
            end = start + users * count
            if count > BLOCK:
                parts = (slice(first, first + count) for first in range(start, end, count))
                sums = [self.transposed_matmul(taken[part], r[part]) for part in parts]
                found += [torch.linalg.vector_norm(each)[None] for each in sums]
            else:
                size = count * max(1, _FORMED // (self.columns * r.shape[1]))
                for first in range(start, end, size):
                    part = slice(first, min(first + size, end))
                    x, own = (each[part].unflatten(0, (-1, count)) for each in (taken, r))
                    sums = (own.mT @ x).flatten(1)
                    found.append(torch.linalg.vector_norm(sums, dim=1, dtype=torch.float64))
            start = end
        return torch.cat(found)


@final
class SparseRows:
    """Rows of a SciPy matrix or array in CSR format, otherwise as `DenseRows`.

    Args:
        values: records × columns, in canonical format.
        clip: how the gradient of a record is clipped.
        record_weights: as for `DenseRows`.
        ends: as for `DenseRows`.
    """

    def __init__(
        self,
        values: Any,
        clip: Clip,
        record_weights: Tensor | None = None,
        ends: NDArray[np.int64] | None = None,
    ) -> None:
        norms, too_long = row_norms(values)
        if too_long.any():
            values = values.copy()
            values.data[np.repeat(too_long.numpy(), np.diff(values.indptr))] = 0.0
        self.values, self.clip, self.columns = values, clip, values.shape[1]
        dtype = torch.from_numpy(values.data).dtype
        self.norms, self.limits = norms, _limits(norms, clip, dtype)
        self.weights = None if record_weights is None else bounded_weights(record_weights)[:, None]
        self.short = _short_rows(self, ends, dtype)

    def take(self, records: Records) -> Any:
        """Return a matrix with those rows."""
        return self.values[records if isinstance(records, slice) else records.numpy()]

    def matmul(self, taken: Any, weight: Tensor) -> Tensor:
        """Return X·W."""
        return torch.from_numpy(np.asarray(taken @ weight.numpy()))

    def transposed_matmul(self, taken: Any, logit_gradients: Tensor) -> Tensor:
        """Return Xᵀ·R."""
        total = torch.zeros(self.columns, logit_gradients.shape[1], dtype=torch.float64)
        for start in range(0, taken.shape[0], BLOCK):
            block, r = (each[start : start + BLOCK] for each in (taken, logit_gradients.numpy()))
            total += torch.from_numpy(np.asarray(block.T @ r))
        return total

    def inner_products(self, records: slice, count: int) -> Tensor:
        """Return those of rows of unit length with each other, within each ``count`` rows."""
        units = self.values[records].astype(np.float64)
        units.data /= np.repeat(self.norms[records].numpy(), np.diff(units.indptr))
        places = np.arange(units.shape[0]).reshape(-1, count)
        found = np.empty((len(places), count, count))
        for shift in range(count):
            one, other = (units[i.ravel()] for i in (places[:, shift:], places[:, : count - shift]))
            products = np.asarray(one.multiply(other).sum(axis=1)).reshape(len(places), -1)
            i = np.arange(shift, count)
            found[:, i, i - shift] = found[:, i - shift, i] = products
        return torch.from_numpy(found)

    def size(self) -> int:
        """Return how many numbers a row has, on average."""
        return int(self.values.nnz // max(1, self.values.shape[0]) + 1)

    def norms_of_sums(self, taken: Any, r: Tensor, counts: NDArray[np.int64]) -> Tensor:
        """Return the norm of Xᵀ·R of every user, which is formed, in float64."""
        # Long sums in float32 would be far from the truth.
        own = r.double() if counts[-1] > BLOCK else r
        places, squares = (
            (np.arange(len(r)), np.append(0, np.cumsum(counts))),
            np.zeros(len(counts)),
        )
        for column in own.numpy().T:
            sums = sparse.csr_array((column, *places), (len(counts), len(r))) @ taken
            squares += np.asarray(sums.astype(np.float64).power(2).sum(axis=1)).ravel()
        return torch.from_numpy(np.sqrt(squares))


Rows: TypeAlias = DenseRows | SparseRows
"""Records as rows of a matrix."""


def row_norms(values: Any) -> tuple[Tensor, Tensor]:
    """Return an upper bound on the norm of every row in float64, and which rows are too long.

    Rows that are longer than 1e30 or not finite are to count as zeros, and so do their norms.

    Args:
        values: a tensor, or a SciPy matrix or array.

    Example:
        >>> norms, too_long = row_norms(torch.tensor([[3.0, 4.0], [torch.nan, 0.0]]))
        >>> norms.round(), too_long
        (tensor([5., 0.], dtype=torch.float64), tensor([False,  True]))
    """
    if isinstance(values, Tensor):
        # In chunks: all of it in float64 at once would be twice as large as the data.
        parts = values.split(BLOCK)
        norms = torch.cat([torch.linalg.vector_norm(x, dim=1, dtype=torch.float64) for x in parts])
    else:
        exact = values.astype(np.float64)
        norms = torch.from_numpy(np.sqrt(np.asarray(exact.multiply(exact).sum(axis=1)).ravel()))
    too_long = ~(norms <= _LONGEST)  # or NaN
    return norms.masked_fill_(too_long, 0.0).add_(LOST), too_long


def _limits(norms: Tensor, clip: Clip, dtype: torch.dtype) -> Tensor:
    """Return the longest r of every record that is not clipped, rounded towards zero.

    The quotient may be half a unit above its value, and the norm one unit below its own.
    """
    limits = (clip.norm / norms).to(dtype)
    for _ in range(2):
        limits = torch.nextafter(limits, torch.zeros_like(limits))
    return limits[:, None]


def equal_counts(counts: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Yield counts, which ascend, and how many of each there are.

    Example:
        >>> list(equal_counts(np.array([1, 3, 3])))
        [(1, 1), (3, 2)]
    """
    found, users = np.unique(counts, return_counts=True)
    return zip(found.tolist(), users.tolist(), strict=True)


def has_short_rows(rows: Rows, records: Records) -> bool:
    """Return whether all of the records have short rows."""
    last = records.stop - 1 if isinstance(records, slice) else int(records[-1])
    return last < len(rows.short)


def _short_rows(rows: Rows, ends: NDArray[np.int64] | None, dtype: torch.dtype) -> Tensor:
    """Return L of every user with few rows, below each other, with zeros on the right."""
    counts = np.diff(np.zeros(0, np.int64) if ends is None else ends, prepend=0)
    widest = min(_WIDEST, rows.columns // 2)
    counts = counts[: np.searchsorted(counts, widest, side="right")]
    short = torch.zeros(int(counts.sum()), int(counts.max(initial=0)), dtype=dtype)
    start = 0
    for count, users in equal_counts(counts):
        end = start + users * count
        size = count * max(1, _FORMED // (count * rows.size()))
        for first in range(start, end, size):
            part = slice(first, min(first + size, end))
            products = rows.inner_products(part, count)
            products.diagonal(dim1=1, dim2=2).add_(_RIDGE * (rows.columns + 10**5))
            short[part, :count] = torch.linalg.cholesky(products).flatten(0, 1).to(dtype)
        start = end
    return short

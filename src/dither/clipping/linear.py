"""The direct path for linear models: the clipped sum in two matrix products, without autograd.

The loss of a record x with logits s = Wᵀx has the gradient x·rᵀ, where r is the gradient of the
loss with respect to the logits. Its norm is ‖x‖·‖r‖, and the sum of clipped gradients is Xᵀ(w∘R),
with the clip factors w on the rows of R.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dither.clipping.clip import Clip, ClippedSum, bounded_weights, full_precision
from dither.clipping.contributions import Records

_BLOCK = 2**10
"""How many rows are summed in their own precision before they are added to a sum in float64. The
rounding of float32 then takes about a fourth of `dither.release.margin`."""

_CACHED, _MOST_BLOCKS = 2**19, 2**4
"""Numbers that stay in the cache between two products, and the blocks that they may be."""

_LOST = 1e-150
"""More than the norm of any row whose squares vanish in float64: norms stay upper bounds."""

_LONGEST = 1e30
"""A longer row counts as zeros: it would multiply what is lost where r is tiny in float32."""

LogitGradients = Callable[[Tensor, Records], Tensor]
"""From logits, rows × outputs, and their records to r, of the same shape."""


@final
class DenseRows:
    """Rows of a tensor, float32 or float64, whose gradients are clipped.

    Args:
        values: records × columns; a row longer than 1e30, or not finite, counts as zeros.
        clip: how the gradient of a record is clipped.
        record_weights: one per record, from 0 to 1, which multiplies its clipped gradient; None is
            1 for all.

    Attributes:
        norms: of the rows, as `row_norms` returns them.
        limits: for flat clipping, the largest ‖r‖ at which a record is not clipped.
        columns: how many there are.
    """

    def __init__(self, values: Tensor, clip: Clip, record_weights: Tensor | None = None) -> None:
        norms, too_long = row_norms(values)
        if too_long.any():
            values = values.masked_fill(too_long[:, None], 0.0)
        self.values, self.clip, self.columns = values, clip, values.shape[1]
        self.norms, self.limits = norms, _limits(norms, clip, values.dtype)
        self.weights = None if record_weights is None else bounded_weights(record_weights)[:, None]

    def take(self, records: Records) -> Tensor:
        """Return a matrix with those rows; neighbours are not copied."""
        return self.values[records]

    def matmul(self, taken: Tensor, weight: Tensor) -> Tensor:
        """Return X·W."""
        return taken @ weight

    def transposed_matmul(self, taken: Tensor, logit_gradients: Tensor) -> Tensor:
        """Return Xᵀ·R, as (Rᵀ·X)ᵀ: that runs along the rows, several times faster."""
        whole = len(taken) // _BLOCK * _BLOCK
        blocks, r = taken[:whole].unflatten(0, (-1, _BLOCK)), logit_gradients[:whole]
        sums = torch.bmm(r.unflatten(0, (-1, _BLOCK)).mT, blocks).sum(dim=0, dtype=torch.float64)
        return (sums + logit_gradients[whole:].T @ taken[whole:]).T


@final
class SparseRows:
    """Rows of a SciPy matrix or array in CSR format, otherwise as `DenseRows`.

    Args:
        values: records × columns, in canonical format.
        clip: how the gradient of a record is clipped.
        record_weights: as for `DenseRows`.
    """

    def __init__(self, values: Any, clip: Clip, record_weights: Tensor | None = None) -> None:
        norms, too_long = row_norms(values)
        if too_long.any():
            values = values.copy()
            values.data[np.repeat(too_long.numpy(), np.diff(values.indptr))] = 0.0
        self.values, self.clip, self.columns = values, clip, values.shape[1]
        self.norms = norms
        self.limits = _limits(norms, clip, torch.from_numpy(values.data).dtype)
        self.weights = None if record_weights is None else bounded_weights(record_weights)[:, None]

    def take(self, records: Records) -> Any:
        """Return a matrix with those rows."""
        return self.values[records if isinstance(records, slice) else records.numpy()]

    def matmul(self, taken: Any, weight: Tensor) -> Tensor:
        """Return X·W."""
        return torch.from_numpy(np.asarray(taken @ weight.numpy()))

    def transposed_matmul(self, taken: Any, logit_gradients: Tensor) -> Tensor:
        """Return Xᵀ·R."""
        return torch.from_numpy(np.asarray(taken.T @ logit_gradients.numpy()))


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
        parts = values.split(_BLOCK)
        norms = torch.cat([torch.linalg.vector_norm(x, dim=1, dtype=torch.float64) for x in parts])
    else:
        exact = values.astype(np.float64)
        norms = torch.from_numpy(np.sqrt(np.asarray(exact.multiply(exact).sum(axis=1)).ravel()))
    too_long = ~(norms <= _LONGEST)  # or NaN
    return norms.masked_fill_(too_long, 0.0).add_(_LOST), too_long


def linear_clipped_sum(
    rows: Rows, weight: Tensor, logit_gradients: LogitGradients, records: NDArray[np.int64]
) -> ClippedSum:
    """Return the sum of the clipped gradients of a linear model without autograd.

    Guarantees: every record adds a gradient of norm at most ``rows.clip.norm``, up to the rounding
    that `dither.release.margin` covers; one whose gradient is not finite, or whose row is longer
    than 1e30, adds nothing.

    Args:
        rows: all records, and how they are clipped.
        weight: W, columns × outputs.
        logit_gradients: r from logits, rows × outputs, and their records.
        records: ascending indices of the records that were drawn.

    Returns:
        A `ClippedSum` of one gradient, "weight", columns × outputs in float64; norms are left out.

    Example:
        >>> rows = DenseRows(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), Clip(1.0))
        >>> minus_one = lambda logits, records: -torch.ones_like(logits)
        >>> total = linear_clipped_sum(rows, torch.zeros(2, 1), minus_one, np.arange(2))
        >>> total.gradients["weight"].T.round(decimals=4)
        tensor([[-0.9000, -1.2000]], dtype=torch.float64)
    """
    total = torch.zeros(weight.shape, dtype=torch.float64)
    with full_precision("cpu"):
        for part in _chunks(records, rows):
            taken = rows.take(part)
            r = logit_gradients(rows.matmul(taken, weight), part)
            if not math.isfinite(float(r.sum())):
                r = torch.where(torch.isfinite(r).all(dim=1, keepdim=True), r, 0.0)
            clipped = _clipped(r, rows, part)
            if rows.weights is not None:
                clipped = clipped * rows.weights[part].to(clipped.dtype)
            total += rows.transposed_matmul(taken, clipped)
    return ClippedSum({"weight": total.mul_(rows.clip.scale)}, torch.zeros(0))


def _limits(norms: Tensor, clip: Clip, dtype: torch.dtype) -> Tensor:
    """Return the longest r of every record that is not clipped, rounded towards zero."""
    limits = (clip.norm / norms).to(dtype)
    return torch.nextafter(limits, torch.zeros_like(limits))[:, None]


def _clipped(r: Tensor, rows: Rows, records: Records) -> Tensor:
    """Return r, which is finite, times the factors of the gradients."""
    if r.shape[1] == 1 and rows.clip.mode == "flat":
        limits = rows.limits[records]
        return r.clamp(-limits, limits)
    # In float64: squares of tiny numbers would vanish, and sums of many would stagnate.
    norms = torch.linalg.vector_norm(r, dim=1, dtype=torch.float64).add_(_LOST)
    factors = rows.clip.factors(norms.mul_(rows.norms[records]))
    # A factor alone may be too small for float32 where its product with r is not.
    return (r.double() * factors[:, None]).to(r.dtype)


def _chunks(records: NDArray[np.int64], rows: Rows) -> Iterator[Records]:
    size = _BLOCK
    if isinstance(rows, DenseRows):
        size *= min(max(_CACHED // (_BLOCK * rows.columns), 1), _MOST_BLOCKS)
    for start in range(0, len(records), size):
        part = records[start : start + size]
        first, end = int(part[0]), int(part[-1]) + 1
        yield slice(first, end) if end - first == len(part) else torch.from_numpy(part)

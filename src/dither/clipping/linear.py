"""The direct path for linear models: the clipped sum in two matrix products, without autograd.

The loss of a record x with logits s = Wᵀx has the gradient x·rᵀ, where r is the gradient of the
loss with respect to the logits. Its norm is ‖x‖·‖r‖, and the sum of clipped gradients is Xᵀ(w∘R),
with the clip factors w on the rows of R.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dither.clipping.clip import Clip, ClippedSum, bounded_weights, full_precision

_CHUNK = 4096
"""Rows that are summed in their own precision before they are added to a sum in float64."""

_LOST = 1e-150
"""More than the norm of any row whose squares vanish in float64: norms stay upper bounds."""

_LONGEST = 1e30
"""A longer row counts as zeros: it would multiply what is lost where r is tiny in float32."""

LogitGradients = Callable[[Tensor, NDArray[np.int64]], Tensor]
"""From logits, rows × outputs, and the indices of their records to r, of the same shape."""


@final
class DenseRows:
    """Rows of a tensor, float32 or float64.

    Args:
        values: records × columns; a row whose norm is not finite counts as zeros.

    Attributes:
        norms: one per record, in float64.
        columns: how many there are.
    """

    def __init__(self, values: Tensor) -> None:
        # In chunks: all of it in float64 at once would be twice as large as the data.
        norms_of_chunks = [
            torch.linalg.vector_norm(chunk, dim=1, dtype=torch.float64)
            for chunk in values.split(_CHUNK)
        ]
        norms = torch.cat(norms_of_chunks)
        finite = torch.isfinite(norms)
        if not finite.all():
            values, norms = torch.where(finite[:, None], values, 0.0), norms.where(finite, 0.0)
        self.values, self.norms, self.columns = values, norms, values.shape[1]

    def __len__(self) -> int:
        return len(self.values)

    def take(self, records: NDArray[np.int64]) -> Tensor:
        """Return a matrix with those rows; neighbours are not copied."""
        first, last = int(records[0]), int(records[-1])
        if last - first + 1 == len(records):
            return self.values[first : last + 1]
        return self.values.index_select(0, torch.from_numpy(records))

    def matmul(self, taken: Tensor, weight: Tensor) -> Tensor:
        """Return X·W."""
        return taken @ weight

    def transposed_matmul(self, taken: Tensor, logit_gradients: Tensor) -> Tensor:
        """Return Xᵀ·R, as (Rᵀ·X)ᵀ: that runs along the rows, several times faster."""
        return (logit_gradients.T @ taken).T


@final
class SparseRows:
    """Rows of a SciPy matrix or array in CSR format, float32 or float64.

    Args:
        values: records × columns; entries that are not finite count as zeros.
    """

    def __init__(self, values: Any) -> None:
        finite = np.isfinite(values.data)
        if not finite.all():
            values = values.copy()
            values.data[~finite] = 0.0
        self.values, self.columns = values, values.shape[1]
        exact = values.astype(np.float64)
        self.norms = torch.from_numpy(
            np.sqrt(np.asarray(exact.multiply(exact).sum(axis=1)).ravel())
        )

    def __len__(self) -> int:
        return int(self.values.shape[0])

    def take(self, records: NDArray[np.int64]) -> Any:
        """Return a matrix with those rows; that of all is not copied."""
        return self.values if len(records) == len(self) else self.values[records]

    def matmul(self, taken: Any, weight: Tensor) -> Tensor:
        """Return X·W."""
        return torch.from_numpy(np.asarray(taken @ weight.numpy()))

    def transposed_matmul(self, taken: Any, logit_gradients: Tensor) -> Tensor:
        """Return Xᵀ·R."""
        return torch.from_numpy(np.asarray(taken.T @ logit_gradients.numpy()))


Rows: TypeAlias = DenseRows | SparseRows
"""Records as rows of a matrix."""


def linear_clipped_sum(
    rows: Rows,
    weight: Tensor,
    logit_gradients: LogitGradients,
    records: NDArray[np.int64],
    clip: Clip,
    record_weights: Tensor | None = None,
) -> ClippedSum:
    """Return the sum of the clipped gradients of a linear model without autograd.

    Guarantees: every record adds a gradient of norm at most ``clip.norm``, up to the rounding that
    `dither.release.margin` covers; one whose gradient is not finite, or whose row is longer than
    1e30, adds nothing.

    Args:
        rows: all records.
        weight: W, columns × outputs.
        logit_gradients: r from logits, rows × outputs, and the indices of their records.
        records: ascending indices of the records that were drawn.
        clip: how the gradient of a record is clipped.
        record_weights: one per record, drawn or not, from 0 to 1, which multiplies its clipped
            gradient; None is 1 for all.

    Returns:
        A `ClippedSum` of one gradient, "weight", columns × outputs in float64.

    Example:
        >>> rows = DenseRows(torch.tensor([[3.0, 4.0], [0.3, 0.4]]))
        >>> minus_one = lambda logits, records: -torch.ones_like(logits)
        >>> total = linear_clipped_sum(rows, torch.zeros(2, 1), minus_one, np.arange(2), Clip(1.0))
        >>> total.gradients["weight"].T.round(decimals=4)
        tensor([[-0.9000, -1.2000]], dtype=torch.float64)
        >>> total.norms
        tensor([5.0000, 0.5000], dtype=torch.float64)
    """
    total = torch.zeros(weight.shape, dtype=torch.float64)
    norms = [torch.zeros(0, dtype=torch.float64)]
    for part in _chunks(records):
        taken = rows.take(part)
        r = logit_gradients(rows.matmul(taken, weight), part)
        # In float64: squares of tiny numbers would vanish, and sums of many would stagnate.
        length = torch.linalg.vector_norm(r, dim=1, dtype=torch.float64)
        row_norms = rows.norms[torch.from_numpy(part)]
        norm = (length + _LOST) * (row_norms + _LOST)
        finite = torch.isfinite(norm) & (row_norms <= _LONGEST)
        # A factor alone may be too small for float32 where its product with r is not.
        factors = clip.factors(norm)
        if record_weights is not None:
            factors = factors * bounded_weights(record_weights[torch.from_numpy(part)])
        scaled = (r.double() * factors[:, None]).to(r.dtype)
        kept = torch.where(finite[:, None], scaled, 0.0)
        with full_precision(kept.device.type):
            total += rows.transposed_matmul(taken, kept)
        norms.append(torch.where(finite, norm, torch.inf))
    return ClippedSum({"weight": total * clip.scale}, torch.cat(norms))


def _chunks(records: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    for start in range(0, len(records), _CHUNK):
        yield records[start : start + _CHUNK]

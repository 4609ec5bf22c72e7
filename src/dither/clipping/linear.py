"""The direct path for linear models: the clipped sum in two matrix products, without autograd.

The loss of a record x with logits s = Wᵀx has the gradient x·rᵀ, where r is the gradient of the
loss with respect to the logits. Its norm is ‖x‖·‖r‖, and the sum of clipped gradients is Xᵀ(w∘R),
with the clip factors w on the rows of R. `dither.clipping.linear_users` is for users with several
rows.
"""

import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dither.clipping.clip import ClippedSum, full_precision
from dither.clipping.contributions import Records
from dither.clipping.linear_rows import BLOCK, LOST, DenseRows, Rows
from dither.clipping.linear_users import users_sum

_CACHED, _MOST_BLOCKS = 2**19, 2**4
"""Numbers that stay in the cache between two products, and the blocks that they may be."""

LogitGradients: TypeAlias = Callable[[Tensor, Records], Tensor]
"""From logits, rows × outputs, and their records to r, of the same shape."""


def linear_clipped_sum(
    rows: Rows,
    weight: Tensor,
    logit_gradients: LogitGradients,
    records: NDArray[np.int64],
    counts: NDArray[np.int64] | None = None,
) -> ClippedSum:
    """Return the sum of the clipped gradients of a linear model without autograd.

    Guarantees: every record adds a gradient of norm at most ``rows.clip.norm``, up to the rounding
    that `dither.release.margin` covers; one whose gradient is not finite, or whose row is longer
    than 1e30, adds nothing. With ``counts`` this is so for every user.

    Args:
        rows: all records, and how they are clipped.
        weight: W, columns × outputs.
        logit_gradients: r from logits, rows × outputs, and their records.
        records: ascending indices of the records that were drawn; with ``counts`` those of a user
            next to each other.
        counts: how many of them each user has, ascending: the mean of their gradients is clipped
            as one, and record weights are replaced by their mean. None is one each.

    Returns:
        A `ClippedSum` of one gradient, "weight", columns × outputs in float64; norms are left out.

    Example:
        >>> from dither.clipping.clip import Clip
        >>> rows = DenseRows(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), Clip(1.0))
        >>> minus_one = lambda logits, records: -torch.ones_like(logits)
        >>> total = linear_clipped_sum(rows, torch.zeros(2, 1), minus_one, np.arange(2))
        >>> total.gradients["weight"].T.round(decimals=4)
        tensor([[-0.9000, -1.2000]], dtype=torch.float64)
        >>> one_user = np.arange(2), np.array([2])
        >>> total = linear_clipped_sum(rows, torch.zeros(2, 1), minus_one, *one_user)
        >>> total.gradients["weight"].T.round(decimals=4)
        tensor([[-0.6000, -0.8000]], dtype=torch.float64)
    """
    total = torch.zeros(weight.shape, dtype=torch.float64)
    with full_precision("cpu"):
        for part, own in _chunks(records, counts, rows):
            taken = rows.take(part)
            r = logit_gradients(rows.matmul(taken, weight), part)
            if own is not None and own[-1] > 1:
                total += users_sum(rows, taken, r, part, own)
                continue
            if not math.isfinite(float(r.sum())):
                r = torch.where(torch.isfinite(r).all(dim=1, keepdim=True), r, 0.0)
            clipped = _clipped(r, rows, part)
            if rows.weights is not None:
                clipped = clipped * rows.weights[part].to(clipped.dtype)
            total += rows.transposed_matmul(taken, clipped)
    return ClippedSum({"weight": total.mul_(rows.clip.scale)}, torch.zeros(0))


def _clipped(r: Tensor, rows: Rows, records: Records) -> Tensor:
    """Return r, which is finite, times the factors of the gradients."""
    if r.shape[1] == 1 and rows.clip.mode == "flat":
        limits = rows.limits[records]
        return r.clamp(-limits, limits)
    # In float64: squares of tiny numbers would vanish, and sums of many would stagnate.
    norms = torch.linalg.vector_norm(r, dim=1, dtype=torch.float64).add_(LOST)
    factors = rows.clip.factors(norms.mul_(rows.norms[records]))
    # A factor alone may be too small for float32 where its product with r is not.
    return (r.double() * factors[:, None]).to(r.dtype)


def _chunks(
    records: NDArray[np.int64], counts: NDArray[np.int64] | None, rows: Rows
) -> Iterator[tuple[Records, NDArray[np.int64] | None]]:
    """Yield chunks of records, or of complete users and their numbers of records.

    Users with short rows are apart from the others.
    """
    size = BLOCK
    if isinstance(rows, DenseRows):
        size *= min(max(_CACHED // (BLOCK * rows.columns), 1), _MOST_BLOCKS)
    if counts is None:
        for start in range(0, len(records), size):
            yield _index(records[start : start + size]), None
    elif len(counts):
        ends = np.cumsum(counts)
        chunk = ends // size
        chunk[records[ends - 1] >= len(rows.short)] += len(records)
        bounds = [0, *(np.flatnonzero(np.diff(chunk)) + 1).tolist(), len(counts)]
        for first, last in pairwise(bounds):
            start = ends[first] - counts[first]
            yield _index(records[start : ends[last - 1]]), counts[first:last]


def _index(part: NDArray[np.int64]) -> Records:
    first, end = int(part[0]), int(part[-1]) + 1
    return slice(first, end) if end - first == len(part) else torch.from_numpy(part)

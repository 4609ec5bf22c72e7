"""The direct path of linear models for users: mean gradients of several rows, clipped as one.

The mean gradient of a user with k rows is G = Xᵀ·R/k. Its norm is at most the mean of ‖x‖·‖r‖,
which is all that is needed where that is not clipped. Otherwise it is the norm of Lᵀ·R/k, with the
user's short rows L, or where there are none G is formed for its norm. The sum is Xᵀ(w∘R), as it is
for records.

Where the rows of a user cancel, rounding of that sum would be more than a little of what is left of
them: then G is formed, measured as it is, and added.
"""

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dither.clipping.contributions import Records
from dither.clipping.linear_rows import LOST, Rows, has_short_rows

_CLOSE = 1.0 + 1e-6
"""Up to so many times the clip norm a bound is as good as the norm."""

_CANCELLING = 8.0
"""How many times the clip norm the rows of a user may add up to without G being formed."""


def users_sum(
    rows: Rows, taken: Any, r: Tensor, records: Records, counts: NDArray[np.int64]
) -> Tensor:
    """Return the sum of the clipped mean gradients of users, divided by ``rows.clip.scale``.

    Args:
        rows: all records, and how they are clipped.
        taken: the matrix of the users' rows.
        r: the gradients with respect to their logits; a user with one that is not finite adds
            nothing.
        records: which rows they are, those of a user next to each other.
        counts: how many rows each user has, ascending.
    """
    clip, users = rows.clip, len(counts)
    owners = torch.from_numpy(np.repeat(np.arange(users), counts))
    shares = torch.from_numpy(1.0 / counts)
    if not math.isfinite(float(r.sum())):
        bad = owners[~torch.isfinite(r).all(dim=1)]
        r = r.masked_fill(torch.isin(owners, bad)[:, None], 0.0)
    scaled = r * rows.norms[records, None]  # in float64
    lengths = torch.linalg.vector_norm(scaled, dim=1)
    bounds = _sums(lengths, owners, users).mul_(shares).add_(LOST)
    norms, limit = bounds, _CLOSE * clip.norm if clip.mode == "flat" else 0.0
    if float(bounds.max()) > limit:
        is_open = bounds > limit
        index = is_open[owners].nonzero()[:, 0]
        if has_short_rows(rows, records):
            products = scaled[index, :, None] * rows.short[records][index, None]  # in float64
            sums = _sums(products.flatten(1), owners[index], users)
            found = torch.linalg.vector_norm(sums, dim=1)
        else:
            found = torch.zeros_like(bounds)
            chosen = taken[index if isinstance(taken, Tensor) else index.numpy()]
            found[is_open] = rows.norms_of_sums(chosen, r[index], counts[is_open.numpy()])
        found = found.mul_(shares).add_(bounds, alpha=torch.finfo(r.dtype).eps)
        norms = torch.where(is_open, found, bounds)
    factors, total = clip.factors(norms), torch.zeros(1, dtype=torch.float64)
    weights = None
    if rows.weights is not None:
        weights = _sums(rows.weights[records, 0], owners, users).mul_(shares)
    most = _CANCELLING * clip.norm / clip.scale
    if not float((factors * bounds).max()) <= most:
        is_cancelling = ~(factors * bounds <= most)
        total = _sum_of_formed(rows, taken, r, counts, is_cancelling, weights)
        factors.masked_fill_(is_cancelling, 0.0)
    factors = factors * shares if weights is None else factors * shares * weights
    clipped = (r * factors[owners, None]).to(r.dtype)
    return rows.transposed_matmul(taken, clipped) + total


def _sums(values: Tensor, owners: Tensor, users: int) -> Tensor:
    """Return the sum of values of rows per user, 0 without rows."""
    return values.new_zeros(users, *values.shape[1:]).index_add_(0, owners, values)


def _sum_of_formed(
    rows: Rows,
    taken: Any,
    r: Tensor,
    counts: NDArray[np.int64],
    chosen: Tensor,
    weights: Tensor | None,
) -> Tensor:
    """Return the sum of some users' gradients, each of which is formed, one after the other."""
    total = torch.zeros(rows.columns, r.shape[1], dtype=torch.float64)
    ends = np.cumsum(counts)
    for user in chosen.nonzero()[:, 0].tolist():
        part = slice(int(ends[user] - counts[user]), int(ends[user]))
        mean = (r[part].double() / int(counts[user])).to(r.dtype)
        gradient = rows.transposed_matmul(taken[part], mean)
        norm = torch.linalg.vector_norm(gradient)
        if torch.isfinite(norm):  # a product may overflow
            factor = float(rows.clip.factors(norm + LOST))
            total.add_(gradient, alpha=factor * (1.0 if weights is None else float(weights[user])))
    return total

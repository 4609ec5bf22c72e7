"""Norms whose rounding errors are known, and the sizes of pieces in which they are taken."""

from collections.abc import Iterator

import torch
from torch import Tensor

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
    """Return norms of blocks along the last dimension: their norms are those of the whole."""
    length = values.shape[-1]
    blocks: Tensor
    if length <= 4 * BLOCK:
        blocks = torch.linalg.vector_norm(values, dim=-1, keepdim=True)
        return blocks
    whole = length // BLOCK * BLOCK
    blocks = torch.linalg.vector_norm(values[..., :whole].unflatten(-1, (-1, BLOCK)), dim=-1)
    if whole == length:
        return blocks
    rest = torch.linalg.vector_norm(values[..., whole:], dim=-1, keepdim=True)
    return torch.cat([blocks, rest], dim=-1)


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

"""Fourier sums over scattered losses: Σ_k w_k·(e^(i·n·h·L_k) − 1) for n = 0 … N−1.

Directly, that is N products for each loss; it is exact relative to the sum's own size. For many
losses and many n they are first spread over a fine grid by a Gaussian, whose transform is divided
out again, at a cost that hardly depends on N. Its error is bounded relative to Σ w.
"""

import math
from typing import NamedTuple

import numpy as np

from dither.types import FloatArray

_MOST_EXPONENTIALS = 4e6  # at once, for the sake of memory
_DIRECT = 2e6  # products for one row up to which the direct sum is taken
_CHUNK = 1024  # losses that are spread at a time
_HALF = 14  # cells on each side over which a loss is spread
_FINE = 6  # cells of the grid for every frequency


def work(losses: int, number: int) -> float:
    """Return about how many products a sum takes."""
    direct = float(losses) * number
    return direct if direct <= _DIRECT else min(direct, 250.0 * losses + 100.0 * number)


class Sums(NamedTuple):
    """The sums, one row for each row of losses, and what their errors depend on.

    Attributes:
        values: one column for each n.
        additions: how many terms were added one after the other.
        error: what spreading over a grid adds to the errors, relative to Σ w.
    """

    values: np.ndarray
    additions: int
    error: float


def fourier_excess(weight: FloatArray, loss: FloatArray, spacing: float, number: int) -> Sums:
    """Return the sums by whichever way is cheaper."""
    losses = loss.shape[1]
    if float(losses) * number <= _DIRECT:
        return Sums(_direct_sums(weight, loss, spacing, number), losses, 0.0)
    rows = [_grid_sums(w, x, spacing, number) for w, x in zip(weight, loss, strict=True)]
    return Sums(np.array(rows), 0, _grid_error(number, losses))


def _direct_sums(weight: FloatArray, loss: FloatArray, spacing: float, number: int) -> np.ndarray:
    """With n = outer + inner it takes √N exponentials per loss: (a+1)·(b+1) − 1 = a·b + a + b."""
    inner = max(1, math.isqrt(number))
    outer = -(-number // inner)
    out = np.empty((loss.shape[0], number), dtype=complex)
    rows = max(1, int(_MOST_EXPONENTIALS / (inner * loss.shape[1])))
    for start in range(0, loss.shape[0], rows):
        part = slice(start, start + rows)
        phase = spacing * loss[part, None, :]
        low = _turn(np.arange(inner)[:, None] * phase) * weight[part, None, :]
        high = _turn((inner * np.arange(outer))[:, None] * phase)
        table = np.matmul(high, low.transpose(0, 2, 1)) + low.sum(axis=2)[:, None, :]
        table += np.matmul(high, weight[part, :, None].astype(complex))
        out[part] = table.reshape(phase.shape[0], -1)[:, :number]
    return out


def _turn(phase: FloatArray) -> np.ndarray:
    """Return e^(iφ) − 1 without cancelling."""
    half = np.sin(0.5 * phase)
    out = np.empty(phase.shape, dtype=complex)
    out.real, out.imag = -2.0 * half * half, 2.0 * half * np.cos(0.5 * phase)
    return out


def _grid(number: int) -> tuple[int, float]:
    """Return the number of cells M and the Gaussian's τ in e^(−x²/4τ), with τ·M·(M − 2N) = 36."""
    from scipy import fft

    cells = int(fft.next_fast_len(_FINE * number, real=True))
    return cells, 36.0 / (float(cells) * (cells - 2.0 * number))


def _grid_sums(weight: FloatArray, loss: FloatArray, spacing: float, number: int) -> np.ndarray:
    from scipy import fft

    cells, tau = _grid(number)
    cell = 2.0 * math.pi / cells
    grid = np.zeros(cells)
    around = np.arange(1 - _HALF, _HALF + 1)
    for start in range(0, loss.size, _CHUNK):
        place = spacing * loss[start : start + _CHUNK] / cell
        first = np.floor(place).astype(np.intp)
        bell = np.exp(-(cell * cell / (4.0 * tau)) * ((place - first)[:, None] - around) ** 2)
        bell *= weight[start : start + _CHUNK, None]
        # The losses come in order, so that a chunk of them meets few cells.
        low = int(first.min()) - _HALF
        part = np.bincount((first[:, None] - low + around).ravel(), weights=bell.ravel())
        index = (low + np.arange(part.size)) % cells
        if part.size <= cells:
            grid[index] += part
        else:
            grid += np.bincount(index, weights=part, minlength=cells)
    n = np.arange(number)
    undo = cell / math.sqrt(4.0 * math.pi * tau) * np.exp(tau * n * n)
    return np.asarray(np.conj(fft.rfft(grid)[:number]) * undo - float(weight.sum()))


def _grid_error(number: int, losses: int) -> float:
    """Return a bound on the error of `_grid_sums` relative to Σ w.

    The grid's coefficient n has those at n + m·M mixed in, which are smaller by
    e^(−τ·((M−N)² − N²)) = e^−36 at least. The bells lack their ends beyond 14 cells. Additions into
    one cell cost a unit in the last place each. At every stage of the fast transform, what feeds
    one of its results adds up to no more than the grid does: some 8e-16 of that for each stage.
    """
    cells, tau = _grid(number)
    cell = 2.0 * math.pi / cells
    undo = cell / math.sqrt(4.0 * math.pi * tau) * math.exp(tau * number * number)
    ends = 2.2 * math.exp(-((cell * _HALF) ** 2) / (4.0 * tau))
    total = 1.0 + math.sqrt(4.0 * math.pi * tau) / cell  # Σ of a bell over its cells
    added = 1.2e-16 * (min(_CHUNK, losses) + losses / _CHUNK)
    return 2.1 * math.exp(-36.0) + undo * (ends + total * (added + 8e-16 * math.log2(cells)))

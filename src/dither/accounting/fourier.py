"""Fourier sums over scattered losses: Σ_k w_k·(e^(i·n·h·L_k) − 1) for n = 0 … N−1.

Directly, that is N products for each loss. Where that is many, losses that turn little at every n
come from their moments; both are exact relative to the sum's own size. The other losses are spread
over a fine grid by a Gaussian, whose transform is divided out again, at a cost that hardly depends
on N. Its error is bounded relative to their Σ w.
"""

import math
from typing import NamedTuple

import numpy as np

from dither.types import FloatArray

_MOST_EXPONENTIALS = 4e6  # at once, for the sake of memory
_DIRECT = 1e4  # products for one row up to which the direct sum is taken
_LITTLE = 0.3  # radians that a loss may turn to be summed by its moments
_MOMENTS = 12
_PAIRWISE = 64  # additions one after the other in a sum by numpy, which adds in pairs
_CHUNK = 1024  # losses that are spread at a time
_BLOCK = 64  # losses of those that are added one after the other
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
        error: what spreading over a grid adds to the errors of each row.
    """

    values: np.ndarray
    additions: int
    error: FloatArray


def fourier_excess(weight: FloatArray, loss: FloatArray, spacing: float, number: int) -> Sums:
    """Return the sums by whichever way is cheaper."""
    losses = loss.shape[1]
    weight = np.ascontiguousarray(weight)  # or else numpy does not add in pairs
    if float(losses) * number <= _DIRECT:
        return Sums(_direct_sums(weight, loss, spacing, number), losses, np.zeros(len(loss)))
    turn = spacing * (number - 1) * loss
    is_little = np.abs(turn) <= _LITTLE
    values = _moment_sums(np.where(is_little, weight, 0.0), turn, number)
    spread = np.zeros(len(loss))
    for row, rest in enumerate(~is_little):
        w, x = weight[row, rest], loss[row, rest]
        if w.size:
            values[row] += _grid_sums(w, x, spacing, number)
            turns = spacing * float(np.ptp(x)) / (2.0 * math.pi)
            spread[row] = float(w.sum()) * _grid_error(number, w.size, turns)
    values[:, 0] = 0.0
    return Sums(values, _PAIRWISE, spread)


def _moment_sums(weight: FloatArray, turn: FloatArray, number: int) -> np.ndarray:
    """Return Σ_k w_k·(e^(i·t_k·u) − 1), u = n/(number − 1), by the series up to the 12th power.

    With |t| ≤ 0.3 what is left out is below 0.3^12/13!, or 1e-16, of the sum of w·|t|·u.
    """
    u = np.linspace(0.0, 1.0, number)
    terms, power = [], weight
    for m in range(1, _MOMENTS + 1):
        power = power * turn / m
        terms.append(power.sum(axis=1)[:, None])
    out = np.empty((len(weight), number), dtype=complex)
    square = -u * u
    out.real, out.imag = (
        square * _polynomial(terms[1::2], square),
        u * _polynomial(terms[::2], square),
    )
    return out


def _polynomial(coefficients: list[FloatArray], x: FloatArray) -> FloatArray:
    value = np.zeros_like(x)
    for each in reversed(coefficients):
        value = each + value * x
    return value


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
        width = int(first.max()) - low + _HALF + 1
        at = first - low + width * (np.arange(first.size) // _BLOCK)
        part = np.bincount((at[:, None] + around).ravel(), weights=bell.ravel())
        part = np.pad(part, (0, -part.size % width)).reshape(-1, width).sum(axis=0)
        index = (low + np.arange(part.size)) % cells
        if part.size <= cells:
            grid[index] += part
        else:
            grid += np.bincount(index, weights=part, minlength=cells)
    n = np.arange(number)
    undo = cell / math.sqrt(4.0 * math.pi * tau) * np.exp(tau * n * n)
    return np.asarray(np.conj(fft.rfft(grid)[:number]) * undo - float(weight.sum()))


def _grid_error(number: int, losses: int, turns: float) -> float:
    """Return a bound on the error of `_grid_sums` relative to Σ w.

    ``turns`` is how often the losses go around the grid.

    The grid's coefficient n has those at n + m·M mixed in, which are smaller by
    e^(−τ·((M−N)² − N²)) = e^−36 at least. The bells lack their ends beyond 14 cells. Additions into
    one cell cost a unit in the last place each, and go in blocks. At every stage of the fast
    transform, what feeds one of its results adds up to no more than the grid does: some 8e-16 of
    that for each stage.
    """
    cells, tau = _grid(number)
    cell = 2.0 * math.pi / cells
    undo = cell / math.sqrt(4.0 * math.pi * tau) * math.exp(tau * number * number)
    ends = 2.2 * math.exp(-((cell * _HALF) ** 2) / (4.0 * tau))
    total = 1.0 + math.sqrt(4.0 * math.pi * tau) / cell  # Σ of a bell over its cells
    additions = min(_BLOCK, losses) + _CHUNK / _BLOCK + losses / _CHUNK + turns + 2.0
    return 2.1 * math.exp(-36.0) + undo * (
        ends + total * (1.2e-16 * additions + 8e-16 * math.log2(cells))
    )

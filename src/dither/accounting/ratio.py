"""The likelihood ratio w of one noisy step, for one record and for a group of k records.

With μ = 1/z and B_j the probability that j of k records are drawn, each independently with
probability q,

    w(x) = Σ_j B_j·e^(j·μ·x − j²·μ²/2)

is the density of Σ_j B_j·N(jμ, 1) relative to N(0, 1): what a step shows of a group, at worst (see
`dither.accounting.group`). For k = 1 it is 1 − q + q·e^(μx − μ²/2).

In ζ = e^(μx) it is the polynomial Σ_j C(k,j)·(q·ζ)^j·(1−q)^(k−j) with its coefficients multiplied
by e^(−j²μ²/2). Those multipliers leave all zeros of a polynomial real and negative if they were so
before (Laguerre). So w is a product of k factors like that of one record, 1 − s + s·e^(iμa) times a
positive number at x + ia, and has no zero with |Im x| < π/μ; at x the shares s add up to the mean
of j under the weights B_j·e^(j·μ·x − j²·μ²/2).
"""

import functools
import math
from typing import Literal, NamedTuple

import numpy as np

from dither.types import FloatArray

_HUGE = 50.0  # y from which log(1 − q + q·e^y) is y plus something
Direction = Literal["poisson-remove", "poisson-add", "fixed"]


class Group(NamedTuple):
    """A direction of the adjacency relation for groups.

    Attributes:
        direction: "poisson-remove" or "poisson-add".
        size: k, how many records are removed or added together.
    """

    direction: Direction
    size: int


Kind = Direction | Group


def parts(kind: Kind) -> Group:
    """Return the direction and the number of records of a kind."""
    return kind if isinstance(kind, Group) else Group(kind, 1)


class Ratio(NamedTuple):
    """The likelihood ratio at some points.

    Attributes:
        excess: w − 1.
        log: log w.
    """

    excess: FloatArray
    log: FloatArray


def record_ratio(y: FloatArray, q: float) -> Ratio:
    """Return 1 − q + q·e^y, exact for tiny q and for huge y."""
    if y.max(initial=0.0) <= _HUGE:
        excess = q * np.expm1(y)
        return Ratio(excess, np.log1p(excess))
    return Ratio(q * np.expm1(np.minimum(y, 600.0)), log_record_ratio(y, q))


def log_record_ratio(y: FloatArray, q: float) -> FloatArray:
    """Return log(1 − q + q·e^y), exact for tiny q and for huge y."""
    small: FloatArray = np.log1p(q * np.expm1(np.minimum(y, _HUGE)))
    if y.max(initial=0.0) <= _HUGE:
        return small
    large = y + np.log(q + (1.0 - q) * np.exp(-np.maximum(y, _HUGE)))
    return np.where(y > _HUGE, large, small)


def ratio(mus: FloatArray, x: FloatArray, q: float, size: int) -> Ratio:
    """Return w at the points of every μ, one row per μ.

    Where it is near 1 its excess is the sum of B_j·(e^y_j − 1), in which nothing cancels.
    """
    if size == 1:
        return record_ratio(mus * x - 0.5 * mus * mus, q)
    mus, x = np.broadcast_arrays(mus, x)
    log_b = log_binomial(size, q)
    top = functools.reduce(np.maximum, (b + _y(j, mus, x) for j, b in enumerate(log_b)))
    total = np.zeros_like(top)
    for j, b in enumerate(log_b):
        total += np.exp(b + _y(j, mus, x) - top)
    log = top + np.log(total)
    excess = np.expm1(np.minimum(log, 600.0))
    near = np.abs(log) < 0.5
    mus, x = mus[near], x[near]
    close = np.zeros_like(x)
    for j, b in enumerate(log_b):
        y = _y(j, mus, x)
        small = math.exp(b) * np.expm1(np.minimum(y, 1.0))
        close += np.where(y < 1.0, small, np.exp(b + y) - math.exp(b))
    excess[near], log[near] = close, np.log1p(close)
    return Ratio(excess, log)


def _y(j: int, mus: FloatArray, x: FloatArray) -> FloatArray:
    return j * mus * (x - 0.5 * j * mus)


def continued_ratio(
    mu: float, x: FloatArray, a: FloatArray, q: float, size: int
) -> tuple[FloatArray, FloatArray]:
    """Return log|w(x + ia)|, and |arg w(x + ia)| or for a group a bound on it: a row for each a.

    For a group μa is at most π/2. There the angle of 1 − s + s·e^(iμa) is at most 1.07·μa·s.
    """
    log_b = np.array(log_binomial(size, q))[:, None]
    j = np.arange(size + 1.0)[:, None]
    exponent = log_b + j * mu * (x - 0.5 * j * mu)
    shift = exponent.max(axis=0)
    terms = np.exp(exponent - shift)
    turn = mu * a[:, None] * j.T
    across, along = np.sin(turn) @ terms, np.cos(turn) @ terms
    if size == 1:
        angle = np.abs(np.arctan2(across, along))
    else:
        angle = 1.07 * mu * a[:, None] * (j * terms).sum(axis=0) / terms.sum(axis=0)
    with np.errstate(divide="ignore"):
        return np.log(np.hypot(across, along)) + shift, angle


@functools.lru_cache(maxsize=256)
def log_binomial(size: int, q: float) -> tuple[float, ...]:
    """Return log B_0 … log B_k, q < 1, each from B_j as an exact fraction.

    >>> [round(math.exp(b), 4) for b in log_binomial(2, 0.1)]
    [0.81, 0.18, 0.01]
    """
    top, bottom = q.as_integer_ratio()
    scale = size * (bottom.bit_length() - 1)
    out = []
    for j in range(size + 1):
        exact = math.comb(size, j) * top**j * (bottom - top) ** (size - j)
        bits = exact.bit_length()
        # The fraction is in [1/2, 1), so that the two logarithms do not cancel.
        fraction = (exact << 64 >> bits) / 2**64
        out.append(math.log(fraction) + (bits - scale) * math.log(2.0) if exact else -math.inf)
    return tuple(out)


def power_excess(found: Ratio, log_weight: FloatArray, kappa: float) -> FloatArray:
    """Return e^log_weight·(w^κ − 1 − κ·(w − 1)) without cancelling.

    It is never negative for κ ≥ 1 or κ ≤ 0. Where w is large the weight underflows long before the
    product does, so there it is multiplied in as a logarithm.
    """
    v, loss = found
    weight = np.exp(log_weight)
    near = np.abs(v) * (abs(kappa) + 8.0) < 0.03
    small = np.where(near, v, 0.0)
    series = np.ones_like(small)
    for k in (8, 7, 6, 5, 4, 3):
        series = 1.0 + series * small * (kappa - k + 1.0) / k
    series *= 0.5 * kappa * (kappa - 1.0) * small * small * weight
    if near.all():
        return series
    far = np.abs(kappa * loss) > 2.0
    # w^κ − 1 − κ·v, written as w·(w^(κ−1) − 1) − (κ−1)·v for κ > 0, where κ − 1 may be small.
    rest, factor = (kappa - 1.0, 1.0 + v) if kappa > 0.0 else (kappa, 1.0)
    excess = weight * (factor * np.expm1(np.where(far, 0.0, rest * loss)) - rest * v)
    if far.any():
        power = np.exp(np.minimum(log_weight + kappa * loss, 700.0))
        steep = (1.0 - kappa) * weight + kappa * np.exp(np.minimum(log_weight + loss, 700.0))
        line = np.where(loss > 30.0, steep, weight * (1.0 + kappa * v))
        excess = np.where(far, power - line, excess)
    return np.where(near, series, np.maximum(excess, 0.0))

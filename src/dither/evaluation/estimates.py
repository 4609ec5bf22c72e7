"""Estimates with 95 % intervals, from noisy sums alone.

Every metric here is a ratio, θ = A/B, of a noisy numerator and a noisy denominator, and its
interval is Fieller's: all θ for which A − θ·B is within 1.96 standard deviations of 0. The variance
is that of the noise, which is known, plus that of the sample, which is estimated from the noisy
sums without bias; negative counts are used as they are, since to set them to 0 would add up to a
bias. Where noise hides the denominator the interval is the whole range.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dither.types import FloatArray

WIDTH = 1.959963984540054
_COARSE, _FINE = np.linspace(0.0, 1.0, 401), np.linspace(-8.0, 8.0, 401)


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval.

    Attributes:
        value: the estimate.
        low: the lower end of the interval.
        high: the upper end.

    Example:
        >>> print(Estimate(0.8123, 0.7914, 0.8329))
        0.812 [0.791, 0.833]
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"

    def map(self, function: Callable[[float], float]) -> "Estimate":
        """Return the estimate of an increasing function."""
        return Estimate(function(self.value), function(self.low), function(self.high))


def ratio(
    numerator: float,
    denominator: float,
    variance: Callable[[FloatArray], FloatArray],
    *,
    low: float = 0.0,
    high: float = 1.0,
    allowance: float = 0.0,
) -> Estimate:
    """Return θ = A/B with Fieller's interval, within a range.

    Args:
        numerator: A.
        denominator: B.
        variance: θ → the variance of A − θ·B.
        low: the least θ.
        high: the largest.
        allowance: how far A − θ·B may be from 0 because of a bias.
    """
    A, B = numerator, denominator
    middle = float(np.clip(A / B, low, high)) if B > 0.0 else 0.5 * (low + high)
    theta = low + (high - low) * _COARSE
    if B > 0.0:  # an interval may be far narrower than the coarse grid
        deviation = float(np.sqrt(max(variance(np.array([middle]))[0], 0.0)) / B)
        close = np.clip(A / B + deviation * _FINE, low, high)
        theta = np.sort(np.concatenate([theta, close]))
    outside = np.maximum(np.abs(A - theta * B) - allowance, 0.0) ** 2
    outside -= WIDTH**2 * variance(theta)
    accepted = np.flatnonzero(outside <= 0.0)
    if not accepted.size:
        return Estimate(middle, middle, middle)
    first, last = int(accepted[0]), int(accepted[-1])
    left = _crossing(theta, outside, first - 1, first) if first > 0 else low
    right = _crossing(theta, outside, last + 1, last) if last + 1 < theta.size else high
    return Estimate(float(np.clip(middle, left, right)), left, right)


def _crossing(theta: FloatArray, outside: FloatArray, refused: int, accepted: int) -> float:
    share = outside[refused] / (outside[refused] - outside[accepted])
    return float(theta[refused] + share * (theta[accepted] - theta[refused]))


def share(part: FloatArray, rest: FloatArray, noise: float) -> Estimate:
    """Return which share of the records of some cells is in a part of them.

    The sample's variance is n·θ·(1 − θ), with the noisy number of records for n.

    Args:
        part: noisy counts of the part's cells.
        rest: noisy counts of the other cells.
        noise: standard deviation of the noise in each.

    Example:
        >>> print(share(np.array([450.0, 350.0]), np.array([150.0, 50.0]), 5.0))
        0.800 [0.772, 0.826]
    """
    inside, total = float(part.sum()), float(part.sum() + rest.sum())

    def variance(theta: FloatArray) -> FloatArray:
        in_counts = part.size * (1.0 - theta) ** 2 + rest.size * theta**2
        return np.asarray(max(total, 0.0) * theta * (1.0 - theta) + noise**2 * in_counts)

    return ratio(inside, total, variance)


def mean(
    values: FloatArray,
    counts: FloatArray,
    noise: float,
    *,
    high: float = 1.0,
    total: float | None = None,
    total_noise: float = 0.0,
    correction: float = 0.0,
    correction_noise: float = 0.0,
) -> Estimate:
    """Return the mean over records of a value that their cells have, or nearly have.

    Args:
        values: one per cell.
        counts: noisy counts of the cells.
        noise: standard deviation of the noise in each count.
        high: the largest value; the least is 0.
        total: the noisy sum over records, if it was released; ``values`` then serve for the
            variance of the sample only.
        total_noise: standard deviation of the noise in it.
        correction: else what is added to the sum, since records nearly have their cells' values.
        correction_noise: standard deviation of the noise in it.

    Example:
        >>> print(mean(np.array([0.0, 0.5]), np.array([600.0, 400.0]), 5.0))
        0.200 [0.184, 0.216]
    """
    size, first, second = (float(counts @ values**power) for power in range(3))

    def variance(theta: FloatArray) -> FloatArray:
        sample = np.maximum(second - 2.0 * theta * first + theta**2 * size, 0.0)
        if total is not None:
            return np.asarray(sample + total_noise**2 + noise**2 * counts.size * theta**2)
        of_noise = ((values[:, None] - theta) ** 2).sum(0)
        return np.asarray(sample + noise**2 * of_noise + correction_noise**2)

    numerator = first + correction if total is None else total
    return ratio(numerator, size, variance, high=high)


@dataclass(frozen=True)
class Sums:
    """Noisy sums over the records of one class, with their covariance.

    Attributes:
        values: the sums.
        covariance: of noise and of sums over a random number of records.
        counts: 1 for sums that are counts, which add up to the number of records, else 0.
    """

    values: FloatArray
    covariance: FloatArray
    counts: FloatArray


def mean_over_pairs(
    kernel: FloatArray, first: Sums, second: Sums, *, allowance: float = 0.0
) -> Estimate:
    """Return the mean of xᵀ·kernel·y over pairs of a record of one class and one of another.

    With x and y the noisy sums of the two classes, T = xᵀ·A·y with A = kernel − θ·(counts of x and
    y) has mean 0 at the true θ. Given the number of records per class x and y are independent, and
    Var T = E[yᵀAᵀ·Σ_x·A·y] + E[xᵀA·Σ_y·Aᵀx] − tr(A·Σ_y·Aᵀ·Σ_x). Sums over a fixed number of records
    have a smaller covariance than over a random one, by a term that vanishes at the true θ. Given
    y, the first term is the variance of T but for the signal in x, so neither of the first two
    alone is ever too large.

    Args:
        kernel: one row per sum of the first class, one column per sum of the second.
        first: x.
        second: y.
        allowance: as in `ratio`, for θ.
    """
    x, y, e, f = first.values, second.values, first.counts, second.counts
    S, R = first.covariance, second.covariance
    u, v, P, N = kernel @ y, kernel.T @ x, float(e @ x), float(f @ y)

    def variance(theta: FloatArray) -> FloatArray:
        of_x = u @ S @ u - 2.0 * theta * N * (e @ S @ u) + (theta * N) ** 2 * (e @ S @ e)
        of_y = v @ R @ v - 2.0 * theta * P * (f @ R @ v) + (theta * P) ** 2 * (f @ R @ f)
        trace = ((kernel @ R @ kernel.T) * S).sum()
        both = trace - 2.0 * theta * (f @ R @ kernel.T @ S @ e)
        both = both + theta**2 * (e @ S @ e) * (f @ R @ f)
        return np.asarray(np.maximum(np.maximum(of_x, of_y), of_x + of_y - both))

    return ratio(float(x @ u), P * N, variance, allowance=allowance * abs(P * N))

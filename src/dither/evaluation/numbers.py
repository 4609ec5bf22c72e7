"""Numbers: what a record adds to the release of a regressor, and what the release says."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dither.evaluation.cells import Metrics, add_up, on_grid, total
from dither.evaluation.estimates import Estimate, ratio
from dither.types import FloatArray

# Of the error u ∈ [0, 1] and the target t ∈ [−1, 1]: powers of u and of t, and a weight. The first
# four are the metrics, the others the variances of these.
_MOMENTS = (
    (1, 0, 1.0), (2, 0, 1.0), (0, 1, 1.0), (0, 2, 1.0),
    (4, 0, 0.5), (0, 3, 0.5), (0, 4, 0.5), (2, 1, 0.5), (2, 2, 0.5),
)  # fmt: skip
_WORST_R2 = -1.0


@dataclass(frozen=True)
class Numbers:
    """The release of a regressor.

    With the target clipped to its bounds and scaled to t ∈ [−1, 1], and the error clipped to
    ``error_bound`` and scaled to u ∈ [0, 1], a record adds 1 to the count, and to nine other sums
    w·(m − 1/2) for the moments m = u, u², t² (w = 1) and u⁴, t⁴, u²t² (w = 1/2), which are in
    [0, 1], and w·m/2 for m = t (w = 1) and t³, u²t (w = 1/2), which are in [−1, 1]. So each is at
    most w/2, and the norm of the record's contribution at most √(1 + 4/4 + 5/16) < 1.521.

    A record whose target is not a number adds nothing; a prediction that is not a number counts as
    an error of ``error_bound``. To add or to remove a record changes the sums by its contribution,
    hence by at most that norm. All terms are multiples of 2^(−20), and their sums exact. For users
    see `dither.evaluation.cells`.

    Attributes:
        low: the least target.
        high: the largest.
        error_bound: the largest error.
    """

    low: float
    high: float
    error_bound: float

    @property
    def norm(self) -> float:
        """The largest norm of a record's contribution."""
        return math.sqrt(1.0 + sum(w**2 for _, _, w in _MOMENTS) / 4.0)

    def sums(
        self,
        predictions: FloatArray,
        targets: FloatArray,
        owners: NDArray[np.int64] | None = None,
    ) -> FloatArray:
        """Return the sums of all contributions. Sensitive: no noise has been added.

        Args:
            predictions: one per record.
            targets: one per record.
            owners: the number of each row's user, if users are protected.
        """
        known = ~np.isnan(targets)
        y = np.clip(targets[known], self.low, self.high)
        error = np.abs(np.nan_to_num(predictions[known], nan=math.inf, posinf=math.inf) - y)
        u = np.minimum(error / self.error_bound, 1.0)
        t = np.clip((y - self._center) / self._half_range, -1.0, 1.0)
        features = [on_grid(w * _centred(u**i * t**j, j)) for i, j, w in _MOMENTS]
        owners, cell = None if owners is None else owners[known], np.zeros(len(y), np.int64)
        return np.concatenate(
            [add_up(cell, each, 1, owners) for each in (np.ones(len(y)), *features)]
        )

    def metrics(self, released: FloatArray, noise: float) -> Metrics:
        """Return what noisy sums say.

        Args:
            released: the sums with noise.
            noise: its standard deviation.
        """
        moments = _Moments(released, noise)
        E, n = self.error_bound, moments.sum({(0, 0): 1.0})
        mae = moments.mean({(1, 0): 1.0}, {(2, 0): 1.0}).map(lambda value: E * value)
        mse = moments.mean({(2, 0): 1.0}, {(4, 0): 1.0}).map(lambda value: E * E * value)
        return Metrics(
            records=total(np.array([n]), noise),
            mse=mse,
            rmse=mse.map(math.sqrt),
            mae=mae,
            r2=self._r2(moments),
        )

    def _r2(self, moments: "_Moments") -> Estimate:
        """Return R² = 1 − c, c the ratio of the errors' and the targets' sums of squares.

        In units of the error bound, with v = (t − m)²·(half range/error bound)², c is the mean of
        u² over that of v. The mean of targets m is taken as it was released.
        """
        n, k = moments.sum({(0, 0): 1.0}), (self._half_range / self.error_bound) ** 2
        worst = 1.0 - _WORST_R2
        if n <= 0.0:
            return Estimate(0.5 * (1.0 + _WORST_R2), _WORST_R2, 1.0)
        m = moments.sum({(0, 1): 1.0}) / n
        spread = {(0, 2): k, (0, 1): -2.0 * k * m, (0, 0): k * m * m}
        # The noise in m makes the sum of squares about it too small.
        squares = moments.sum(spread) + k * float(moments.variance({(0, 1): 1.0})) / n
        both = {(2, 2): k, (2, 1): -2.0 * k * m, (2, 0): k * m * m}
        fourth = {
            (0, 4): k * k, (0, 3): -4 * k * k * m, (0, 2): 6 * (k * m) ** 2,
            (0, 1): -4 * k * k * m**3, (0, 0): k * k * m**4,
        }  # fmt: skip
        second = [moments.sum(each) for each in ({(4, 0): 1.0}, both, fourth)]

        def variance(c: FloatArray) -> FloatArray:
            sample = second[0] - 2.0 * c * second[1] + c**2 * second[2]
            of_noise = moments.variance({(2, 0): 1.0}, spread, c)
            return np.asarray(np.maximum(sample, 0.0) + of_noise)

        c = ratio(moments.sum({(2, 0): 1.0}), squares, variance, high=worst)
        return Estimate(1.0 - c.value, 1.0 - c.high, 1.0 - c.low)

    @property
    def _center(self) -> float:
        return 0.5 * (self.low + self.high)

    @property
    def _half_range(self) -> float:
        return 0.5 * (self.high - self.low)


class _Moments:
    """Noisy sums of moments, and the noise in their combinations."""

    def __init__(self, released: FloatArray, noise: float) -> None:
        self._released, self._noise = released, noise
        # Rows: the moments, from what was released.
        self._rows = {(0, 0): np.eye(len(released))[0]}
        for k, (i, j, w) in enumerate(_MOMENTS, 1):
            row = np.zeros(len(released))
            row[k] = (1.0 if j % 2 == 0 else 2.0) / w
            row[0] = 0.5 if j % 2 == 0 else 0.0
            self._rows[i, j] = row

    def sum(self, combination: dict[tuple[int, int], float]) -> float:
        return float(self._row(combination) @ self._released)

    def variance(
        self,
        first: dict[tuple[int, int], float],
        second: dict[tuple[int, int], float] | None = None,
        factor: FloatArray | float = 0.0,
    ) -> FloatArray:
        """Return the variance of the noise in first − factor·second."""
        a = self._row(first)
        b = np.zeros_like(a) if second is None else self._row(second)
        return np.asarray(
            self._noise**2 * (a @ a - 2.0 * factor * (a @ b) + np.square(factor) * (b @ b))
        )

    def mean(
        self, value: dict[tuple[int, int], float], square: dict[tuple[int, int], float]
    ) -> Estimate:
        n, first, second = self.sum({(0, 0): 1.0}), self.sum(value), self.sum(square)

        def variance(theta: FloatArray) -> FloatArray:
            sample = np.maximum(second - 2.0 * theta * first + theta**2 * n, 0.0)
            return np.asarray(sample + self.variance(value, {(0, 0): 1.0}, theta))

        return ratio(first, n, variance)

    def _row(self, combination: dict[tuple[int, int], float]) -> FloatArray:
        return np.asarray(sum(factor * self._rows[key] for key, factor in combination.items()))


def _centred(moments: FloatArray, power_of_target: int) -> FloatArray:
    return np.asarray(moments - 0.5 if power_of_target % 2 == 0 else 0.5 * moments)

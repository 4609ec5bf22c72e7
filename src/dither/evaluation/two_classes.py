"""Two classes: what a record adds to the release, and what the release says about a model."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dither.evaluation.cells import (
    LOSS_WEIGHT,
    CalibrationBin,
    Metrics,
    OperatingPoint,
    add_up,
    base_log_loss,
    clipped_losses,
    on_grid,
    total,
)
from dither.evaluation.estimates import Estimate, Sums, mean, mean_over_pairs, share
from dither.types import FloatArray

_POSITION_WEIGHT = 0.5
_RANGE, _BEND = 4.4, 2.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(5)
_TIES = 0.35


@dataclass(frozen=True)
class TwoClasses:
    """The release of a classifier with two classes.

    A record of class y, whose positive class has the predicted logit s, adds

    - 1 to the count of its cell (y, bin of s);
    - b·t, b = 1/2, to another sum of the same cell, where t ∈ [−1/2, 1/2] is the position of s in
      its bin, on the scale below;
    - a·min(ℓ, L)/L, a² = 1/2, to the sum of log losses ℓ ≥ 0.

    All else it adds is 0, so that the norm of its contribution is at most √(1 + b²/4 + a²) = 5/4. A
    record whose label is not a class, or whose probability is not a number, adds nothing; one whose
    probability is outside of [0, 1] is clipped to it. The sums are the sums of these contributions,
    each of a record and of public numbers alone: to add or to remove a record changes them by its
    contribution, hence by at most 5/4. All terms are multiples of 2^(−20), so that the sums of up
    to 2^32 records are exact. For users see `dither.evaluation.cells`.

    Bins are equally wide on the scale asinh(s/2), which is that of logits near 0 and that of their
    logarithms far from it, from s = −8.9 to 8.9; the first and the last are open. With 20 bins they
    are 0.44 wide at s = 0, 0.8 at ±3 and 1.4 at ±6: fine enough for models that know little, and
    wide enough for rare classes and overconfident models. There is an edge at 0, so that the bin
    says which class is predicted: the one with the larger probability.

    The AUC counts pairs of a positive and a negative record by their bins, and pairs in the same
    bin by their mean positions, 1/2 + t̄₊ − t̄₋. That is exact if in each bin one of the classes is
    spread evenly, and nearly so if the scores spread over several bins. If more than 35 % of pairs
    are in one bin, they do not: then the interval is widened, the more the more there are.

    Attributes:
        bins: the number of bins, even.
        loss_bound: L.
    """

    bins: int
    loss_bound: float

    @property
    def norm(self) -> float:
        """The largest norm of a record's contribution."""
        return math.sqrt(1.0 + _POSITION_WEIGHT**2 / 4.0 + LOSS_WEIGHT**2)

    @property
    def width(self) -> float:
        """The width of a bin, on the scale asinh(logit/2)."""
        return _RANGE / self.bins

    @property
    def edges(self) -> FloatArray:
        """The logits between the bins."""
        return _logits(self._middles[1:] - 0.5 * self.width)

    @property
    def midpoints(self) -> FloatArray:
        """The logits in the middle of the bins; of the open ones as if they were as wide."""
        return _logits(self._middles)

    @property
    def _middles(self) -> FloatArray:
        return np.asarray(self.width * (np.arange(self.bins) - self.bins // 2 + 0.5))

    def sums(
        self,
        probabilities: FloatArray,
        classes: NDArray[np.int64],
        owners: NDArray[np.int64] | None = None,
    ) -> FloatArray:
        """Return the sums of all contributions. Sensitive: no noise has been added.

        Args:
            probabilities: records × 2.
            classes: 0 or 1 per record; −1 for a label that is not a class.
            owners: the number of each row's user, if users are protected.
        """
        known = (classes >= 0) & np.isfinite(probabilities[:, 1])
        p, y = np.clip(probabilities[known, 1], 0.0, 1.0), classes[known]
        with np.errstate(divide="ignore"):
            logits = np.log(p) - np.log1p(-p)
        bins = np.searchsorted(self.edges, logits)
        scaled = np.arcsinh(logits / _BEND)
        position = np.clip((scaled - self._middles[bins]) / self.width, -0.5, 0.5)
        cells, size = y * self.bins + bins, 2 * self.bins
        losses = clipped_losses(np.where(y == 1, p, 1.0 - p), self.loss_bound)
        owners = None if owners is None else owners[known]
        return np.concatenate([
            add_up(cells, np.ones(len(y)), size, owners),
            _POSITION_WEIGHT * add_up(cells, on_grid(position), size, owners),
            LOSS_WEIGHT * add_up(np.zeros_like(y), losses, 1, owners),
        ])  # fmt: skip

    def metrics(self, released: FloatArray, noise: float) -> Metrics:
        """Return what noisy sums say.

        Args:
            released: the sums with noise.
            noise: its standard deviation.
        """
        B = self.bins
        counts = released[: 2 * B]
        negative, positive = counts[:B], counts[B:]
        low, high = counts.reshape(2, 2, B // 2).transpose(1, 0, 2)  # by predicted class
        of_classes = [share(positive, negative, noise), share(negative, positive, noise)][::-1]
        right = np.concatenate([low[0], high[1]])
        middle = self.midpoints
        losses = np.concatenate([np.logaddexp(0.0, middle), np.logaddexp(0.0, -middle)])
        return Metrics(
            records=total(counts, noise),
            accuracy=share(right, np.concatenate([low[1], high[0]]), noise),
            balanced_accuracy=self._balanced(negative, positive, noise),
            auc=self._auc(released, noise),
            log_loss=mean(
                np.minimum(losses, self.loss_bound), counts, noise, high=self.loss_bound,
                total=float(released[-1]) * self.loss_bound / LOSS_WEIGHT,
                total_noise=noise * self.loss_bound / LOSS_WEIGHT,
            ),
            brier_score=self._brier(released, noise),
            class_shares=tuple(of_classes),
            base_log_loss=base_log_loss([negative, positive], noise),
            confusion_matrix=_confusion([low, high], noise),
            calibration=self._calibration(negative, positive, noise),
            roc=self._roc(negative, positive, noise),
        )  # fmt: skip

    def _balanced(self, negative: FloatArray, positive: FloatArray, noise: float) -> Estimate:
        """Return the mean of the two classes' accuracies: over pairs, of how many are right."""
        is_high, ones = self.midpoints > 0.0, np.ones(self.bins)
        kernel = np.add.outer(0.5 * is_high, 0.5 * ~is_high)
        sums = [Sums(each, np.diag(each + noise**2), ones) for each in (positive, negative)]
        return mean_over_pairs(kernel, *sums)

    def _auc(self, released: FloatArray, noise: float) -> Estimate:
        B = self.bins
        counts = released[: 2 * B].reshape(2, B)
        positions = released[2 * B : 4 * B].reshape(2, B) / _POSITION_WEIGHT
        before, same = np.tril(np.ones((B, B)), -1), np.eye(B)
        kernel = np.block([[before + 0.5 * same, -same], [same, np.zeros((B, B))]])
        negative, positive = (
            self._with_positions(*each, noise) for each in zip(counts, positions, strict=True)
        )
        size = counts.sum(1)
        allowance = 0.0
        if size.min() > 0.0:
            x, y = counts[1] / size[1], counts[0] / size[0]
            within = abs(float(positions[1] @ y / size[1] - positions[0] @ x / size[0]))
            ties = min(float(x @ y), 0.99)
            allowance = within * max(ties - _TIES, 0.0) / (1.0 - ties)
        return mean_over_pairs(kernel, positive, negative, allowance=allowance)

    def _with_positions(self, counts: FloatArray, positions: FloatArray, noise: float) -> Sums:
        """Return counts and positions; the variance of a position is about 1/12."""
        of_positions = counts / 12.0 + (noise / _POSITION_WEIGHT) ** 2
        covariance = np.block([
            [np.diag(counts + noise**2), np.diag(positions)],
            [np.diag(positions), np.diag(of_positions)],
        ])  # fmt: skip
        ones, zeros = np.ones(self.bins), np.zeros(self.bins)
        return Sums(np.append(counts, positions), covariance, np.append(ones, zeros))

    def _brier(self, released: FloatArray, noise: float) -> Estimate:
        """Return the mean of (p − y)², in each cell the best linear function of the position."""
        t, weights = 0.5 * _NODES, 0.5 * _WEIGHTS
        p = 1.0 / (1.0 + np.exp(-_logits(self._middles[:, None] + self.width * t)))
        errors = np.concatenate([p, 1.0 - p]) ** 2
        slopes = 12.0 * errors @ (weights * t)
        counts, positions = released[:-1].reshape(2, -1)
        return mean(
            errors @ weights, counts, noise,
            correction=float(slopes @ positions) / _POSITION_WEIGHT,
            correction_noise=noise * float(np.linalg.norm(slopes)) / _POSITION_WEIGHT,
        )  # fmt: skip

    def _calibration(
        self, negative: FloatArray, positive: FloatArray, noise: float
    ) -> tuple[CalibrationBin, ...]:
        ends = np.concatenate([[-np.inf], self.edges, [np.inf]])
        low, middle, high = (
            1.0 / (1.0 + np.exp(-s)) for s in (ends[:-1], self.midpoints, ends[1:])
        )
        return tuple(
            CalibrationBin(
                float(low[k]), float(high[k]), float(middle[k]),
                share(positive[k : k + 1], negative[k : k + 1], noise),
                float(positive[k] + negative[k]),
            )
            for k in range(self.bins)
        )  # fmt: skip

    def _roc(
        self, negative: FloatArray, positive: FloatArray, noise: float
    ) -> tuple[OperatingPoint, ...]:
        thresholds = 1.0 / (1.0 + np.exp(-self.edges))
        return tuple(
            OperatingPoint(
                float(thresholds[k - 1]),
                share(positive[k:], positive[:k], noise),
                share(negative[k:], negative[:k], noise),
            )
            for k in range(1, self.bins)
        )


def _logits(scaled: FloatArray) -> FloatArray:
    return np.asarray(_BEND * np.sinh(scaled))


def _confusion(by_prediction: list[FloatArray], noise: float) -> tuple[tuple[Estimate, ...], ...]:
    """Return the shares of all records by class and predicted class."""
    cells = {(c, p): by_prediction[p][c] for c in range(2) for p in range(2)}

    def of(wanted: tuple[int, int]) -> Estimate:
        rest = np.concatenate([counts for cell, counts in cells.items() if cell != wanted])
        return share(cells[wanted], rest, noise)

    return tuple(tuple(of((c, p)) for p in range(2)) for c in range(2))

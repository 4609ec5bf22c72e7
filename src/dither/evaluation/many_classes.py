"""More than two classes: what a record adds to the release, and what the release says."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dither.evaluation.cells import (
    LOSS_WEIGHT,
    CalibrationBin,
    Metrics,
    add_up,
    base_log_loss,
    clipped_losses,
    total,
)
from dither.evaluation.estimates import mean, share
from dither.types import FloatArray

_HIGHEST = 5.4
_BLOCK = 0.5**0.5


@dataclass(frozen=True)
class ManyClasses:
    """The release of a classifier with K > 2 classes.

    A record of class y, whose largest predicted probability p is that of class k, adds

    - 1/√2 to the cell (y, k) of the confusion matrix;
    - 1/√2 to the cell (y = k or not, bin of p);
    - a·min(ℓ, L)/L, a² = 1/2, to the sum of log losses ℓ ≥ 0.

    All else it adds is 0, so that the norm of its contribution is at most √(1/2 + 1/2 + a²) = √1.5.
    A record whose label is not a class, or one of whose probabilities is not a number, adds
    nothing; probabilities outside of [0, 1] are clipped to it. To add or to remove a record changes
    the sums by its contribution, hence by at most √1.5. Two blocks of K² and 2·bins cells have far
    less noise in their totals than one of K²·bins. For users see `dither.evaluation.cells`.

    Bins are equally wide on the scale of logits, from the logit of 1/K on; the last is open.

    Attributes:
        classes: K.
        bins: the number of bins.
        loss_bound: L.
    """

    classes: int
    bins: int
    loss_bound: float

    @property
    def norm(self) -> float:
        """The largest norm of a record's contribution."""
        return math.sqrt(2.0 * _BLOCK**2 + LOSS_WEIGHT**2)

    @property
    def edges(self) -> FloatArray:
        """The logits at which the bins begin."""
        lowest = -math.log(self.classes - 1.0)
        return np.linspace(lowest, _HIGHEST, self.bins, dtype=np.float64)

    def sums(
        self,
        probabilities: FloatArray,
        classes: NDArray[np.int64],
        owners: NDArray[np.int64] | None = None,
    ) -> FloatArray:
        """Return the sums of all contributions. Sensitive: no noise has been added.

        Args:
            probabilities: records × K.
            classes: 0 … K−1 per record; −1 for a label that is not a class.
            owners: the number of each row's user, if users are protected.
        """
        known = (classes >= 0) & np.isfinite(probabilities).all(1)
        p, y, K = np.clip(probabilities[known], 0.0, 1.0), classes[known], self.classes
        predicted = p.argmax(1)
        top = p.max(1)
        with np.errstate(divide="ignore"):
            bins = np.searchsorted(self.edges[1:], np.log(top) - np.log1p(-top))
        cells = np.where(y == predicted, 0, self.bins) + bins
        losses = clipped_losses(p[np.arange(len(y)), y], self.loss_bound)
        ones, owners = np.ones(len(y)), None if owners is None else owners[known]
        return np.concatenate([
            _BLOCK * add_up(y * K + predicted, ones, K * K, owners),
            _BLOCK * add_up(cells, ones, 2 * self.bins, owners),
            LOSS_WEIGHT * add_up(np.zeros_like(y), losses, 1, owners),
        ])  # fmt: skip

    def metrics(self, released: FloatArray, noise: float) -> Metrics:
        """Return what noisy sums say.

        Args:
            released: the sums with noise.
            noise: its standard deviation.
        """
        K, B, of_counts = self.classes, self.bins, noise / _BLOCK
        confusion = released[: K * K].reshape(K, K) / _BLOCK
        by_bin = released[K * K : -1].reshape(2, B) / _BLOCK
        is_right = np.eye(K, dtype=bool)
        right, wrong = confusion[is_right], confusion[~is_right]
        if by_bin.size < confusion.size:  # less noise in its totals
            right, wrong = by_bin
        rows, flat = [*confusion], confusion.ravel()
        return Metrics(
            records=total(np.concatenate([right, wrong]), of_counts),
            accuracy=share(right, wrong, of_counts),
            log_loss=mean(
                self._losses(), by_bin.ravel(), of_counts, high=self.loss_bound,
                total=float(released[-1]) * self.loss_bound / LOSS_WEIGHT,
                total_noise=noise * self.loss_bound / LOSS_WEIGHT,
            ),
            class_shares=tuple(
                share(rows[k], np.concatenate(rows[:k] + rows[k + 1 :]), of_counts)
                for k in range(K)
            ),
            base_log_loss=base_log_loss(rows, of_counts),
            confusion_matrix=tuple(
                tuple(
                    share(flat[j : j + 1], np.delete(flat, j), of_counts)
                    for j in range(K * y, K * y + K)
                )
                for y in range(K)
            ),
            calibration=self._calibration(by_bin, of_counts),
        )  # fmt: skip

    def _losses(self) -> FloatArray:
        """Return about the loss of each cell: what is left of a probability is spread evenly."""
        p = 1.0 / (1.0 + np.exp(-self._midpoints()))
        wrong = -np.log((1.0 - p) / (self.classes - 1.0))
        return np.asarray(np.minimum(np.concatenate([-np.log(p), wrong]), self.loss_bound))

    def _midpoints(self) -> FloatArray:
        edges = self.edges
        return np.asarray(edges + 0.5 * (edges[1] - edges[0]))

    def _calibration(self, by_bin: FloatArray, noise: float) -> tuple[CalibrationBin, ...]:
        right, wrong = by_bin
        low, middle = (1.0 / (1.0 + np.exp(-s)) for s in (self.edges, self._midpoints()))
        high = np.append(low[1:], 1.0)
        return tuple(
            CalibrationBin(
                float(low[k]), float(high[k]), float(middle[k]),
                share(right[k : k + 1], wrong[k : k + 1], noise), float(right[k] + wrong[k]),
            )
            for k in range(self.bins)
        )  # fmt: skip

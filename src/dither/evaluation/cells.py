"""What the releases of all models share: sums over records, or over users.

Where users are protected, a user's contribution is the mean of those of the user's rows that count,
each coordinate rounded towards 0 to a multiple of 2^(−20). A mean is no longer than the longest of
what it is of, and rounding towards 0 makes it no longer, so that the bound on the norm of a
record's contribution holds for a user's; and sums of the multiples are exact. However many rows a
user has, to add or to remove the user changes the sums by that one contribution, as users partition
the rows.

A share or a mean is then over users, each of whom weighs the same: what is expected of a row that
is drawn at random from a user who is. The sample's variance is still estimated from the rows, as if
each user had one, drawn at random: the square of a mean is at most the mean of the squares, so that
intervals of 95 % cover at least as often, and are wide where a user's rows differ. Pairs of rows of
one user, of which the AUC counts its share, move it by at most 1/(number of users).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dither.evaluation.estimates import WIDTH, Estimate, mean
from dither.types import FloatArray

LOSS_WEIGHT = 0.5**0.5
"""a: what a record of the largest loss adds to the sum of losses; a record adds 1 to its cell."""

_GRID = 2.0**20


@dataclass(frozen=True)
class CalibrationBin:
    """Records of one bin of the predicted probability; of users, their shares of rows.

    Attributes:
        low: the least probability of the bin.
        high: the largest.
        predicted: the one in its middle, on the scale of logits.
        observed: how many of the records are of the class that the probability is of.
        records: the noisy number of records; it may be negative.

    Example:
        >>> CalibrationBin(0.5, 0.6, 0.55, Estimate(0.5, 0.4, 0.6), 91.3).observed.value
        0.5
    """

    low: float
    high: float
    predicted: float
    observed: Estimate
    records: float


@dataclass(frozen=True)
class OperatingPoint:
    """A point of the ROC curve.

    Attributes:
        threshold: records with a larger probability are predicted positive.
        true_positive_rate: the share of positive records that are.
        false_positive_rate: the share of negative records that are.

    Example:
        >>> point = OperatingPoint(0.5, Estimate(0.8, 0.7, 0.9), Estimate(0.2, 0.1, 0.3))
        >>> print(point.true_positive_rate)
        0.800 [0.700, 0.900]
    """

    threshold: float
    true_positive_rate: Estimate
    false_positive_rate: Estimate


@dataclass(frozen=True)
class Metrics:
    """What a release says about a model; None where it does not say it.

    Where users are protected, all shares and means are over users, each of whom weighs the same,
    whatever number of rows they have.

    Attributes:
        records: the number of records, or of users, that were counted.
        accuracy: the share of records whose class has the largest probability.
        balanced_accuracy: the mean of the accuracies of both classes; two classes only.
        auc: the probability that a positive record has a larger score than a negative one; two
            classes only.
        log_loss: mean of min(log loss, ``loss_bound``).
        brier_score: mean squared error of the positive class' probability; two classes only.
        class_shares: the share of each class.
        base_log_loss: log loss of a model that always predicts these shares.
        confusion_matrix: the share of records by class (rows) and predicted class (columns).
        calibration: of the positive class, or of the predicted class if there are more than two.
        roc: the ROC curve, thresholds ascending; two classes only.
        mse: mean squared error, of regressors.
        rmse: its root.
        mae: mean absolute error.
        r2: R²; below −1 it is shown as −1.
    """

    records: Estimate
    accuracy: Estimate | None = None
    balanced_accuracy: Estimate | None = None
    auc: Estimate | None = None
    log_loss: Estimate | None = None
    brier_score: Estimate | None = None
    class_shares: tuple[Estimate, ...] = ()
    base_log_loss: Estimate | None = None
    confusion_matrix: tuple[tuple[Estimate, ...], ...] = ()
    calibration: tuple[CalibrationBin, ...] = ()
    roc: tuple[OperatingPoint, ...] = ()
    mse: Estimate | None = None
    rmse: Estimate | None = None
    mae: Estimate | None = None
    r2: Estimate | None = None


def on_grid(values: FloatArray) -> FloatArray:
    """Round to multiples of 2^(−20), whose sums are exact."""
    return np.asarray(np.rint(values * _GRID) / _GRID)


def add_up(
    cells: NDArray[np.int64],
    values: FloatArray,
    size: int,
    owners: NDArray[np.int64] | None,
) -> FloatArray:
    """Return the sum in each cell of what rows add, or of what users add.

    Args:
        cells: which cell each row adds to.
        values: what it adds, multiples of 2^(−20).
        size: the number of cells.
        owners: the number of each row's user; None adds up rows.

    Example:
        >>> cells = np.array([0, 1, 1, 1])
        >>> add_up(cells, np.ones(4), 2, None), add_up(cells, np.ones(4), 2, np.array([0, 0, 1, 1]))
        (array([1., 3.]), array([0.5, 1.5]))
    """
    if owners is None:
        return np.asarray(np.bincount(cells, values, minlength=size), np.float64)
    pairs, place = np.unique(owners * size + cells, return_inverse=True)
    users, cells = np.divmod(pairs, size)
    means = np.bincount(place, values, minlength=pairs.size) / np.bincount(owners)[users]
    sums = np.bincount(cells, np.trunc(means * _GRID) / _GRID, minlength=size)
    return np.asarray(sums, np.float64)


def clipped_losses(probabilities: FloatArray, bound: float) -> FloatArray:
    """Return min(−log p, L)/L, from 0 to 1."""
    with np.errstate(divide="ignore"):
        return on_grid(np.minimum(-np.log(probabilities), bound) / bound)


def total(counts: FloatArray, noise: float) -> Estimate:
    """Return the number of records or users; of it alone the noise is all that is not known."""
    found, around = float(counts.sum()), WIDTH * noise * counts.size**0.5
    return Estimate(max(found, 0.0), max(found - around, 0.0), max(found + around, 0.0))


def base_log_loss(counts: Sequence[FloatArray], noise: float) -> Estimate:
    """Return the log loss of a model that always predicts the shares of the classes.

    Its derivative with respect to the shares is that of the mean of −log share with the estimated
    shares held fixed, so that both have the same interval to the first order.

    Args:
        counts: noisy counts of the cells of each class.
        noise: standard deviation of the noise in each.
    """
    sizes = np.maximum([each.sum() for each in counts], 1.0)
    logs = -np.log(sizes / sizes.sum())
    values = np.concatenate(
        [np.full(len(each), log) for each, log in zip(counts, logs, strict=True)]
    )
    return mean(values, np.concatenate(counts), noise, high=math.log(len(counts)))

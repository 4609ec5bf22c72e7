"""What a fit derives from the private data without noise, and what it then claims.

Bounds and classes that are not given are derived from the data. Features may have been scaled by
statistics of the private records themselves: a scaler that was fitted on the records, in a pipeline
or by hand, leaves columns that have mean 0 and variance 1 to rounding, or extremes that agree over
all columns. Every rule asks for what data in their own units do not show, nor data scaled by
constants: images divided by 255, one-hot columns, clipped values. A scaler that leaves no certain
sign is not detected.
"""

import warnings
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.sparsefuncs import mean_variance_axis, min_max_axis

from dither.types import FloatArray, PrivacyBound
from dither.validate import InvalidValueError

_CHUNK, _SAMPLE = 4096, 1000
_ROUNDING = 1e-6
_DISTINCT = 20
_TIES = 0.05
_EXTREMES, _SHARE = 8, 0.7
"""How many extremes one record alone must attain, and which share of all. Where public bounds cut
off two records on average, one alone is left by chance for a quarter of the extremes."""

_Mask = NDArray[np.bool_]


class PrivacyLeakWarning(UserWarning):
    """Something that should be public was derived from the private data: ε does not cover it.

    Example:
        >>> warnings.simplefilter("error", PrivacyLeakWarning)  # fail instead of claiming no ε
    """


class Leaks:
    """The leaks of one fit.

    Attributes:
        descriptions: what was derived from the private data, each as a clause.
    """

    def __init__(self) -> None:
        self.descriptions: list[str] = []
        self._remedies: list[str] = []

    def add(self, what: str, remedy: str) -> None:
        """Add a leak, and how to avoid it."""
        self.descriptions.append(what)
        self._remedies.append(remedy)

    def warn(self, *, stacklevel: int) -> None:
        """Warn of every leak, at the line that called ``fit``.

        `check_scaling` adds leaks of scaled features; `feature_scaling`, `target_scaling` and
        `encode_classes` in ``bounds.py`` add those of bounds and classes.

        Args:
            stacklevel: as `warnings.warn` counts, from the caller of this method.
        """
        for what, remedy in zip(self.descriptions, self._remedies, strict=True):
            warnings.warn(
                f"{what} without noise, so that no ε is proven: {remedy}",
                PrivacyLeakWarning,
                stacklevel=stacklevel + 1,
            )

    def check_ledger(self, ledger: object) -> None:
        """Raise if a fit without a proven ε would be written to a ledger."""
        if self.descriptions and ledger is not None:
            raise InvalidValueError(
                f"ledger must be None for a fit that claims no ε, got {str(ledger)!r}: "
                f"{self.descriptions[0]}, so that the ledger's total would not be an upper bound"
            )

    def qualify(self, bound: PrivacyBound) -> PrivacyBound:
        """Return the bound, as an estimate if there were leaks."""
        return replace(bound, is_upper_bound=False, lower=None) if self.descriptions else bound


def check_scaling(X: Any, leaks: Leaks, *, of: str = "features") -> None:
    """Add a leak if the features were scaled by statistics of these records.

    Args:
        X: as for `fitted_statistics`.
        leaks: where to add it.
        of: what the columns are.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        statistics = fitted_statistics(X)
    if statistics is not None:
        leaks.add(
            f"the {of} were scaled by their own {statistics}",
            f"leave the {of} in their own units and give bounds, scale them by public constants, "
            "or fit the scaler on public data",
        )


def fitted_statistics(X: Any) -> str | None:
    """Return the statistics of these records that the columns were scaled by, if that is certain.

    Args:
        X: records × features, dense with any number of axes, or sparse.
    """
    X = X.reshape(len(X), -1) if isinstance(X, np.ndarray) else X
    columns = _columns_of(X)
    has_unit_variance = columns.has_unit_variance
    if (has_unit_variance & (np.abs(columns.mean) <= _ROUNDING)).any():
        return "means and variances"
    if has_unit_variance.sum() >= max(2.0, columns.is_fractional.sum() / 2.0):
        return "variances"
    numeric = np.flatnonzero(columns.is_numeric)
    if numeric.size < 2:
        return None
    if isinstance(X, np.ndarray) and _has_unit_quartiles(X, numeric):
        return "medians and quartiles"
    return _extreme_statistics(X, columns, numeric)


@final
@dataclass(frozen=True, eq=False)
class _Columns:
    """What one pass over the records shows of every column.

    Attributes:
        records: number of records.
        mean: means.
        variance: variances, divided by the number of records.
        low: minima.
        high: maxima.
        is_fractional: whether a sample has a value with more than three decimals, as scaled data
            have: counts, codes and rounded measurements have none.
        is_numeric: whether the sample also has many distinct values.
    """

    records: int
    mean: FloatArray
    variance: FloatArray
    low: FloatArray
    high: FloatArray
    is_fractional: _Mask
    is_numeric: _Mask

    @property
    def has_unit_variance(self) -> _Mask:
        """Whether columns have variance 1 to rounding, divided by n, or by n − 1 as in pandas."""
        unbiased = self.variance * self.records / max(self.records - 1.0, 1.0)
        is_unit = [np.abs(each - 1.0) <= _ROUNDING for each in (self.variance, unbiased)]
        return np.asarray((is_unit[0] | is_unit[1]) & self.is_fractional)


def _columns_of(X: Any) -> _Columns:
    n = X.shape[0]
    kinds = _kinds_of_values(X[:: -(-n // _SAMPLE)])
    if not isinstance(X, np.ndarray):
        mean, variance = mean_variance_axis(X, axis=0)
        low, high = min_max_axis(X, axis=0)
        return _Columns(n, mean, variance, low, high, *kinds)
    total, squares = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for start in range(0, n, _CHUNK):
        part = X[start : start + _CHUNK].astype(np.float64)
        total += part.sum(axis=0)
        squares += np.einsum("ij,ij->j", part, part)
    mean = total / n
    # Exact enough for means near 0 and variances near 1; others do not matter.
    return _Columns(n, mean, squares / n - mean**2, X.min(axis=0), X.max(axis=0), *kinds)


def _kinds_of_values(sample: Any) -> tuple[_Mask, _Mask]:
    """Return which columns are fractional, and which of them numeric."""
    entries = sparse.coo_array(sample)
    order = np.lexsort((entries.data, entries.col))
    column, value = entries.col[order], entries.data[order].astype(np.float64)
    is_new = np.ones(column.size, bool)
    is_new[1:] = (np.diff(column) != 0) | (np.diff(value) != 0.0)
    distinct = np.bincount(column[is_new], minlength=sample.shape[1])
    thousandths = 1000.0 * value
    has_more = np.abs(thousandths - np.rint(thousandths)) > 0.01
    is_fractional = np.bincount(column[has_more], minlength=sample.shape[1]) > 0
    return is_fractional, is_fractional & (distinct > _DISTINCT)


def _has_unit_quartiles(X: FloatArray, numeric: NDArray[np.intp]) -> bool:
    """Return whether most numeric columns have median 0 and quartiles at a distance of 1."""
    first, median, third = _quartiles(X[:: -(-len(X) // _SAMPLE), numeric])
    is_candidate = (np.abs(median) < 0.2) & (np.abs(third - first - 1.0) < 0.4)
    if is_candidate.sum() < max(2.0, numeric.size / 2.0):
        return False
    values = X[:, numeric[is_candidate]]
    first, median, third = _quartiles(values)
    is_unit = (np.abs(median) <= _ROUNDING) & (np.abs(third - first - 1.0) <= _ROUNDING)
    # Where many records are at the median, as at 0 in images, both can be so by themselves.
    is_unit &= (np.abs(values) <= _ROUNDING).mean(axis=0) <= max(_TIES, 1.0 / len(X))
    return bool(is_unit.sum() >= max(2.0, numeric.size / 2.0))


def _quartiles(values: FloatArray) -> FloatArray:
    return np.asarray(np.percentile(values, [25.0, 50.0, 75.0], axis=0))


def _extreme_statistics(X: Any, columns: _Columns, numeric: NDArray[np.intp]) -> str | None:
    """Return the extremes that all numeric columns have in common, if single records have them.

    Values that were clipped to public bounds have extremes in common, too, but several records are
    there. One record alone at most of the extremes is what a fitted scaler leaves.
    """
    low, high = columns.low[numeric], columns.high[numeric]
    near = (1e-6 if X.dtype == np.float32 else 1e-12) * float(np.max(high - low))
    has_same_range = bool(np.ptp(low) <= near and np.ptp(high) <= near)
    has_same_size = bool((np.abs(np.maximum(high, -low) - 1.0) <= near).all())
    if not (has_same_range or has_same_size):
        return None
    at_low, at_high = (_count_near(X, numeric, values, near) == 1 for values in (low, high))
    if has_same_range and _are_most(np.concatenate([at_low, at_high])):
        return "minima and maxima"
    if has_same_size and _are_most(np.where(high >= -low, at_high, at_low)):
        return "maximum absolute values"
    return None


def _are_most(is_single: _Mask) -> bool:
    return bool(is_single.sum() >= max(_EXTREMES, _SHARE * is_single.size))


def _count_near(
    X: Any, numeric: NDArray[np.intp], values: FloatArray, near: float
) -> NDArray[np.intp]:
    """Return how many records are at a given value, to rounding, in each numeric column."""
    if isinstance(X, np.ndarray):
        counts = np.zeros(numeric.size, np.intp)
        for start in range(0, len(X), _CHUNK):
            part = X[start : start + _CHUNK, numeric]
            counts += (np.abs(part - values) <= near).sum(axis=0)
        return counts
    entries = sparse.coo_array(X)
    wanted = np.full(X.shape[1], np.nan)
    wanted[numeric] = values
    is_near = np.abs(entries.data - wanted[entries.col]) <= near
    return np.bincount(entries.col[is_near], minlength=X.shape[1])[numeric]

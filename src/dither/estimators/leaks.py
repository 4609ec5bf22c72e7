"""What a fit derives from the private data without noise, and what it then claims.

Bounds and classes that are not given are derived from the data. Features may have been scaled by a
scaler that was fitted on the private records, in a pipeline or by hand: then columns have mean 0
and variance 1 to rounding, median 0 and quartiles at a distance of 1, or extremes that agree over
all columns. Data in their own units do not show this, nor data that were scaled by constants,
imputed with constants, encoded as one-hot columns or clipped. A scaler that leaves no certain sign
is not detected.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy import sparse

from dither.types import FloatArray, PrivacyBound
from dither.validate import InvalidValueError

_SAMPLE, _COLUMNS, _VALUES = 1000, 64, 2**24
"""Records that show what kind of values a column has; the most columns and values to look at."""

_ROUNDING = 1e-6
_DISTINCT, _TIES = 20, 0.05
_EXTREMES, _SHARE = 8, 0.7
"""How many extremes one record alone must attain, and which share of all. Where public bounds cut
off two records on average, one alone is left by chance for a quarter of the extremes."""


_DERIVED, _SCALED = " were derived from the private data", " were scaled by their own "


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
        """Warn once of all leaks, at the line that called ``fit``.

        `check_scaling` adds leaks of scaled features; `feature_scaling`, `target_scaling` and
        `encode_classes` in ``bounds.py`` add those of bounds and classes.

        Args:
            stacklevel: as `warnings.warn` counts, from the caller of this method.
        """
        if self.descriptions:
            warnings.warn(
                f"{', and '.join(self.descriptions)} without noise, so that no ε is proven: "
                f"{'; '.join(self._remedies)}",
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


def derived_values(descriptions: Sequence[str]) -> tuple[str, ...]:
    """Return what was derived from the private data, from the clauses of `Leaks`.

    Example:
        >>> derived_values(["the features were scaled by their own means and variances"])
        ('the means and variances of the features',)
    """

    def value(description: str) -> str:
        columns, scaled, statistics = description.partition(_SCALED)
        return f"the {statistics} of {columns}" if scaled else description.removesuffix(_DERIVED)

    return tuple(map(value, descriptions))


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
            f"the {of}{_SCALED}{statistics}",
            f"leave the {of} in their own units and give bounds, scale them by public constants, "
            "or fit the scaler on public data",
        )


def fitted_statistics(X: Any) -> str | None:
    """Return the statistics of these records that the columns were scaled by, if that is certain.

    Args:
        X: records × features, dense with any number of axes, or sparse in CSR format.
    """
    n = X.shape[0]
    X = X.reshape(n, -1) if isinstance(X, np.ndarray) else X
    step = -(-n // _SAMPLE)
    sample = sparse.coo_array(X[::step])
    # Scaled values have more than three decimals; counts, codes and rounded measurements have not.
    thousandths = 1000.0 * sample.data.astype(np.float64)
    columns = np.unique(sample.col[np.abs(thousandths - np.rint(thousandths)) > 0.01])
    chosen = X[:, columns[: max(2, min(_COLUMNS, _VALUES // n))]]
    values = chosen if isinstance(X, np.ndarray) else chosen.toarray()
    variance = values.var(axis=0, dtype=np.float64)
    # Divided by n, or by n − 1 as in pandas.
    is_unit = (
        np.minimum(np.abs(variance - 1.0), np.abs(variance * n / (n - 1.0) - 1.0)) <= _ROUNDING
    )
    if (is_unit & (np.abs(values.mean(axis=0, dtype=np.float64)) <= _ROUNDING)).any():
        return "means and variances"
    if is_unit.sum() >= max(2.0, is_unit.size / 2.0):
        return "variances"
    distinct = np.array([np.unique(column).size for column in values[::step].T])
    numeric = values[:, distinct > _DISTINCT]
    if numeric.shape[1] < 2:
        return None
    return "medians and quartiles" if _has_unit_quartiles(numeric) else _common_extremes(numeric)


def _has_unit_quartiles(values: FloatArray) -> bool:
    """Return whether most columns have median 0 and quartiles at a distance of 1."""
    n, columns = values.shape
    below, above = ((values < -_ROUNDING).sum(axis=0), (values > _ROUNDING).sum(axis=0))
    # Where many records are at the median, as at 0 in images, both can be so by themselves.
    is_centred = (2 * np.maximum(below, above) <= n) & (n - below - above <= max(_TIES * n, 1.0))
    first, third = np.percentile(values[:, is_centred], [25.0, 75.0], axis=0)
    # Even levels from −1 to 1 have quartiles at ±½.
    is_unit = (np.abs(third - first - 1.0) <= _ROUNDING) & (np.abs(third + first) > _ROUNDING)
    return bool(is_unit.sum() >= max(2.0, columns / 2.0))


def _common_extremes(values: FloatArray) -> str | None:
    """Return the extremes that all columns have in common, if single records attain them.

    Values that were clipped to public bounds have extremes in common, too, but several records are
    there. One record alone at most of the extremes is what a fitted scaler leaves.
    """
    low, high = values.min(axis=0), values.max(axis=0)
    near = (1e-6 if values.dtype == np.float32 else 1e-12) * float(np.max(high - low))
    has_same_range = np.ptp(low) <= near and np.ptp(high) <= near
    has_same_size = (np.abs(np.maximum(high, -low) - 1.0) <= near).all()
    if not (has_same_range or has_same_size):
        return None
    at_low, at_high = ((np.abs(values - each) <= near).sum(axis=0) == 1 for each in (low, high))
    both, largest = np.concatenate([at_low, at_high]), np.where(high >= -low, at_high, at_low)
    if has_same_range and both.sum() >= max(_EXTREMES, _SHARE * both.size):
        return "minima and maxima"
    if has_same_size and largest.sum() >= max(_EXTREMES, _SHARE * largest.size):
        return "maximum absolute values"
    return None

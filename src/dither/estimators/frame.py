"""Public bounds of features and targets, and the units that they give to training."""

import math
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy import sparse
from sklearn.utils.sparsefuncs import min_max_axis

from dither.estimators.leaks import Leaks
from dither.types import FloatArray
from dither.validate import LARGEST, InvalidTypeError, InvalidValueError, positive

_CHUNK = 4096


@final
@dataclass(frozen=True, eq=False)
class Frame:
    """Where the features of a record lie, by public knowledge.

    Attributes:
        lower: least values of the features, or None.
        upper: largest values of the features, or None.
        norm: the largest norm of a record, or infinite.
        offset: what training takes off the features.
        factor: what it multiplies them by then.
    """

    offset: FloatArray
    factor: FloatArray
    lower: FloatArray | None = None
    upper: FloatArray | None = None
    norm: float = math.inf

    def clip_to_bounds(self, X: Any) -> Any:
        """Return the features with what is out of bounds moved to the bounds."""
        if self.lower is not None and self.upper is not None:
            return _clipped(X, self.lower, self.upper)
        return _shortened(X, self.norm) if math.isfinite(self.norm) else X

    def scaled(self, X: Any) -> Any:
        """Return the features in the units of training, in single precision."""
        if sparse.issparse(X):
            inside = self.clip_to_bounds(X).tocsr()
            scaled = inside.astype(np.float32)
            scaled.data = (inside.data * self.factor[inside.indices]).astype(np.float32)
            return scaled
        scaled = np.empty(X.shape, np.float32)
        offset, factor = self.offset.astype(X.dtype), self.factor.astype(X.dtype)
        for start in range(0, len(X), _CHUNK):
            part = slice(start, start + _CHUNK)
            scaled[part] = (self.clip_to_bounds(X[part]) - offset) * factor
        return scaled


def frame_of(
    X: Any, feature_bounds: Any, feature_norm: Any, leaks: Leaks, *, length: float, names: Any
) -> Frame:
    """Return the frame that the arguments describe; without any, the data's own, with a warning.

    A feature whose bounds have 0 between them keeps its zero; the middle of the bounds becomes the
    zero of others.

    Args:
        X: records × features.
        feature_bounds: (least, largest), numbers or one per feature.
        feature_norm: the largest norm of a record.
        leaks: where to note that bounds were derived from the data.
        names: of the features, or None.
        length: of a record in the units of training that lies on all its bounds, or has the norm.
    """
    if feature_bounds is not None and feature_norm is not None:
        raise InvalidTypeError(
            "only one of feature_bounds and feature_norm may be given, got both: "
            f"feature_norm={feature_norm!r}"
        )
    shape = X.shape[1:]
    if feature_norm is not None:
        norm = positive(feature_norm=feature_norm)
        return Frame(np.zeros(shape), np.full(shape, length / norm), norm=norm)
    if feature_bounds is None:
        leaks.add(
            "the least and largest values of the features were",
            "give them as feature_bounds=(least, largest) from public knowledge, or feature_norm",
        )
        lower, upper = _extremes(X)
    else:
        lower, upper = bounds_of(shape, names, feature_bounds=feature_bounds)
    has_zero = (lower <= 0.0) & (upper >= 0.0)
    if sparse.issparse(X) and not has_zero.all():
        raise InvalidValueError(
            "feature_bounds must have 0 between them for sparse X, got bounds without it for "
            f"{int((~has_zero).sum())} features"
        )
    offset = np.where(has_zero, 0.0, lower / 2.0 + upper / 2.0)
    reach = np.maximum(upper - offset, offset - lower)
    factor = length / math.sqrt(max(1, math.prod(shape))) / np.where(reach > 0.0, reach, 1.0)
    return Frame(offset, factor, lower, upper)


def bounds_of(
    shape: tuple[int, ...], names: Any = None, **argument: Any
) -> tuple[FloatArray, FloatArray]:
    """Return (least, largest) as arrays of a shape, from a pair of numbers or of arrays.

    Args:
        shape: what the arrays are broadcast to.
        names: of the features: labelled bounds, as pandas has them, are taken by name.
        argument: the pair, by the name to complain about.
    """
    ((name, pair),) = argument.items()
    of_arrays = f" or of arrays of shape {shape}" if shape else ""
    try:
        least, largest = pair
        lower, upper = (_array_of(each, shape, names) for each in (least, largest))
    except (TypeError, ValueError, KeyError):
        shown = " ".join(str(pair).split())[:80]
        raise InvalidValueError(
            f"{name} must be a pair (least, largest) of numbers{of_arrays}, got {shown!r}"
        ) from None
    if not ((np.abs(lower) <= LARGEST) & (np.abs(upper) <= LARGEST) & (lower <= upper)).all():
        raise InvalidValueError(
            f"{name} must be finite and at most 1e50 in size, the least no larger than the "
            f"largest, got {' '.join(str(pair).split())[:80]}"
        )
    if (lower == upper).all():
        raise InvalidValueError(f"{name} must have different least and largest values, got {pair}")
    return lower, upper


def _array_of(bound: Any, shape: tuple[int, ...], names: Any) -> FloatArray:
    if hasattr(bound, "loc") and names is not None:
        bound = bound.loc[list(names)]
    values = np.asarray(bound)
    if values.dtype.kind not in "iufb":
        raise TypeError
    return np.broadcast_to(values.astype(np.float64), shape).copy()


def _extremes(X: Any) -> tuple[FloatArray, FloatArray]:
    if sparse.issparse(X):
        lower, upper = min_max_axis(X, axis=0)
        return np.minimum(lower, 0.0), np.maximum(upper, 0.0)
    return X.min(axis=0).astype(np.float64), X.max(axis=0).astype(np.float64)


def _clipped(X: Any, lower: FloatArray, upper: FloatArray) -> Any:
    if isinstance(X, np.ndarray):
        return np.clip(X, lower.astype(X.dtype), upper.astype(X.dtype))
    clipped = _canonical(X)
    clipped.data = np.clip(clipped.data, lower[clipped.indices], upper[clipped.indices])
    return clipped


def _shortened(X: Any, norm: float) -> Any:
    """Return the records, those that are too long scaled down to the norm."""
    if isinstance(X, np.ndarray):
        flat = X.reshape(len(X), -1).astype(np.float64)
        factors = np.minimum(1.0, norm / np.maximum(np.linalg.norm(flat, axis=1), norm))
        return X * factors.reshape(-1, *(1 for _ in X.shape[1:]))
    shortened = _canonical(X)
    squares = np.asarray(shortened.multiply(shortened).sum(axis=1)).ravel()
    factors = norm / np.maximum(np.sqrt(squares), norm)
    shortened.data = shortened.data * np.repeat(factors, np.diff(shortened.indptr))
    return shortened


def _canonical(X: Any) -> Any:
    """Return a copy in which every entry stands once and in order."""
    copied = X.tocsr().copy()
    copied.sum_duplicates()
    return copied

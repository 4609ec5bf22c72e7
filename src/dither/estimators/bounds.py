"""Public bounds of features and targets, the classes, and the units that training takes."""

import math
from dataclasses import dataclass
from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.sparsefuncs import min_max_axis

from dither.estimators.leaks import Leaks, check_scaling
from dither.types import FloatArray
from dither.validate import LARGEST, InvalidTypeError, InvalidValueError, positive

_CHUNK = 4096


@final
@dataclass(frozen=True, eq=False)
class FeatureScaling:
    """Public bounds of the features, and the affine map to the units of training.

    Attributes:
        offset: subtracted from the features.
        factor: multiplies them afterwards.
        lower: lower bounds of the features, or None.
        upper: upper bounds of the features, or None.
        norm: the largest norm of a record, or infinite.
    """

    offset: FloatArray
    factor: FloatArray
    lower: FloatArray | None = None
    upper: FloatArray | None = None
    norm: float = math.inf

    @classmethod
    def by(cls, factor: FloatArray) -> Self:
        """Return the multiplication of features that need no bounds."""
        return cls(np.zeros_like(factor), factor)

    def clip_to_bounds(self, X: Any) -> Any:
        """Return the features, clipped to the bounds or to the norm."""
        if self.lower is not None and self.upper is not None:
            return _clip_values(X, self.lower, self.upper)
        return _clip_norms(X, self.norm) if math.isfinite(self.norm) else X

    def scale(self, X: Any) -> Any:
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


def feature_scaling(
    X: Any, feature_bounds: Any, feature_norm: Any, leaks: Leaks, *, length: float, names: Any
) -> FeatureScaling:
    """Return the scaling by the given bounds; without any, by the data's own, which is a leak.

    A feature whose bounds include 0 is not shifted. The middle of the bounds becomes the zero of
    the other features.

    Args:
        X: records × features.
        feature_bounds: (lower, upper), numbers or one per feature, or column name → (lower, upper).
        feature_norm: the largest norm of a record.
        leaks: where to add that bounds were derived from the data.
        length: norm, in the units of training, of a record at all its bounds or of that norm.
        names: of the features, or None.
    """
    if feature_bounds is not None and feature_norm is not None:
        raise InvalidTypeError(
            "only one of feature_bounds and feature_norm may be given, got both: "
            f"feature_norm={feature_norm!r}"
        )
    shape = X.shape[1:]
    if feature_norm is not None:
        norm = positive(feature_norm=feature_norm)
        return FeatureScaling(np.zeros(shape), np.full(shape, length / norm), norm=norm)
    lower, upper = find_bounds(X, feature_bounds, leaks, names=names)
    has_zero = (lower <= 0.0) & (upper >= 0.0)
    if sparse.issparse(X) and not has_zero.all():
        raise InvalidValueError(
            "feature_bounds must include 0 for sparse X, got bounds that do not for "
            f"{int((~has_zero).sum())} features"
        )
    offset = np.where(has_zero, 0.0, lower / 2.0 + upper / 2.0)
    half_range = np.maximum(upper - offset, offset - lower)
    length_per_feature = length / math.sqrt(max(1, math.prod(shape)))
    factor = length_per_feature / np.where(half_range > 0.0, half_range, 1.0)
    return FeatureScaling(offset, factor, lower, upper)


def find_bounds(
    X: Any, feature_bounds: Any, leaks: Leaks, *, names: Any
) -> tuple[FloatArray, FloatArray]:
    """Return the given bounds of every feature; without any the data's own, which is a leak."""
    if feature_bounds is not None:
        return parse_bounds(X.shape[1:], names, feature_bounds=feature_bounds)
    leaks.add(
        "the minima and maxima of the features were derived from the private data",
        "give them as feature_bounds=(lower, upper) from public knowledge, or feature_norm",
    )
    return _extremes(X)


def parse_bounds(
    shape: tuple[int, ...], names: Any = None, **argument: Any
) -> tuple[FloatArray, FloatArray]:
    """Return (lower, upper) as arrays of a shape, from a pair of numbers or of arrays.

    Args:
        shape: what the arrays are broadcast to.
        names: of the features: labelled bounds, as pandas has them, are taken by name.
        argument: the pair, or a mapping from names to pairs, by its name in error messages.
    """
    ((name, pair),) = argument.items()
    if shape and hasattr(pair, "keys"):
        return _bounds_by_column(name, pair, names)
    of_arrays = f" or of arrays of shape {shape}" if shape else ""
    by_name = ": for bounds by column name give {column: (lower, upper), …}" if shape else ""
    try:
        first, second = pair
        lower, upper = (_parse_bound(bound, shape, names) for bound in (first, second))
    except (TypeError, ValueError, KeyError):
        shown = " ".join(str(pair).split())[:80]
        raise InvalidValueError(
            f"{name} must be a pair (lower, upper) of numbers{of_arrays}, got {shown!r}{by_name}"
        ) from None
    if not ((np.abs(lower) <= LARGEST) & (np.abs(upper) <= LARGEST) & (lower <= upper)).all():
        raise InvalidValueError(
            f"{name} must be finite, at most 1e50 in size, and lower at most upper, "
            f"got {' '.join(str(pair).split())[:80]}"
        )
    if (lower == upper).all():
        raise InvalidValueError(f"{name} must have lower below upper, got {pair}")
    return lower, upper


def encode_classes(y: Any, classes: Any, leaks: Leaks) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the classes, ascending, and the index of every record's class.

    Args:
        y: one label per record.
        classes: all possible labels; None takes them from y, which is a leak.
        leaks: where to add that.
    """
    check_classification_targets(y)
    if classes is None:
        leaks.add(
            "the classes were derived from the private data",
            "give all possible labels, as classes=[…]",
        )
    known = np.unique(y if classes is None else _parse_labels(classes))
    if known.size < 2:
        raise InvalidValueError(
            "y must have samples of at least 2 classes, or classes name at least 2: got "
            f"{known.size} class"
        )
    try:
        indices = np.minimum(np.searchsorted(known, y), known.size - 1)
        are_known = bool(np.all(known[indices] == y))
    except TypeError:  # numbers and text
        are_known = False
    if not are_known:
        shown = " ".join(str(known.tolist()).split())[:80]
        of_y, of_classes = (labels.dtype.type.__name__ for labels in (np.asarray(y), known))
        raise InvalidValueError(
            f"y has labels that are not in classes={shown} (y: {of_y}, classes: {of_classes})"
        )
    return known, indices.astype(np.int64)


@final
@dataclass(frozen=True)
class TargetScaling:
    """Public bounds of the targets of a regression, mapped to −1 … 1.

    Attributes:
        center: of the bounds.
        half_range: half of their distance.
    """

    center: float
    half_range: float

    def scale(self, y: FloatArray) -> FloatArray:
        """Return the targets, clipped to the bounds and mapped to −1 … 1."""
        return np.clip((y - self.center) / self.half_range, -1.0, 1.0)

    def clip_to_bounds(self, y: FloatArray) -> FloatArray:
        """Return targets, or predictions of them, clipped to the bounds."""
        return np.clip(y, self.center - self.half_range, self.center + self.half_range)


def target_scaling(y: FloatArray, target_bounds: Any, leaks: Leaks) -> TargetScaling:
    """Return the scaling by the given bounds; for None by the data's own, which is a leak."""
    if target_bounds is None:
        leaks.add(
            "the minimum and maximum of the targets were derived from the private data",
            "give them as target_bounds=(lower, upper) from public knowledge",
        )
        lower, upper = float(np.min(y)), float(np.max(y))
    else:
        lower, upper = map(float, parse_bounds((), target_bounds=target_bounds))
        check_scaling(y[:, None], leaks, of="targets")
    half_range = upper / 2.0 - lower / 2.0
    return TargetScaling(lower / 2.0 + upper / 2.0, half_range if half_range > 0.0 else 1.0)


def _parse_labels(classes: Any) -> NDArray[Any]:
    labels = np.asarray(list(classes))
    is_number = labels.dtype.kind == "f"
    if labels.ndim != 1 or (is_number and not np.isfinite(labels).all()):
        raise InvalidValueError(
            f"classes must be a list of labels, none of them missing, got {str(classes)[:80]}"
        )
    return labels


def _bounds_by_column(name: str, bounds: Any, names: Any) -> tuple[FloatArray, FloatArray]:
    if names is None:
        raise InvalidValueError(
            f"{name} must be a pair (lower, upper) for X without column names, got bounds by column"
            ' name: fit on a data frame, or call set_output(transform="pandas") on earlier steps'
        )
    missing = [column for column in names if column not in bounds.keys()]  # noqa: SIM118
    if missing:
        raise InvalidValueError(
            f"{name} must have bounds of all {len(names)} columns of X, got none of {missing[0]!r}"
        )
    pairs = [parse_bounds((), **{f"{name}[{column!r}]": bounds[column]}) for column in names]
    lower, upper = np.array(pairs).T
    return lower, upper


def _parse_bound(bound: Any, shape: tuple[int, ...], names: Any) -> FloatArray:
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


def _clip_values(X: Any, lower: FloatArray, upper: FloatArray) -> Any:
    if isinstance(X, np.ndarray):
        return np.clip(X, lower.astype(X.dtype), upper.astype(X.dtype))
    clipped = _canonical(X)
    clipped.data = np.clip(clipped.data, lower[clipped.indices], upper[clipped.indices])
    return clipped


def _clip_norms(X: Any, norm: float) -> Any:
    """Return the records, those of a larger norm scaled down to the norm."""
    if isinstance(X, np.ndarray):
        # In C order: every row is summed as if it were alone.
        flat = X.reshape(len(X), -1).astype(np.float64, order="C")
        factors = np.minimum(1.0, norm / np.maximum(np.linalg.norm(flat, axis=1), norm))
        return X * factors.reshape(-1, *(1 for _ in X.shape[1:]))
    clipped = _canonical(X)
    squares = np.asarray(clipped.multiply(clipped).sum(axis=1)).ravel()
    factors = norm / np.maximum(np.sqrt(squares), norm)
    clipped.data = clipped.data * np.repeat(factors, np.diff(clipped.indptr))
    return clipped


def _canonical(X: Any) -> Any:
    """Return a copy without duplicate entries, in order."""
    copied = X.tocsr().copy()
    copied.sum_duplicates()
    return copied

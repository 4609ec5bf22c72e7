"""Generalized additive models: one curve per number, one effect per category, and pairs.

A model is linear in features that a schema makes: for numbers the number itself and linear splines
over public knots, for categories one-hot columns. So it trains as linear models do, and the effect
of a column is read off its weights.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.utils.validation import check_is_fitted

from dither.estimators.base import COUNT, PrivateEstimator
from dither.estimators.bounds import FeatureScaling, find_bounds
from dither.estimators.leaks import Leaks, check_scaling
from dither.estimators.linear import Linear, PrivateLinearRegression, PrivateLogisticRegression
from dither.estimators.records import TrainingRecords
from dither.estimators.shapes import Shape, draw, points_of
from dither.estimators.splines import COARSEST, blocks_of, default_bins
from dither.schema import Number, Schema
from dither.types import FloatArray
from dither.validate import InvalidTypeError, InvalidValueError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(kw_only=True, repr=False, eq=False)
class _GAM(Linear):
    """The features of additive models, and the shapes of columns."""

    bins: int | None = None
    pairs: Any = ()

    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **PrivateEstimator._parameter_constraints,
        "bins": [COUNT, None],
        "pairs": ["array-like"],
    }

    @property
    def _validation_options(self) -> dict[str, Any]:
        return {**super()._validation_options, "accept_sparse": False}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = False
        return tags

    def _validate_records(
        self, X: Any, y: Any, sample_weight: Any, users: Any, leaks: Leaks
    ) -> TrainingRecords:
        records = super()._validate_records(X, y, sample_weight, users, leaks)
        if self.schema is None:
            check_scaling(records.X, leaks)
            self._choose_features(records.count)
            self.schema_ = self._schema_of_bounds(records.X, leaks)
            records = replace(records, X=self._encode(self._as_table(records.X)))
        return records

    def _schema_of_bounds(self, X: FloatArray, leaks: Leaks) -> Schema:
        """Return a schema of numbers with the bounds of the features."""
        if self.feature_norm is not None:
            raise InvalidTypeError(
                "feature_norm must be None for a GAM, which takes feature_bounds or a schema, got "
                f"{self.feature_norm!r}"
            )
        names = getattr(self, "feature_names_in_", None)
        lower, upper = find_bounds(X, self.feature_bounds, leaks, names=names)
        # A schema has no bounds that are equal: a constant column may have any wider ones.
        upper = np.where(upper > lower, upper, lower + np.maximum(1.0, np.abs(lower)))
        bounds = zip(self._column_names(X), lower, upper, strict=True)
        return Schema({name: Number(bounds=(low, high)) for name, low, high in bounds})

    def _column_names(self, X: FloatArray) -> list[str]:
        return [*map(str, getattr(self, "feature_names_in_", map("x{}".format, range(X.shape[1]))))]

    def _as_table(self, X: FloatArray) -> dict[str, FloatArray]:
        return dict(zip(self._column_names(X), X.T, strict=True))

    def _find_scaling(self, X: Any, leaks: Leaks) -> FeatureScaling:
        return self._scaling_of_encoded(X)

    def _encode(self, X: Any) -> FloatArray:
        parts = [block.encode(X) for block in blocks_of(self.schema_, self.bins_)]
        parts += [self._encode_pair(X, *pair) for pair in self._checked_pairs()]
        return np.hstack(parts)

    def _encode_pair(self, X: Any, first: str, second: str) -> FloatArray:
        """Return the products of every feature of one column with every one of another."""
        one, other = (
            Schema({name: self.schema_.columns[name]}).encode(X, numbers="spline", bins=COARSEST)
            for name in (first, second)
        )
        width = one.shape[1] * other.shape[1]
        return np.asarray((one[:, :, None] * other[:, None, :]).reshape(len(one), width))

    def _encoded_norm(self) -> float:
        # The products of a pair of columns have a norm of at most 1, as the columns have.
        squares = [block.squared_norm() for block in blocks_of(self.schema_, self.bins_)]
        return math.sqrt(sum(squares) + len(self.pairs))

    def _encoded_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        one = Schema({"x": Number(bounds=(0.0, 1.0))})
        blocks = blocks_of(one, self._find_bins(0))
        per_number = sum(block.slices()["x"].stop for block in blocks)
        return (shape[0] * per_number + len(self.pairs) * (COARSEST + 1) ** 2,)

    def _find_bins(self, number: int) -> int:
        n = number if self.dataset_size is None else self.dataset_size
        return default_bins(n, self.epsilon) if self.bins is None else int(self.bins)

    def _choose_features(self, number: int) -> None:
        self.bins_ = self._find_bins(number)

    def _checked_pairs(self) -> list[tuple[str, str]]:
        known = self.schema_.encoded_columns
        for pair in self.pairs:
            names = [pair] if isinstance(pair, str) else [*pair]
            if len(names) != 2 or len({*names}) != 2 or not {*names} <= known.keys():
                raise InvalidValueError(
                    f"pairs must be pairs of two columns among {', '.join(known)}, got {pair!r}"
                )
        return [(first, second) for first, second in self.pairs]

    def _read_features(self, X: Any) -> Any:
        X = super()._read_features(X)
        return X if self.schema is not None else self._encode(self._as_table(X))

    def shapes(self) -> list[Shape]:
        """Return the effect of every column, from the model alone; pairs and text are left out."""
        check_is_fitted(self, "privacy_")
        weights = self._weights_by_column()
        outputs = len(self._output_names())
        unit = float(self._weight_noise * self._scaling.factor[0])
        unit *= math.sqrt(1.0 - 1.0 / outputs) if outputs > 1 else 1.0
        shapes = []
        for column, kind in self.schema_.columns.items():
            points = points_of(kind, self.bins_)
            if points is None:
                continue
            values, features = points
            centred = features - features.mean(axis=0)
            noise = unit * np.linalg.norm(centred, axis=1)
            scale = getattr(kind, "scale", "linear")
            shapes.append(Shape(column, values, centred @ weights[column], noise, scale))
        return shapes

    def _centred_coefficients(self) -> FloatArray:
        """Return the coefficients, outputs × features, without what all classes have in common."""
        coefficients = np.atleast_2d(self.coef_)
        # Probabilities do not depend on it, and it is nothing but noise.
        return coefficients - coefficients.mean(axis=0) if len(coefficients) > 1 else coefficients

    def _weights_by_column(self) -> dict[str, FloatArray]:
        """Return the weights of the features of every column, features × outputs."""
        coefficients, start = self._centred_coefficients().T, 0
        parts: dict[str, list[FloatArray]] = {name: [] for name in self.schema_.columns}
        for block in blocks_of(self.schema_, self.bins_):
            slices = block.slices()
            for name, place in slices.items():
                parts[name].append(coefficients[start + place.start : start + place.stop])
            start += max(place.stop for place in slices.values())
        return {name: np.concatenate(each) for name, each in parts.items()}

    def plot_shapes(self, columns: Sequence[str] | None = None) -> "Figure":
        """Draw the effect of columns on the score, with two standard deviations of the noise.

        The bands are from the plan alone: what the noise would be if the loss did not draw weights
        back, so most are wider than need be. Nothing but the model is used.

        Args:
            columns: names of columns; None is all but text.
        """
        shapes = self.shapes()
        known = [shape.column for shape in shapes]
        chosen = known if columns is None else columns
        if isinstance(chosen, str) or not chosen or not {*chosen} <= {*known}:
            raise InvalidValueError(
                f"columns must be a list of columns among {', '.join(known)}, got {columns!r}"
            )
        return draw(
            [shape for shape in shapes if shape.column in chosen],
            self._output_names(),
            self._effect_label(),
        )

    def _output_names(self) -> list[str]:
        return [""]

    def _effect_label(self) -> str:
        return f"effect on {self.schema_.target_name or 'the target'}"


@dataclass(kw_only=True, repr=False, eq=False)
class PrivateGAMClassifier(_GAM, PrivateLogisticRegression):
    """A generalized additive model for classes, under differential privacy.

    Every number is a line and a linear spline over public knots, every category has an effect per
    value, and pairs of columns may have an effect together. Guarantees and parameters are those of
    `PrivateLogisticRegression`, except for these. `shapes` and `plot_shapes` give the effect of
    every column.

    Args:
        schema: the public schema of the table. Without one, every feature is a number with
            ``feature_bounds``; ``feature_norm`` is refused.
        bins: of the finest splines of numbers without knots of their own; None is 4, 8 or 16, more
            for larger n·ε.
        pairs: pairs of column names that have an effect together, from public knowledge: each
            value of one with each of the other, numbers without knots of their own in 4 bins.
            Features without names are x0, x1, ….

    Example:
        >>> X = np.random.default_rng(0).uniform(-1, 1, (4000, 2))
        >>> y = np.abs(X[:, 0]) > 0.5
        >>> model = PrivateGAMClassifier(
        ...     epsilon=3.0, feature_bounds=(-1, 1), classes=[False, True], random_state=0)
        >>> bool(model.fit(X, y).score(X, y) > 0.9)
        True
        >>> [shape.column for shape in model.shapes()]
        ['x0', 'x1']
    """

    def _output_names(self) -> list[str]:
        names = [str(label) for label in self.classes_]
        return names[1:] if len(names) == 2 else names

    def _effect_label(self) -> str:
        names = self._output_names()
        return f"log-odds of {names[0]}" if len(names) == 1 else "effect on the score"


@dataclass(kw_only=True, repr=False, eq=False)
class PrivateGAMRegressor(_GAM, PrivateLinearRegression):
    """A generalized additive model for numbers, under differential privacy.

    Guarantees and parameters: those of `PrivateGAMClassifier`, with ``target_bounds`` in the place
    of ``classes``.

    Example:
        >>> X = np.random.default_rng(0).uniform(-1, 1, (4000, 2))
        >>> model = PrivateGAMRegressor(
        ...     epsilon=3.0, feature_bounds=(-1, 1), target_bounds=(0, 1), random_state=0)
        >>> bool(model.fit(X, X[:, 0] ** 2).score(X, X[:, 0] ** 2) > 0.8)
        True
    """

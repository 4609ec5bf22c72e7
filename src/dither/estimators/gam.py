"""Generalized additive models: one curve per number, one effect per category, and pairs.

A model is linear in features that `Schema.encode` makes: for numbers the number itself and linear
splines over public knots, finer and finer, for categories one-hot columns. So it trains as linear
models do, and the effect of a column is read off its weights. Splines of b bins are multiplied by
1/√b: where there is more noise than signal, a curve stays near a line.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted, validate_data

from dither.estimators.base import COUNT, PrivateEstimator
from dither.estimators.bounds import feature_scaling
from dither.estimators.leaks import Leaks
from dither.estimators.linear import Linear, PrivateLinearRegression, PrivateLogisticRegression
from dither.schema import Number, Schema
from dither.schema.encoder import as_schema
from dither.schema.tables import is_path
from dither.types import FloatArray
from dither.validate import InvalidValueError

_COARSEST = 4
_FINER = {30_000.0: 16, 3_000.0: 8}
"""From which n·ε on how many bins are worth their noise."""

_POINTS = 65
_COLUMNS = 3


@final
@dataclass(frozen=True, eq=False)
class _Block:
    """A part of the features: those of some columns, times a factor."""

    schema: Schema
    bins: int | None = None
    factor: float = 1.0

    @property
    def _how(self) -> dict[str, Any]:
        return {} if self.bins is None else {"numbers": "spline", "bins": self.bins}

    def encode(self, X: Any) -> FloatArray:
        return np.asarray(np.float32(self.factor) * self.schema.encode(X, **self._how))

    @property
    def squared_norm(self) -> float:
        norm = self.schema.feature_norm(numbers=self._how.get("numbers", "linear"))
        return float((self.factor * norm) ** 2)

    def slices(self) -> dict[str, slice]:
        return self.schema.feature_slices(**self._how)


def _blocks(schema: Schema, bins: int) -> Iterator[_Block]:
    """Yield the columns themselves, then splines of their numbers, from coarse to fine."""
    yield _Block(schema)
    numbers = {name: each for name, each in schema.columns.items() if isinstance(each, Number)}
    halvings = max(0, int(np.log2(bins / _COARSEST)))
    for level in range(halvings, -1, -1):
        # Knots of a column's own are used once.
        fit = {name: each for name, each in numbers.items() if level == 0 or each.knots is None}
        if fit:
            count = bins // 2**level
            yield _Block(Schema(fit), count, count**-0.5)


@final
@dataclass(frozen=True, eq=False)
class Shape:
    """The effect of one column, as the model has learned it.

    Attributes:
        column: its name.
        values: points of a number's range, or the names of a category's features.
        effects: on the score, values × outputs, with mean 0 over the values.
        noise: about the standard deviation of the noise in each effect, an upper estimate.
    """

    column: str
    values: NDArray[Any]
    effects: FloatArray
    noise: FloatArray

    @property
    def is_number(self) -> bool:
        """Whether the column is a number."""
        return self.values.dtype.kind == "f"


@dataclass(kw_only=True, repr=False, eq=False)
class _GAM(Linear):
    """The features of additive models, and the shapes of columns."""

    bins: int | None = None
    pairs: Any = ()

    _encodes = True
    _parameter_constraints: ClassVar[dict[str, Any]] = {
        **PrivateEstimator._parameter_constraints,
        "bins": [COUNT, None],
        "pairs": ["array-like", list, tuple],
    }

    @property
    def _validation_options(self) -> dict[str, Any]:
        return {**super()._validation_options, "accept_sparse": False}

    def _validate_records(
        self, X: Any, y: Any, sample_weight: Any
    ) -> tuple[Any, Any, FloatArray | None]:
        X, y, weights = super()._validate_records(X, y, sample_weight)
        if self.schema is None:
            self._choose_bins(len(X))
            self._bounds_leaks = Leaks()
            self.schema_ = self._schema_of_bounds(X, self._bounds_leaks)
            X = self._encode(self._as_table(X))
        return X, y, weights

    def _encode_records(self, X: Any, y: Any) -> tuple[FloatArray, NDArray[Any]]:
        X = as_schema(self.schema).read(X) if is_path(X) else X
        self._choose_bins(len(next(iter(X.values())) if isinstance(X, Mapping) else X))
        return super()._encode_records(X, y)

    def _choose_bins(self, records: int) -> None:
        n = records if self.dataset_size is None else self.dataset_size
        fitting = (bins for least, bins in _FINER.items() if n * self.epsilon >= least)
        self.bins_ = next(fitting, _COARSEST) if self.bins is None else int(self.bins)

    def _schema_of_bounds(self, X: FloatArray, leaks: Leaks) -> Schema:
        """Return a schema of numbers with the bounds of the features."""
        names = getattr(self, "feature_names_in_", None)
        scaling = feature_scaling(X, self.feature_bounds, None, leaks, length=1.0, names=names)
        if scaling.lower is None or scaling.upper is None:  # as only a norm has
            raise InvalidValueError("feature_bounds must be given for a GAM without a schema")
        columns = self._column_names(X)
        bounds = zip(columns, scaling.lower, scaling.upper, strict=True)
        return Schema(
            {
                name: Number(bounds=(float(low), float(high if high > low else low + 1.0)))
                for name, low, high in bounds
            }
        )

    def _column_names(self, X: FloatArray) -> list[str]:
        names = getattr(self, "feature_names_in_", None)
        return [f"x{j}" for j in range(X.shape[1])] if names is None else [*map(str, names)]

    def _as_table(self, X: FloatArray) -> dict[str, FloatArray]:
        return dict(zip(self._column_names(X), X.T, strict=True))

    def _find_scaling(self, X: Any, leaks: Leaks) -> Any:
        if self.schema is None:
            leaks.extend(self._bounds_leaks)
        return self._scaling_of_encoded(X)

    def _encode(self, X: Any) -> FloatArray:
        X = self.schema_.read(X) if is_path(X) else X
        parts = [block.encode(X) for block in _blocks(self.schema_, self.bins_)]
        parts += [_product(self._pair_features(X, pair)) for pair in self._checked_pairs()]
        return np.hstack(parts)

    def _encoded_norm(self) -> float:
        squares = [block.squared_norm for block in _blocks(self.schema_, self.bins_)]
        return float(np.sqrt(sum(squares) + len(self.pairs)))

    def _pair_features(self, X: Any, pair: tuple[str, str]) -> list[FloatArray]:
        return [
            _Block(Schema({name: self.schema_.columns[name]}), _COARSEST).encode(X) for name in pair
        ]

    def _checked_pairs(self) -> list[tuple[str, str]]:
        for pair in self.pairs:
            names = [pair] if isinstance(pair, str) else [*pair]
            if len({*names}) != 2 or not {*names} <= {*self.schema_.columns}:
                raise InvalidValueError(
                    f"pairs must be pairs of two columns among {', '.join(self.schema_.columns)}, "
                    f"got {pair!r}"
                )
        return [(first, second) for first, second in self.pairs]

    def _read_features(self, X: Any) -> Any:
        if self.schema is not None:
            return super()._read_features(X)
        check_is_fitted(self, "privacy_")
        X = validate_data(self, X, reset=False, **self._validation_options)
        return self._encode(self._as_table(X))

    def shapes(self) -> list[Shape]:
        """Return the effect of every column, from the model alone; pairs are left out."""
        check_is_fitted(self, "privacy_")
        return [*self._shapes()]

    def _shapes(self) -> Iterator[Shape]:
        weights = self._weights_by_column()
        names, places = self.schema_.feature_names(), self.schema_.feature_slices()
        unit = float(self._weight_noise * self._scaling.factor[0])
        for column, kind in self.schema_.columns.items():
            own = names[places[column]]
            if not own:
                continue
            values, alone = np.array(own), Schema({column: kind})
            features = np.eye(len(own))
            if isinstance(kind, Number):
                values = np.linspace(*kind.bounds, _POINTS)
                blocks = _blocks(alone, self.bins_)
                features = np.hstack([block.encode({column: values}) for block in blocks])
            centred = features - features.mean(axis=0)
            noise = unit * np.linalg.norm(centred, axis=1)
            yield Shape(column, values, centred @ weights[column], noise)

    def _weights_by_column(self) -> dict[str, FloatArray]:
        """Return the weights of the features of every column, features × outputs."""
        coefficients, start = np.atleast_2d(self.coef_).T, 0
        parts: dict[str, list[FloatArray]] = {name: [] for name in self.schema_.columns}
        for block in _blocks(self.schema_, self.bins_):
            slices = block.slices()
            for name, place in slices.items():
                parts[name].append(coefficients[start + place.start : start + place.stop])
            start += max(place.stop for place in slices.values())
        return {name: np.concatenate(each) for name, each in parts.items()}

    def plot_shapes(self, columns: Sequence[str] | None = None) -> Figure:
        """Draw the effect of columns on the score, with two standard deviations of the noise.

        The bands are from the plan alone: what the noise would be if the loss did not draw weights
        back, so most are wider than need be. Nothing but the model is used.

        Args:
            columns: names of columns; None is all of them.
        """
        chosen = [each for each in self.shapes() if columns is None or each.column in columns]
        if not chosen:
            raise InvalidValueError(f"columns must be among those of the schema, got {columns!r}")
        rows = -(-len(chosen) // _COLUMNS)
        width = min(len(chosen), _COLUMNS)
        with matplotlib.rc_context({"font.size": 9}):
            figure = Figure(figsize=(3.6 * width, 2.6 * rows), layout="constrained")
            axes = np.ravel(figure.subplots(rows, width, squeeze=False))
            for shape, axis in zip(chosen, axes, strict=False):
                _draw(shape, axis, self._output_names())
            for axis in axes[len(chosen) :]:
                axis.remove()
        return figure

    def _output_names(self) -> list[str]:
        return [""]


def _product(features: Sequence[FloatArray]) -> FloatArray:
    """Return the products of every feature of one column with every one of another."""
    first, second = features
    return np.asarray((first[:, :, None] * second[:, None, :]).reshape(len(first), -1))


def _draw(shape: Shape, axis: Any, names: Sequence[str]) -> None:
    for output, name in enumerate(names):
        effects, band = shape.effects[:, output], 2.0 * shape.noise
        color = f"C{output}"
        if shape.is_number:
            axis.plot(shape.values, effects, color=color, label=name)
            axis.fill_between(
                shape.values, effects - band, effects + band, color=color, alpha=0.2, linewidth=0
            )
        else:
            places = np.arange(len(effects)) + 0.2 * output
            axis.errorbar(effects, places, xerr=band, fmt="o", color=color, label=name, ms=4)
            labels = [value.removeprefix(f"{shape.column}=") for value in shape.values]
            axis.set_yticks(np.arange(len(effects)), labels, fontsize=6 if len(labels) > 12 else 8)
            axis.invert_yaxis() if output == 0 else None
    axis.set_title(shape.column)
    if len(names) > 1:
        axis.legend(fontsize=7)


@dataclass(kw_only=True, repr=False, eq=False)
class PrivateGAMClassifier(_GAM, PrivateLogisticRegression):
    """A generalized additive model for classes, under differential privacy.

    Every number is a linear spline over public knots, every category has an effect per value, and
    pairs of columns may have an effect together. Guarantees and parameters are those of
    `PrivateLogisticRegression`, except for these.

    Args:
        schema: the public schema of the table. Without one, every feature is a number with
            ``feature_bounds``.
        bins: of the finest splines of numbers without knots of their own; None is 16, 8 or 4, with
            fewer for small n·ε.
        pairs: pairs of column names that have an effect together, from public knowledge: each
            value of one with each of the other, numbers in 4 bins.

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

"""Kinds of columns: what is public about a column, and how a cell becomes features.

Nothing is learned from cells: the features of a cell are a function of the cell and of the kind.
``bins`` is None where numbers are encoded as they are ("linear"), else the number of bins of their
splines.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from dither import validate
from dither.schema.cells import as_numbers, coded, lookup, text_of
from dither.schema.values import finite_pair, items, labels
from dither.types import FloatArray
from dither.validate import InvalidValueError

SCALES = ("linear", "log")
MOST_BUCKETS = 2**20
YES, NO = ("yes", "y", "true", "t", "1"), ("no", "n", "false", "f", "0")
_GRAIN = 2.0**24  # weights of splines are multiples of 1/2²⁴: exact in single precision


class Entries(NamedTuple):
    """The entries of a column that are not always zero: the same number of them in every row.

    Attributes:
        places: which of the column's features they are, of shape (rows, k).
        values: what they are, of shape (rows, k).
    """

    places: NDArray[np.intp]
    values: NDArray[np.float32]


Features = Entries | sparse.csr_array
"""The features of the cells of a column."""


class Column(ABC):
    """What all kinds of columns have.

    Attributes:
        kind: the name of the kind in a schema.

    Example:
        >>> isinstance(YesNo(), Column), YesNo().kind
        (True, 'yes/no')
    """

    kind: ClassVar[str]

    @abstractmethod
    def names(self, name: str, bins: int | None) -> list[str]:
        """Return the names of the features of a column of that name."""

    @abstractmethod
    def encode(self, cells: "pd.Series[Any]", bins: int | None) -> Features:
        """Return the features of cells."""

    def squared_norm(self, bins: int | None) -> float:
        """Return the largest squared norm of the features of a cell."""
        return 1.0


@dataclass(frozen=True)
class Number(Column):
    """Numbers between public bounds, to which cells are clipped.

    As "linear" the bounds are −1 and 1. As "spline" a cell is spread over the two knots next to
    it, with weights that add up to 1: a linear model of them is a continuous piecewise linear
    function of the number.

    Args:
        bounds: smallest and largest value.
        missing: public value for missing cells and for cells that are no numbers, which also get a
            feature of their own. With splines that feature alone is 1. None is the middle of the
            bounds, and there is no such feature.
        knots: of the splines, increasing and between the bounds; None is equally spaced ones.
        scale: "log" applies sign(x)·log(1 + abs(x)) first, for heavy tails.

    Example:
        >>> import pandas as pd
        >>> age = Number(bounds=(0, 100), missing=40)
        >>> age.encode(pd.Series([0, 75, None]), None).values.tolist()
        [[-1.0, 0.0], [0.5, 0.0], [-0.20000000298023224, 1.0]]
    """

    kind = "number"
    bounds: tuple[float, float]
    missing: float | None = None
    knots: tuple[float, ...] | None = None
    scale: str = "linear"

    def __post_init__(self) -> None:
        validate.choice(SCALES, scale=self.scale)
        low, high = finite_pair(bounds=self.bounds)
        object.__setattr__(self, "bounds", (low, high))
        if not self._scaled(low) < self._scaled(high):
            raise InvalidValueError(f"bounds must be further apart, got {[low, high]}")
        if self.missing is not None:
            missing = validate.finite(missing=self.missing)
            if not low <= missing <= high:
                raise InvalidValueError(
                    f"missing must be within the bounds {low:g} … {high:g}, got {missing:g}"
                )
            object.__setattr__(self, "missing", missing)
        if self.knots is not None:
            object.__setattr__(self, "knots", self._checked_knots(self.knots))

    def _checked_knots(self, knots: Sequence[float]) -> tuple[float, ...]:
        values = tuple(validate.finite(knots=knot) for knot in items(knots=knots))
        scaled = self._scaled(values)
        if len(values) < 2 or not (np.diff(scaled) > 0.0).all():
            raise InvalidValueError(
                f"knots must be two or more increasing numbers, got {list(values)}"
            )
        if values[0] < self.bounds[0] or values[-1] > self.bounds[1]:
            raise InvalidValueError(
                f"knots must be within the bounds {self.bounds[0]:g} … {self.bounds[1]:g}, "
                f"got {list(values)}"
            )
        return values

    def grid(self, bins: int) -> FloatArray:
        """Return the knots of the splines, in the units of the column."""
        if self.knots is not None:
            return np.array(self.knots)
        low, high = self._scaled(self.bounds)
        scaled = np.linspace(low, high, bins + 1)
        if self.scale == "linear":
            return scaled
        knots = np.sign(scaled) * np.expm1(np.abs(scaled))
        knots[[0, -1]] = self.bounds
        return knots

    def names(self, name: str, bins: int | None) -> list[str]:
        """Return the names of the features of a column of that name."""
        indicator = [] if self.missing is None else [f"{name} (missing)"]
        if bins is None:
            return [name, *indicator]
        grid = self.grid(bins)
        knots = [f"{knot:g}" for knot in grid]
        if len({*knots}) < len(knots):
            knots = [repr(float(knot)) for knot in grid]
        return [*(f"{name}@{knot}" for knot in knots), *indicator]

    def squared_norm(self, bins: int | None) -> float:
        """Return the largest squared norm of the features of a cell."""
        if bins is not None or self.missing is None:
            return 1.0
        return 1.0 + float(self._linear(self._scaled(self.missing))) ** 2

    def encode(self, cells: "pd.Series[Any]", bins: int | None) -> Entries:
        """Return the features of cells."""
        numbers = as_numbers(cells)
        is_missing = np.isnan(numbers)
        scaled = self._scaled(np.clip(numbers, *self.bounds))
        scaled[is_missing] = self._filling()
        if bins is None:
            values = [self._linear(scaled)]
            places = [np.zeros(len(scaled), np.intp)]
        else:
            place, weight = self._spline(scaled, bins)
            values = [1.0 - weight, weight]
            places = [place, place + 1]
        if self.missing is not None:
            if bins is not None:
                values = [np.where(is_missing, 0.0, value) for value in values]
            values.append(is_missing.astype(np.float64))
            last = len(self.names("", bins)) - 1
            places.append(np.full(len(scaled), last, np.intp))
        return Entries(np.stack(places, axis=1), np.stack(values, axis=1).astype(np.float32))

    def _filling(self) -> float:
        """Return the value of missing cells, on the column's scale."""
        if self.missing is not None:
            return float(self._scaled(self.missing))
        low, high = self._scaled(self.bounds)
        return float(low + (high - low) / 2.0)

    def _scaled(self, values: ArrayLike) -> FloatArray:
        numbers = np.asarray(values, np.float64)
        if self.scale == "linear":
            return numbers
        return np.asarray(np.sign(numbers) * np.log1p(np.abs(numbers)))

    def _share(self, scaled: FloatArray) -> FloatArray:
        """Return where numbers are between the bounds, from 0 to 1."""
        low, high = self._scaled(self.bounds)
        return np.asarray((scaled - low) / (high - low))

    def _linear(self, scaled: FloatArray) -> FloatArray:
        return 2.0 * self._share(scaled) - 1.0

    def _spline(self, scaled: FloatArray, bins: int) -> tuple[NDArray[np.intp], FloatArray]:
        """Return the number of the knot before each number, and the weight of the knot after it."""
        if self.knots is None:
            last, position = bins, bins * self._share(scaled)
        else:
            last = len(self.knots) - 1
            position = np.interp(scaled, self._scaled(self.knots), np.arange(last + 1.0))
        place = np.minimum(position.astype(np.intp), last - 1)
        return place, np.rint((position - place) * _GRAIN) / _GRAIN


@dataclass(frozen=True)
class Category(Column):
    """One of several public values, one-hot.

    Cells are compared as text, without spaces around it. Any other value is "other", and a missing
    cell is "missing": each has a feature of its own.

    Args:
        values: the values.

    Example:
        >>> import pandas as pd
        >>> sex = Category(values=("f", "m"))
        >>> sex.names("sex", None)
        ['sex=f', 'sex=m', 'sex (other)', 'sex (missing)']
        >>> sex.encode(pd.Series(["m", "x", ""]), None).places.tolist()
        [[1], [2], [3]]
    """

    kind = "category"
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", labels(values=self.values))

    def names(self, name: str, bins: int | None) -> list[str]:
        """Return the names of the features of a column of that name."""
        named = [f"{name}={value}" for value in self.values]
        return [*named, f"{name} (other)", f"{name} (missing)"]

    def encode(self, cells: "pd.Series[Any]", bins: int | None) -> Entries:
        """Return the features of cells."""
        other = len(self.values)
        place = lookup(cells, self.values, other=other, missing=other + 1)
        return Entries(place[:, None], np.ones((len(place), 1), np.float32))


@dataclass(frozen=True)
class YesNo(Column):
    """Yes or no: one feature, 1 or −1; 0 if a cell is missing or another value.

    Args:
        yes: texts that mean yes, in any case.
        no: texts that mean no, in any case; given together with ``yes``.

    Example:
        >>> import pandas as pd
        >>> YesNo().encode(pd.Series(["Yes", "no", None]), None).values.ravel().tolist()
        [1.0, -1.0, 0.0]
    """

    kind = "yes/no"
    yes: tuple[str, ...] = YES
    no: tuple[str, ...] = NO

    def __post_init__(self) -> None:
        for key in ("yes", "no"):
            texts = [str(text_of(text.lower())) for text in labels(**{key: getattr(self, key)})]
            object.__setattr__(self, key, labels(**{key: texts}))
        if (self.yes == YES) != (self.no == NO):
            raise InvalidValueError("yes and no must be given together, got one of them")
        both = {*self.yes} & {*self.no}
        if both:
            raise InvalidValueError(
                f"no must have other values than yes, got {min(both)!r} in both"
            )

    def names(self, name: str, bins: int | None) -> list[str]:
        """Return the names of the features of a column of that name."""
        return [name]

    def encode(self, cells: "pd.Series[Any]", bins: int | None) -> Entries:
        """Return the features of cells."""
        codes, texts = coded(cells)
        sign = dict.fromkeys(self.yes, 1.0) | dict.fromkeys(self.no, -1.0)
        values = [0.0 if text is None else sign.get(text.lower(), 0.0) for text in texts]
        found = np.array([*values, 0.0], np.float32)[codes]
        return Entries(np.zeros((len(codes), 1), np.intp), found[:, None])


@dataclass(frozen=True)
class Text(Column):
    """Text whose words are hashed to buckets by a fixed public hash, of norm 1.

    Words are in lower case. A missing cell, or one without words, is all zeros.

    Args:
        buckets: number of features.

    Example:
        >>> import pandas as pd
        >>> note = Text(buckets=8).encode(pd.Series(["Chest pain, pain", None]), None)
        >>> (note.toarray() ** 2).sum(axis=1).round(3).tolist()
        [1.0, 0.0]
    """

    kind = "text"
    buckets: int = 64

    def __post_init__(self) -> None:
        buckets = validate.count(buckets=self.buckets)
        if not 2 <= buckets <= MOST_BUCKETS:
            raise InvalidValueError(f"buckets must be from 2 to {MOST_BUCKETS:,}, got {buckets}")
        object.__setattr__(self, "buckets", buckets)

    def names(self, name: str, bins: int | None) -> list[str]:
        """Return the names of the features of a column of that name."""
        return [f"{name}#{bucket}" for bucket in range(self.buckets)]

    def encode(self, cells: "pd.Series[Any]", bins: int | None) -> sparse.csr_array:
        """Return the features of cells."""
        from sklearn.feature_extraction.text import HashingVectorizer

        codes, texts = coded(cells)
        hashing = HashingVectorizer(
            n_features=self.buckets,
            token_pattern=r"(?u)\b\w+\b",  # noqa: S106
            lowercase=True,
            norm="l2",
        )
        hashed = hashing.transform([*(text or "" for text in texts), ""])
        # Rounding to single precision must not make a norm larger than 1.
        return sparse.csr_array((hashed * (1.0 - 2.0**-23)).astype(np.float32)[codes])


@dataclass(frozen=True)
class Ignored(Column):
    """A column without features, which a table need not have.

    Example:
        >>> Ignored().names("patient_id", None)
        []
    """

    kind = "ignored"

    def names(self, name: str, bins: int | None) -> list[str]:
        """Return the names of the features of a column of that name: none."""
        return []

    def encode(self, cells: "pd.Series[Any]", bins: int | None) -> Entries:
        """Return the features of cells: none."""
        return Entries(np.zeros((len(cells), 0), np.intp), np.zeros((len(cells), 0), np.float32))

    def squared_norm(self, bins: int | None) -> float:
        """Return the largest squared norm of the features of a cell: 0."""
        return 0.0


KINDS: dict[str, type[Column]] = {
    each.kind: each for each in (Number, Category, YesNo, Text, Ignored)
}

"""The records of a fit: checked as scikit-learn does, and counted, or the users that have them."""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from dither.schema.tables import as_series
from dither.training.records import InMemory
from dither.training.users import Users, users_of
from dither.types import FloatArray
from dither.validate import InvalidTypeError, InvalidValueError


@dataclass(frozen=True, eq=False)
class TrainingRecords:
    """What a fit trains on.

    Attributes:
        X: the features.
        y: the targets, as many as there are records.
        weights: one per record, from 0 to 1, or None.
        users: whose they are, or None where records are protected.
    """

    X: Any
    y: NDArray[Any]
    weights: FloatArray | None = None
    users: Users | None = None

    @property
    def count(self) -> int:
        """How many records there are, or how many users."""
        return len(self.y) if self.users is None else self.users.count

    @property
    def owners(self) -> NDArray[np.int64]:
        """The number of every record's user, −1 for none; of every record, without users."""
        if self.users is None:
            return np.arange(len(self.y))
        found = np.full(len(self.y), -1)
        counts = np.diff(self.users.ends, prepend=0)
        found[self.users.rows] = np.repeat(np.arange(self.users.count), counts)
        return found

    @property
    def unit(self) -> str:
        """What is protected: "record" or "user"."""
        return "record" if self.users is None else "user"


def find_users(users: Any, records: int, rows_per_user: int | None, missing: str) -> Users | None:
    """Return the users of so many records, from one id per record; None without users."""
    if callable(users):
        raise InvalidTypeError(
            f"users must be one id per record, got {type(users).__name__}: make a list of them"
        )
    return users_of(users, InMemory((), records), rows_per_user=rows_per_user, missing=missing)


def validate_records(estimator: Any, X: Any, y: Any = "no_validation", **options: Any) -> Any:
    """Return what scikit-learn's `validate_data` returns, numeric targets in double precision.

    Raises:
        InvalidValueError: if a cell is text that is no number: scikit-learn's message would show
            it, and cells are private.
    """
    column = _text_column(X)
    if column is not None:
        raise InvalidValueError(
            f"X must have numbers only, got text in column {column!r}: give schema=… "
            "(see dither schema)"
        )
    try:
        found = validate_data(estimator, X, y, **options)
        return (found[0], np.asarray(found[1], np.float64)) if options.get("y_numeric") else found
    except ValueError as error:
        if "could not convert string to float" not in str(error):
            raise
    raise InvalidValueError("X and y must have numbers only, got text: see dither schema")


def public_sizes(records: int, dataset_size: int | None, delta: float | None) -> tuple[int, float]:
    """Return n and δ: as given, or by default the number of records, or users, and 1/(10·n)."""
    n = records if dataset_size is None else int(dataset_size)
    return n, 0.1 / n if delta is None else float(delta)


def warn_of_delta(dataset_size: int, delta: float, unit: str, *, stacklevel: int) -> None:
    """Warn if δ is not below 1/n.

    Args:
        dataset_size: n.
        delta: δ.
        unit: what is protected: "record" or "user".
        stacklevel: as `warnings.warn` counts, from this function.
    """
    if delta * dataset_size >= 1.0:
        warnings.warn(
            f"delta = {delta:g} is not below 1/n = 1/{dataset_size:,}, so that publishing one "
            f"{unit} outright would be allowed: take {0.1 / dataset_size:.2g} or less",
            stacklevel=stacklevel,
        )


def _text_column(X: Any) -> str | None:
    """Return the first column of a data frame that has text which is no number."""
    if not hasattr(X, "columns") or not hasattr(X, "dtypes"):
        return None
    for name in X.columns:
        cells = X[name]
        if isinstance(cells, pd.DataFrame):  # a name that occurs twice
            continue
        cells = as_series(cells, str(name))
        if not pd.api.types.is_numeric_dtype(cells.dtype) and any(map(_is_text, cells)):
            return str(name)
    return None


def _is_text(cell: Any) -> bool:
    if not isinstance(cell, str):
        return False
    try:
        np.float64(cell)
    except ValueError:
        return True
    return False

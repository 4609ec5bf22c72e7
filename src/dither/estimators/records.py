"""Records as scikit-learn checks them, without its messages that show a cell."""

from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils.validation import validate_data

from dither.schema.tables import as_series
from dither.validate import InvalidValueError


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

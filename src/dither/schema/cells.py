"""Cells of one column as numbers, or as codes of their text; each cell by itself.

A cell's value depends on nothing but the cell: columns of several dtypes, and cells that other
cells could have changed the dtype of, come out the same one by one.
"""

import re
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dither.types import FloatArray

_INTEGRAL = re.compile(r"([+-]?\d+)\.0*")
_EXACT = 2.0**53
# Kinds of object columns whose equal cells have equal texts. True and 1 are equal, and differ; so
# do 10**22 and 1e22, and numbers of float32 and float64.
_UNIFORM = {"string", "empty", "boolean", "integer"}


def text_of(cell: Any) -> str | None:
    """Return a cell as the text that is compared, or None if it is missing.

    Example:
        >>> [text_of(cell) for cell in (" f ", 1, 1.0, "1.0", True, "TRUE", 0.5, "007")]
        ['f', '1', '1', '1', 'true', 'true', '0.5', '007']
        >>> [text_of(cell) for cell in (None, float("nan"), "", "  ")]
        [None, None, None, None]
    """
    if isinstance(cell, str):
        text = cell.strip()
        if text.lower() in ("true", "false"):
            return text.lower()
        integral = _INTEGRAL.fullmatch(text)
        return integral[1] if integral else text or None
    if isinstance(cell, bool | np.bool_):
        return str(cell).lower()
    if pd.api.types.is_scalar(cell) and pd.isna(cell):
        return None
    if isinstance(cell, Integral):
        return str(int(cell))
    if isinstance(cell, float | np.floating) and abs(float(cell)) < _EXACT and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, complex | np.complexfloating) and cell.imag == 0.0:
        return text_of(cell.real)
    return text_of(str(cell))


def coded(cells: "pd.Series[Any]") -> tuple[NDArray[np.intp], list[str | None]]:
    """Return codes of the cells, and the text of each code; a missing cell may be −1.

    Example:
        >>> codes, texts = coded(pd.Series(["f", None, "m", "f "]))
        >>> codes.tolist(), texts
        ([0, -1, 1, 2], ['f', 'm', 'f'])
    """
    if cells.dtype == object and pd.api.types.infer_dtype(cells, skipna=True) not in _UNIFORM:
        cells = pd.Series([text_of(cell) for cell in cells], dtype=object)
    codes, distinct = pd.factorize(cells)
    return np.asarray(codes, np.intp), [text_of(cell) for cell in distinct]


def lookup(
    cells: "pd.Series[Any]", values: Iterable[str], *, other: int, missing: int
) -> NDArray[np.intp]:
    """Return which of the values each cell is; ``other`` and ``missing`` if it is none."""
    codes, texts = coded(cells)
    places: dict[str | None, int] = {text_of(value): at for at, value in enumerate(values)}
    places[None] = missing
    return np.array([*(places.get(text, other) for text in texts), missing], np.intp)[codes]


def as_numbers(cells: "pd.Series[Any]") -> FloatArray:
    """Return the cells as numbers; NaN where one is missing or not a number.

    Example:
        >>> as_numbers(pd.Series([" 2 ", 3, None, "many", True, "1e3"], dtype=object)).tolist()
        [2.0, 3.0, nan, nan, 1.0, 1000.0]
    """
    if isinstance(cells.dtype, pd.CategoricalDtype):
        values = as_numbers(pd.Series(cells.cat.categories))
        return np.asarray(np.append(values, np.nan)[cells.cat.codes])
    if pd.api.types.is_complex_dtype(cells.dtype):
        values = cells.to_numpy()
        return np.where(values.imag == 0.0, values.real, np.nan).astype(np.float64)
    if pd.api.types.is_numeric_dtype(cells.dtype):
        return np.asarray(cells.to_numpy(dtype=np.float64, na_value=np.nan))
    objects = cells.to_numpy(dtype=object, na_value=None)
    is_text = np.fromiter((isinstance(cell, str) for cell in objects), bool, len(objects))
    numbers = np.empty(len(objects))
    if is_text.any():
        parsed = pd.to_numeric(pd.Series(objects[is_text], dtype=object), errors="coerce")
        numbers[is_text] = parsed.to_numpy(dtype=np.float64)
    numbers[~is_text] = [_number(cell) for cell in objects[~is_text]]
    return numbers


def _number(cell: Any) -> float:
    if isinstance(cell, complex | np.complexfloating) and cell.imag == 0.0:
        cell = cell.real
    if not isinstance(cell, Real):
        # Decimal is no Real; what else there is (dates, lists) is no number.
        cell = cell if hasattr(cell, "as_tuple") and cell.is_finite() else np.nan
    try:
        return float(cell)
    except OverflowError:
        return float("inf") if cell > 0 else float("-inf")

"""Tables: data frames, mappings of columns, and .csv, .csv.gz and .parquet files.

Errors name files, lines and columns, and never a cell: cells are private.
"""

import codecs
import csv
import gzip
import io
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dither.validate import InvalidTypeError, InvalidValueError

FILES = (".csv", ".csv.gz", ".parquet")
_MOST_NAMED = 20


def is_path(table: object) -> bool:
    """Return whether a table is given by the path of its file."""
    return isinstance(table, str | Path)


def columns_of(table: Any, names: Collection[str]) -> dict[str, "pd.Series[Any]"]:
    """Return columns of a data frame of pandas or polars, or of a mapping, by their names.

    Raises:
        InvalidValueError: if a column is not there, or there twice.
    """
    own = {str(name): name for name in column_names(table)}
    check_columns(names, own)
    columns = {name: as_series(table[own[name]], name) for name in names}
    if len({len(column) for column in columns.values()}) > 1:
        raise InvalidValueError("table must have columns of one length, got several")
    return columns


def column_names(table: Any) -> list[Any]:
    """Return the names of the columns of a table that is no file."""
    if isinstance(table, pd.DataFrame) or _is_polars(table, "DataFrame"):
        names = [*table.columns]
        twice = {str(name) for name in names if names.count(name) > 1}
        if twice:
            raise InvalidValueError(f"table must name every column once, got {min(twice)!r} twice")
        return names
    if isinstance(table, Mapping):
        return [*table]
    raise InvalidTypeError(
        "table must be a data frame of pandas or polars, a mapping of columns, or the path of a "
        f"file, got {type(table).__name__}"
    )


def check_columns(names: Collection[str], present: Collection[str]) -> None:
    """Raise if a table has not all of these columns."""
    absent = [name for name in names if name not in present]
    if absent:
        shown = ", ".join(map(repr, absent[:_MOST_NAMED])) + (", …" * (len(absent) > _MOST_NAMED))
        raise InvalidValueError(f"table must have every column of the schema, but has no {shown}")


def as_series(cells: Any, name: str) -> "pd.Series[Any]":
    """Return the cells of one column."""
    if isinstance(cells, pd.Series):
        return cells
    if _is_polars(cells, "Series"):
        is_native = cells.dtype.is_float() or (cells.dtype.is_numeric() and not cells.null_count())
        return pd.Series(cells.to_numpy() if is_native else _objects(cells.to_list()))
    if isinstance(cells, pd.Index | pd.api.extensions.ExtensionArray):
        return pd.Series(cells)
    if isinstance(cells, np.ndarray) and cells.ndim == 1:
        return pd.Series(cells)
    if isinstance(cells, Sequence) and not isinstance(cells, str | bytes):
        return pd.Series(_objects(cells))
    raise InvalidTypeError(f"column {name!r} must be one cell per row, got {type(cells).__name__}")


def _objects(cells: Sequence[Any]) -> "np.ndarray[Any, np.dtype[np.object_]]":
    return np.fromiter(cells, object, len(cells))


def _is_polars(value: object, name: str) -> bool:
    kind = type(value)
    return kind.__module__.partition(".")[0] == "polars" and kind.__name__ == name


def read_table(path: str | Path, names: Collection[str] | None = None) -> pd.DataFrame:
    """Return columns of a file: text from .csv and .csv.gz, native cells from .parquet.

    Args:
        path: the file. A .csv file is UTF-8, with commas and a header line.
        names: the columns to read, those that are there; None is all.

    Raises:
        InvalidValueError: if the file cannot be read, or is no table.
    """
    file = Path(path)
    if not file.name.lower().endswith(FILES):
        raise InvalidValueError(f"table must be a file of {', '.join(FILES)}, got {str(path)!r}")
    if not file.is_file():
        raise InvalidValueError(f"table must be a file that exists, got {str(path)!r}")
    read = _read_parquet if file.suffix.lower() == ".parquet" else _read_csv
    with _reading(file):
        return read(file, names)


@contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn the errors of an unreadable or damaged file into one line that names it."""
    try:
        yield
    except UnicodeDecodeError:
        raise table_error(file, "must be UTF-8 text") from None
    except (OSError, EOFError, zlib.error, csv.Error) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise table_error(file, f"cannot be read: {why}") from None


def table_error(file: Path, why: str) -> InvalidValueError:
    """Return the error for a file that cannot be used."""
    return InvalidValueError(f"table {str(file)!r} {why}")


def _read_csv(file: Path, names: Collection[str] | None) -> pd.DataFrame:
    raw = file.read_bytes()
    if file.suffix.lower() == ".gz":
        raw = gzip.decompress(raw)
    raw = raw.removeprefix(codecs.BOM_UTF8)
    header = _header(raw, file)
    _check_separator(header, file)
    _check_rows(raw, len(header), file)
    wanted = [name for name in header if names is None or name in names]
    # Text cells stay as they are: "007", "NA" and "1.0" too.
    return pd.read_csv(
        io.BytesIO(raw),
        header=0,
        names=header,
        usecols=wanted,
        dtype=object,
        na_filter=False,
    )[wanted]


def _rows(raw: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield every row that is not empty, with its line."""
    with io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8", newline="") as text:
        reader = csv.reader(text, strict=True)
        yield from ((reader.line_num, row) for row in reader if row)


def _header(raw: bytes, file: Path) -> list[str]:
    _, row = next(_rows(raw), (0, []))
    names = [name.strip() for name in row]
    if not names:
        raise table_error(file, "must have a header line, but is empty")
    if all(_is_number(name) for name in names):
        raise table_error(file, "must begin with a header line, got numbers")
    for index, name in enumerate(names):
        if not name:
            raise table_error(file, f"must name every column, but column {index + 1} has no name")
        first = names.index(name)
        if first < index:  # not by name: in a file without a header line it is a cell
            same = f"columns {first + 1} and {index + 1} have the same name"
            raise table_error(file, f"must begin with a header line of different names, but {same}")
    return names


def _check_separator(header: list[str], file: Path) -> None:
    """Raise if the only column's name looks like several."""
    for separator, shown in ((";", "';'"), ("\t", "tabs")):
        if len(header) == 1 and separator in header[0]:
            raise table_error(file, f"looks separated by {shown}: save it with commas")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _check_rows(raw: bytes, width: int, file: Path) -> None:
    """Raise for a row that has not one cell per column: pandas would fill it or cut it."""
    commas = {line.count(b",") for line in raw.splitlines() if line}
    if commas == {width - 1} and b'"' not in raw:
        return
    for line, row in _rows(raw):
        if len(row) != width:
            raise table_error(file, f"line {line} must have {width} cells, got {len(row)}")


def _read_parquet(file: Path, names: Collection[str] | None) -> pd.DataFrame:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise InvalidValueError(
            "table: .parquet files need pyarrow; install it with: pip install 'dither[parquet]'"
        ) from None
    try:
        present = parquet.read_schema(file).names
        wanted = [name for name in present if names is None or name in names]
        frame: pd.DataFrame = parquet.read_table(file, columns=wanted).to_pandas(
            ignore_metadata=True,
            integer_object_nulls=True,  # as floats, integers above 2^53 would change
        )
    except ArrowException as error:
        why = str(error).partition("\n")[0]
        raise table_error(file, f"cannot be read as a .parquet file: {why}") from None
    return frame

"""The public schema of a table, and the encoding that it defines."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from dither import validate
from dither.schema.cells import as_numbers, coded
from dither.schema.checking import Fit, shares_of
from dither.schema.columns import Column, Entries, Features, Ignored, Number
from dither.schema.parsing import FILES, as_dict, named, parse_dict, parse_file
from dither.schema.tables import (
    as_series,
    check_columns,
    column_names,
    columns_of,
    is_path,
    read_table,
)
from dither.schema.target import Target
from dither.schema.toml import toml, toml_key, toml_table
from dither.validate import InvalidTypeError, InvalidValueError

NUMBERS = ("linear", "spline")
MOST_BINS = 4096


@dataclass(frozen=True, eq=False, repr=False)
class Schema:
    """What is public about a table: the kind of every column, and the target.

    A schema encodes a table as numbers and learns nothing from it: the features of a row are a
    function of the row and the schema.

    Args:
        columns: the kind of each column, in the order of the features. Columns of a table that are
            not here are ignored.
        target: the column to predict, if there is one.
        users: the column that says whose each row is, if people have several rows: an id, no
            feature. Tables to predict on need not have it.

    Example:
        >>> import pandas as pd
        >>> schema = Schema.from_dict({
        ...     "target": {"column": "ill", "classes": ["no", "yes"]},
        ...     "columns": {
        ...         "age": {"kind": "number", "bounds": [0, 100]},
        ...         "sex": {"kind": "category", "values": ["f", "m"]},
        ...     },
        ... })
        >>> table = pd.DataFrame({"age": [75, None], "sex": ["f", "x"], "ill": ["no", "yes"]})
        >>> schema.encode(table)
        array([[0.5, 1. , 0. , 0. , 0. ],
               [0. , 0. , 0. , 1. , 0. ]], dtype=float32)
        >>> schema.feature_names()
        ['age', 'sex=f', 'sex=m', 'sex (other)', 'sex (missing)']
        >>> schema.encode_target(table).tolist()
        ['no', 'yes']
    """

    columns: Mapping[str, Column]
    target: Target | None = None
    users: str | None = None

    def __post_init__(self) -> None:
        columns = dict(self.columns)
        for name, column in columns.items():
            if not validate.instance(str, columns=name):
                raise InvalidValueError("columns must have names, got ''")
            if not isinstance(column, Column):
                raise InvalidTypeError(f"column {name!r} must be a Column, got {column!r}")
        if all(isinstance(column, Ignored) for column in columns.values()):
            raise InvalidValueError("columns must have at least one column that is not ignored")
        if self.target is not None:
            name = validate.instance(Target, target=self.target).column
            if name in columns:
                raise InvalidValueError(f"target must be no column of the features, got {name!r}")
        if self.users is not None:
            self._check_users(columns)
        object.__setattr__(self, "columns", MappingProxyType(columns))

    def _check_users(self, columns: Mapping[str, Column]) -> None:
        name = validate.instance(str, users=self.users)
        is_feature = not isinstance(columns.get(name, Ignored()), Ignored)
        if not name or is_feature or name == self.target_name:
            raise InvalidValueError(
                "users must be a column of ids, neither the target nor a feature, which kind = "
                f'"ignored" makes it no more, got {name!r}'
            )

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Return the schema of a dict, as `to_dict` gives it and a file holds it.

        Raises:
            InvalidValueError: if a value is not allowed, or the schema is an unconfirmed draft.
            InvalidTypeError: if a value has a type that is not allowed.
        """
        return cls(*parse_dict(fields))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the schema of a .toml or .json file."""
        fields = parse_file(Path(path))
        with named(str(path)):
            return cls.from_dict(fields)

    def to_dict(self) -> dict[str, Any]:
        """Return the schema as a dict, without what is as by default."""
        target = {} if self.target is None else {"target": as_dict(self.target)}
        columns = {
            name: {"kind": column.kind, **as_dict(column)} for name, column in self.columns.items()
        }
        users = {} if self.users is None else {"users": self.users}
        return {"confirmed": True, **users, **target, "columns": columns}

    def to_json(self) -> str:
        """Return the schema as JSON."""
        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False)

    def to_toml(self) -> str:
        """Return the schema as TOML."""
        fields = self.to_dict()
        tables = [toml_table("target", fields["target"])] if "target" in fields else []
        for name, column in fields["columns"].items():
            tables.append(toml_table(f"columns.{toml_key(name)}", column))
        users = "" if self.users is None else f"users = {toml(self.users)}\n"
        return "\n".join([f"confirmed = true\n{users}", *tables])

    def save(self, path: str | Path) -> None:
        """Write the schema to a .toml or .json file."""
        file = validate.output_file(FILES, path=path)
        text = self.to_toml() if file.suffix.lower() == ".toml" else self.to_json() + "\n"
        file.write_text(text, encoding="utf-8")

    @property
    def target_name(self) -> str | None:
        """The column to predict, if there is one."""
        return None if self.target is None else self.target.column

    @property
    def classes(self) -> tuple[str, ...] | tuple[int, ...] | None:
        """The classes of the target, if it has classes."""
        return None if self.target is None else self.target.classes

    @property
    def shares(self) -> tuple[float, ...] | None:
        """The public shares of the classes, if they are known."""
        return None if self.target is None else self.target.shares

    @property
    def target_bounds(self) -> tuple[float, float] | None:
        """The bounds of the target, if it has bounds."""
        return None if self.target is None else self.target.bounds

    def read(self, path: str | Path) -> pd.DataFrame:
        """Return the columns of the schema that a .csv, .csv.gz or .parquet file has.

        Numbers are float64; a cell of a .csv file that is no number is NaN. The other cells of a
        .csv file are text.

        Raises:
            InvalidValueError: if the file cannot be read, or has not every column of the features.
        """
        target = [] if self.target is None else [self.target.column]
        users = [] if self.users is None else [self.users]
        frame = read_table(path, [*self.columns, *target, *users])
        with named(str(path)):
            check_columns(self.encoded_columns, frame.columns)
        numbers = {name for name, column in self.columns.items() if isinstance(column, Number)}
        numbers.update(target if self.target_bounds is not None else [])
        for name in numbers & {*frame.columns}:
            frame[name] = as_numbers(frame[name])
        return frame

    def encode(
        self, table: Any, *, numbers: str = "linear", bins: int = 16, sparse: bool = False
    ) -> Any:
        """Return the features of a table, one row per record, in single precision.

        Args:
            table: a data frame of pandas or polars, a mapping of columns, or the path of a file,
                as `read` takes it. It has every column of the schema that is not ignored.
            numbers: "linear", or "spline"; see `Number`.
            bins: number of bins of the splines of columns that have no knots of their own.
            sparse: return a sparse array instead of a dense one.

        Raises:
            InvalidValueError: if the table has not every column, or cannot be read.
        """
        splines = _check_numbers(numbers, bins)
        table = self.read(table) if is_path(table) else table
        cells = columns_of(table, self.encoded_columns)
        slices = self.feature_slices(numbers=numbers, bins=bins)
        blocks = {name: self.columns[name].encode(cells[name], splines) for name in cells}
        return (_sparse if sparse else _dense)(blocks, slices, len(next(iter(cells.values()))))

    def encode_target(self, table: Any) -> NDArray[Any]:
        """Return the declared classes of the target's cells, or its numbers clipped to the bounds.

        Args:
            table: a table as `encode` takes it, or the column alone.

        Raises:
            InvalidValueError: if a cell is missing, is no declared class or is no number; the
                message does not have it, since it is private.
        """
        if self.target is None:
            raise InvalidValueError("schema has no target")
        name = self.target.column
        table = self.read(table) if is_path(table) else table
        is_column = not isinstance(table, Mapping | pd.DataFrame) and not hasattr(table, "columns")
        return self.target.encode(
            as_series(table, name) if is_column else columns_of(table, [name])[name]
        )

    def user_ids(self, table: Any) -> NDArray[np.object_]:
        """Return the id of each row's user as text, None where the cell is empty.

        Cells are compared as text, without spaces around it: 7, 7.0 and "7" are one user. A text
        that stands for an unknown user, such as "unknown", is a user like any other: make such
        cells empty first.

        Args:
            table: a table as `encode` takes it.

        Raises:
            InvalidValueError: if the schema has no users, or the table has not their column.

        Example:
            >>> schema = Schema({"age": Number(bounds=(0, 100))}, users="patient")
            >>> schema.user_ids({"age": [50, 51, 9, 7], "patient": [7.0, "7", "b", None]}).tolist()
            ['7', '7', 'b', None]
        """
        if self.users is None:
            raise InvalidValueError("schema has no users")
        table = self.read(table) if is_path(table) else table
        with named("users"):
            codes, texts = coded(columns_of(table, [self.users])[self.users])
        return np.array([*texts, None], object)[codes]

    def check(self, table: Any) -> Fit:
        """Return how well the schema fits a table: exact, private figures to look at locally.

        Args:
            table: a table as `encode` takes it; columns may be absent.
        """
        table = read_table(table) if is_path(table) else table
        kinds: dict[str, Column | Target] = {**self.encoded_columns}
        if self.users is not None:
            kinds[self.users] = Ignored()
        if self.target is not None:
            kinds[self.target.column] = self.target
        names = [*map(str, column_names(table))]
        cells = columns_of(table, [name for name in kinds if name in names])
        return Fit(
            {name: shares_of(kinds[name], each) for name, each in cells.items()},
            tuple(name for name in kinds if name not in names),
            tuple(name for name in names if name not in kinds and name not in self.columns),
        )

    def feature_slices(self, *, numbers: str = "linear", bins: int = 16) -> dict[str, slice]:
        """Return which features each column has."""
        splines = _check_numbers(numbers, bins)
        slices, start = {}, 0
        for name, column in self.columns.items():
            stop = start + len(column.names(name, splines))
            slices[name] = slice(start, stop)
            start = stop
        return slices

    def feature_names(self, *, numbers: str = "linear", bins: int = 16) -> list[str]:
        """Return the names of the features."""
        splines = _check_numbers(numbers, bins)
        names = [
            each for name, column in self.columns.items() for each in column.names(name, splines)
        ]
        if len({*names}) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidValueError(f"columns must give every feature its own name, got {twice!r}")
        return names

    def feature_norm(self, *, numbers: str = "linear") -> float:
        """Return the largest norm that the features of a row can have, whatever its cells are."""
        splines = _check_numbers(numbers, 1)
        return math.sqrt(sum(column.squared_norm(splines) for column in self.columns.values()))

    @property
    def encoded_columns(self) -> dict[str, Column]:
        """The columns that are not ignored."""
        return {name: each for name, each in self.columns.items() if not isinstance(each, Ignored)}

    def __repr__(self) -> str:
        users = "" if self.users is None else f", users={self.users!r}"
        return f"Schema({dict(self.columns)}, {self.target}{users})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_dict, (self.to_dict(),)


def _check_numbers(numbers: str, bins: int) -> int | None:
    """Return the number of bins, or None where numbers stay linear."""
    validate.choice(NUMBERS, numbers=numbers)
    if validate.count(bins=bins) > MOST_BINS:
        raise InvalidValueError(f"bins must be at most {MOST_BINS:,}, got {bins}")
    return int(bins) if numbers == "spline" else None


def _dense(
    blocks: Mapping[str, Features], slices: Mapping[str, slice], rows: int
) -> NDArray[np.float32]:
    features = np.zeros((rows, max(place.stop for place in slices.values())), np.float32)
    for name, block in blocks.items():
        part = features[:, slices[name]]
        if isinstance(block, Entries):
            np.put_along_axis(part, block.places, block.values, axis=1)
        else:
            part += block.toarray()
    return features


def _sparse(
    blocks: Mapping[str, Features], slices: Mapping[str, slice], rows: int
) -> sparse.csr_array:
    parts = []
    for name, block in blocks.items():
        if isinstance(block, Entries):
            ends = np.arange(rows + 1) * block.places.shape[1]
            shape = (rows, slices[name].stop - slices[name].start)
            part = sparse.csr_array((block.values.ravel(), block.places.ravel(), ends), shape)
            part.eliminate_zeros()
            parts.append(part)
        else:
            parts.append(block)
    return sparse.csr_array(sparse.hstack(parts, format="csr"))

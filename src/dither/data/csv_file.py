"""Tables of numbers with one column of labels, as .csv files."""

import csv
import math
from array import array
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from dither.data.examples import Examples, Split
from dither.data.files import reading, refusal
from dither.data.labels import encode

_LABEL_NAMES = ("label", "target")


def load_csv(path: Path, label: str | None = None) -> Split:
    """Return the records of a .csv file, in its order.

    Args:
        path: the file: UTF-8, commas, a header line. Every column but one holds numbers; an
            empty cell is read as NaN, and ``nan`` and ``inf`` are numbers, too.
        label: the column of the labels; None is the one called label or target, else the last.
            Labels are whole numbers or text and become 0 … K−1 in sorted order.

    Returns:
        Inputs of shape (N, columns); there is no test part.
    """
    with reading(path, "a .csv file"), path.open(encoding="utf-8-sig", newline="") as stream:
        rows = _rows(stream, path)
        names = _header(next(rows, (1, []))[1], path)
        column = _label_column(names, label, path)
        values, labels = _cells(rows, names, column, path)
    if not labels:
        raise refusal(path, "must have at least one record below its header line")
    inputs = np.frombuffer(values, np.float32).reshape(len(labels), len(names) - 1)
    whole = _whole(labels, names[column], path)
    targets, classes = encode(list(labels.values())) if whole is None else encode(whole)
    columns = [name for place, name in enumerate(names) if place != column]
    read = Examples(torch.from_numpy(inputs), torch.from_numpy(targets), classes, columns)
    return Split(read, None)


def _rows(text: Iterable[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield every line that is not empty, with its number."""
    reader = csv.reader(text, strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise refusal(path, f"line {reader.line_num} is no line of a .csv file: {error}") from None
    except UnicodeDecodeError:
        raise refusal(path, f"must be UTF-8 text, after line {reader.line_num} it is not") from None


def _header(row: list[str], path: Path) -> list[str]:
    names = [name.strip() for name in row]
    if len(names) < 2:
        raise refusal(path, f"must have a header line of at least two columns, got {len(names)}")
    if all(_is_number(name) for name in names):
        raise refusal(path, "must begin with a header line, got numbers on line 1")
    for index, name in enumerate(names):
        if not name:
            raise refusal(path, f"must name every column, but column {index + 1} has no name")
        if name in names[:index]:
            raise refusal(path, f"must name every column once, but {name!r} is there twice")
    return names


def _label_column(names: list[str], label: str | None, path: Path) -> int:
    if label is None:
        named = [name for name in _LABEL_NAMES if name in names]
        return names.index(named[0]) if named else len(names) - 1
    if label not in names:
        shown = ", ".join(repr(name) for name in names[:20])
        more = ", …" if len(names) > 20 else ""
        raise refusal(path, f"has no column for label = {label!r}, but {shown}{more}")
    return names.index(label)


def _cells(
    rows: Iterator[tuple[int, list[str]]], names: list[str], column: int, path: Path
) -> tuple["array[float]", dict[int, str]]:
    """Return all numbers, row after row, and the label of each line."""
    values, labels = array("f"), {}
    others = names[:column] + names[column + 1 :]
    for line, row in rows:
        if len(row) != len(names):
            raise refusal(path, f"line {line} must have {len(names)} cells, got {len(row)}")
        labels[line] = row.pop(column).strip()
        if not labels[line]:
            raise refusal(path, f"line {line}, column {names[column]!r} must have a label")
        values.extend(_numbers(row, line, others, path))
    return values, labels


def _numbers(row: list[str], line: int, names: list[str], path: Path) -> list[float]:
    if "_" not in "".join(row):  # float() takes 1_000, a table should not
        with suppress(ValueError):
            return list(map(float, row))
    return [_number(cell, line, name, path) for cell, name in zip(row, names, strict=True)]


def _number(cell: str, line: int, name: str, path: Path) -> float:
    if not cell.strip():
        return math.nan
    if not _is_number(cell):
        raise refusal(path, f"line {line}, column {name!r} must be a number, got {cell!r}")
    return float(cell)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _whole(labels: dict[int, str], name: str, path: Path) -> list[int] | None:
    """Return the labels as whole numbers, or None if one is no number, but text."""
    texts = set(labels.values())
    if not all(_is_number(text) for text in texts):
        return None
    whole = {text: _int(text) for text in texts}
    for line, text in labels.items():
        if whole[text] is None:
            raise refusal(
                path,
                f"line {line}, column {name!r} must be a label, whole number or text, got {text!r}",
            )
    return [number for text in labels.values() if (number := whole[text]) is not None]


def _int(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        number = float(text)
    return int(number) if number.is_integer() else None

"""Tables of one's own: .csv files with a column of labels, and .npz files of NumPy arrays."""

import csv
import math
import zipfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from dither.data.examples import Examples, Split
from dither.data.files import file_error, reading

Label = TypeVar("Label", int, str)

_LABEL_NAMES = ("label", "target")
_PAIRS = (("inputs", "targets"), ("x", "y"), ("X", "y"), ("x_train", "y_train"))
_TEST_PAIR = ("x_test", "y_test")


def encode_labels(labels: Sequence[Label]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return labels as integers 0 … K−1, and the names of the classes in sorted order.

    Labels that are 0 … K−1 already stay as they are.

    Example:
        >>> encode_labels([7, -1, 7])
        (array([1, 0, 1]), ('-1', '7'))
        >>> encode_labels(["dog", "cat", "dog"])
        (array([1, 0, 1]), ('cat', 'dog'))
    """
    ordered = sorted(set(labels))
    number = {label: index for index, label in enumerate(ordered)}
    numbers = np.fromiter((number[label] for label in labels), np.int64, len(labels))
    return numbers, tuple(str(label) for label in ordered)


def load_csv(path: Path, label: str | None = None) -> Split:
    """Return the records of a .csv file, in its order.

    Args:
        path: the file: UTF-8, commas, a header line. Every column but one holds numbers; an
            empty cell is read as NaN, and ``nan`` and ``inf`` are numbers, too.
        label: the column of the labels; None is the one called label or target, else the last.
            Labels are integers or text and become 0 … K−1 in sorted order.

    Returns:
        Inputs of shape (N, columns); there is no test part.
    """
    with reading(path, "a .csv file"), path.open(encoding="utf-8-sig", newline="") as stream:
        rows = _rows(stream, path)
        names = _header(next(rows, (1, []))[1], path)
        column = _label_column(names, label, path)
        values, labels = _cells(rows, names, column, path)
    if not labels:
        raise file_error(path, "must have at least one record below its header line")
    inputs = np.frombuffer(values, np.float32).reshape(len(labels), len(names) - 1)
    integers = _as_integers(labels, names[column], path)
    if integers is None:
        targets, classes = encode_labels(list(labels.values()))
    else:
        targets, classes = encode_labels(integers)
    columns = [name for place, name in enumerate(names) if place != column]
    examples = Examples(torch.from_numpy(inputs), torch.from_numpy(targets), classes, columns)
    return Split(examples, None)


def _rows(text: Iterable[str], path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield every line that is not empty, with its number."""
    reader = csv.reader(text, strict=True)
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except csv.Error as error:
        raise file_error(path, f"line {reader.line_num} is not valid CSV: {error}") from None
    except UnicodeDecodeError:
        raise file_error(
            path, f"must be UTF-8 text; after line {reader.line_num} it is not"
        ) from None


def _header(row: list[str], path: Path) -> list[str]:
    names = [name.strip() for name in row]
    if len(names) < 2:
        raise file_error(path, f"must have a header line of at least two columns, got {len(names)}")
    if all(_is_number(name) for name in names):
        raise file_error(path, "must begin with a header line, got numbers on line 1")
    for index, name in enumerate(names):
        if not name:
            raise file_error(path, f"must name every column, but column {index + 1} has no name")
        if name in names[:index]:
            raise file_error(path, f"must name every column once, but {name!r} occurs twice")
    return names


def _label_column(names: list[str], label: str | None, path: Path) -> int:
    if label is None:
        named = [name for name in _LABEL_NAMES if name in names]
        return names.index(named[0]) if named else len(names) - 1
    if label not in names:
        shown = ", ".join(repr(name) for name in names[:20])
        more = ", …" if len(names) > 20 else ""
        raise file_error(path, f"has no column for label = {label!r}; it has {shown}{more}")
    return names.index(label)


def _cells(
    rows: Iterator[tuple[int, list[str]]], names: list[str], column: int, path: Path
) -> tuple["array[float]", dict[int, str]]:
    """Return all numbers, row after row, and the label of each line."""
    values, labels = array("f"), {}
    others = names[:column] + names[column + 1 :]
    for line, row in rows:
        if len(row) != len(names):
            raise file_error(path, f"line {line} must have {len(names)} cells, got {len(row)}")
        labels[line] = row.pop(column).strip()
        if not labels[line]:
            raise file_error(path, f"line {line}, column {names[column]!r} must have a label")
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
        raise file_error(path, f"line {line}, column {name!r} must be a number, got {cell!r}")
    return float(cell)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def _as_integers(labels: dict[int, str], name: str, path: Path) -> list[int] | None:
    """Return the labels as integers, or None if one of them is text."""
    texts = set(labels.values())
    if not all(_is_number(text) for text in texts):
        return None
    integers = {text: _int(text) for text in texts}
    for line, text in labels.items():
        if integers[text] is None:
            raise file_error(
                path,
                f"line {line}, column {name!r} must be a label, integer or text, got {text!r}",
            )
    return [number for text in labels.values() if (number := integers[text]) is not None]


def _int(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        number = float(text)
    return int(number) if number.is_integer() else None


def load_npz(path: Path) -> Split:
    """Return the records of a .npz file, in its order.

    Args:
        path: the file, with the arrays ``inputs`` and ``targets``, or ``x`` and ``y``, or
            ``x_train`` and ``y_train``; for testing ``x_test`` and ``y_test`` may be there.
            Inputs of uint8 are divided by 255; targets are integers that become 0 … K−1
            in sorted order. Nothing pickled is read.

    Returns:
        The records, with inputs of the shape that they have in the file.
    """
    with reading(path, "a .npz file"), path.open("rb") as stream:
        if not zipfile.is_zipfile(stream):
            raise file_error(path, "cannot be read as a .npz file: it is not a zip archive")
        stream.seek(0)
        with NpzFile(stream, allow_pickle=False) as arrays:
            pair = next((pair for pair in _PAIRS if set(pair) <= set(arrays.files)), None)
            if pair is None:
                wanted = " or ".join(" and ".join(names) for names in _PAIRS)
                raise file_error(path, f"must hold the arrays {wanted}, got {arrays.files[:10]}")
            inputs, targets = _records(arrays, pair, path)
            test = _records(arrays, _TEST_PAIR, path) if _has_test(arrays, path) else None
    return _npz_split(inputs, targets, test, path)


def _has_test(arrays: NpzFile, path: Path) -> bool:
    present = [name for name in _TEST_PAIR if name in arrays.files]
    if len(present) == 1:
        raise file_error(
            path, f"must hold both {' and '.join(_TEST_PAIR)} or none, got {present[0]}"
        )
    return bool(present)


def _npz_split(
    inputs: NDArray[np.float32],
    targets: list[int],
    test: tuple[NDArray[np.float32], list[int]] | None,
    path: Path,
) -> Split:
    test_inputs, test_targets = test or (inputs[:0], [])
    if test_inputs.shape[1:] != inputs.shape[1:]:
        raise file_error(
            path,
            f"must have records of one shape, got {inputs.shape[1:]} and {test_inputs.shape[1:]}",
        )
    numbers, classes = encode_labels(targets + test_targets)
    train_numbers, test_numbers = np.split(numbers, [len(targets)])

    def part(values: NDArray[np.float32], labels: NDArray[np.int64]) -> Examples:
        return Examples(torch.from_numpy(values), torch.from_numpy(labels), classes)

    return Split(
        train=part(inputs, train_numbers),
        test=None if test is None else part(test_inputs, test_numbers),
    )


def _records(
    arrays: NpzFile, pair: tuple[str, str], path: Path
) -> tuple[NDArray[np.float32], list[int]]:
    inputs, targets = (_array(arrays, name, path) for name in pair)
    if inputs.dtype.kind not in "buif":
        raise file_error(path, f"{pair[0]} must be numbers, got {inputs.dtype}")
    if targets.dtype.kind not in "bui" or targets.ndim != 1:
        raise file_error(
            path,
            f"{pair[1]} must be integers in one dimension, "
            f"got {targets.dtype} of shape {targets.shape}",
        )
    if inputs.ndim < 2 or inputs.size == 0 or len(inputs) != len(targets):
        raise file_error(
            path,
            f"{pair[0]} must have a row for each of the {len(targets)} {pair[1]}, at least one, "
            f"got shape {inputs.shape}",
        )
    with np.errstate(over="ignore"):
        values = inputs.astype(np.float32, order="C")
    if inputs.dtype == np.uint8:
        values /= np.float32(255.0)
    return values, [int(label) for label in targets]


def _array(arrays: NpzFile, name: str, path: Path) -> NDArray[np.generic]:
    try:
        values = arrays[name]
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        why = " ".join(str(error).split())
        raise file_error(path, f"{name} cannot be read: {why}") from None
    if not isinstance(values, np.ndarray):
        raise file_error(path, f"{name} must be an array")
    return values

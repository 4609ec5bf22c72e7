"""Records of one's own: .npz files of NumPy arrays."""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from dither.data.examples import Examples, Split
from dither.data.files import file_error, reading

_PAIRS = (("inputs", "targets"), ("x", "y"), ("X", "y"), ("x_train", "y_train"))
_TEST_PAIR = ("x_test", "y_test")
_INPUTS = ("inputs", "x", "X", "x_test")


def encode_labels(labels: Sequence[int]) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    """Return labels as integers 0 … K−1, and the names of the classes in sorted order.

    Labels that are 0 … K−1 already stay as they are.

    Example:
        >>> encode_labels([7, -1, 7])
        (array([1, 0, 1]), ('-1', '7'))
    """
    ordered = sorted(set(labels))
    number = {label: index for index, label in enumerate(ordered)}
    numbers = np.fromiter((number[label] for label in labels), np.int64, len(labels))
    return numbers, tuple(str(label) for label in ordered)


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
    with _opened(path) as arrays:
        pair = next((pair for pair in _PAIRS if set(pair) <= set(arrays.files)), None)
        if pair is None:
            wanted = " or ".join(" and ".join(names) for names in _PAIRS)
            raise file_error(path, f"must hold the arrays {wanted}, got {arrays.files[:10]}")
        inputs, targets = _records(arrays, pair, path)
        test = _records(arrays, _TEST_PAIR, path) if _has_test(arrays, path) else None
    return _npz_split(inputs, targets, test, path)


def load_inputs(path: str | Path) -> NDArray[np.float32]:
    """Return the inputs of a .npz file without their targets, for predictions.

    Args:
        path: the file, with the array ``inputs``, ``x``, ``X`` or ``x_test``; uint8 is divided by
            255, as `load` does.

    Example:
        >>> import tempfile
        >>> path = tempfile.mkdtemp() + "/new.npz"
        >>> np.savez(path, x=np.zeros((2, 3)))
        >>> load_inputs(path).shape
        (2, 3)
    """
    with _opened(Path(path)) as arrays:
        name = next((name for name in _INPUTS if name in arrays.files), None)
        if name is None:
            wanted = ", ".join(_INPUTS)
            raise file_error(path, f"must hold one of the arrays {wanted}, got {arrays.files[:10]}")
        return _inputs(arrays, name, Path(path))


def load_array(path: Path, name: str) -> NDArray[np.generic]:
    """Return an array of a .npz file, such as the ids of the records' users."""
    with _opened(path) as arrays:
        if name not in arrays.files:
            raise file_error(path, f"must hold the array {name}, got {arrays.files[:10]}")
        return _array(arrays, name, path)


@contextmanager
def _opened(path: Path) -> Iterator[NpzFile]:
    with reading(path, "a .npz file"), path.open("rb") as stream:
        if not zipfile.is_zipfile(stream):
            raise file_error(path, "cannot be read as a .npz file: it is not a zip archive")
        stream.seek(0)
        with NpzFile(stream, allow_pickle=False) as arrays:
            yield arrays


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
    inputs, targets = _inputs(arrays, pair[0], path), _array(arrays, pair[1], path)
    if targets.dtype.kind not in "bui" or targets.ndim != 1:
        raise file_error(
            path,
            f"{pair[1]} must be integers in one dimension, "
            f"got {targets.dtype} of shape {targets.shape}",
        )
    if len(inputs) != len(targets):
        raise file_error(
            path,
            f"{pair[0]} must have a row for each of the {len(targets)} {pair[1]}, "
            f"got shape {inputs.shape}",
        )
    return inputs, [int(label) for label in targets]


def _inputs(arrays: NpzFile, name: str, path: Path) -> NDArray[np.float32]:
    inputs = _array(arrays, name, path)
    if inputs.dtype.kind not in "buif":
        raise file_error(path, f"{name} must be numbers, got {inputs.dtype}")
    if inputs.ndim < 2 or inputs.size == 0:
        raise file_error(
            path, f"{name} must have one row per record, at least one, got shape {inputs.shape}"
        )
    with np.errstate(over="ignore"):
        values = inputs.astype(np.float32, order="C")
    if inputs.dtype == np.uint8:
        values /= np.float32(255.0)
    return values


def _array(arrays: NpzFile, name: str, path: Path) -> NDArray[np.generic]:
    try:
        values = arrays[name]
    except (ValueError, TypeError, RuntimeError, MemoryError) as error:
        why = " ".join(str(error).split())
        raise file_error(path, f"{name} cannot be read: {why}") from None
    if not isinstance(values, np.ndarray):
        raise file_error(path, f"{name} must be an array")
    return values

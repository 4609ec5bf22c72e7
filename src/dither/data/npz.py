"""Arrays of inputs and targets, as .npz files of NumPy."""

import zipfile
from pathlib import Path

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from dither.data.examples import Examples, Split
from dither.data.files import reading, refusal
from dither.data.labels import encode

_PAIRS = (("inputs", "targets"), ("x", "y"), ("X", "y"), ("x_train", "y_train"))
_TEST_PAIR = ("x_test", "y_test")


def load_npz(path: Path) -> Split:
    """Return the records of a .npz file, in its order.

    Args:
        path: the file, with the arrays ``inputs`` and ``targets``, or ``x`` and ``y``, or
            ``x_train`` and ``y_train``; for testing ``x_test`` and ``y_test`` may be there.
            Inputs of uint8 are divided by 255; targets are whole numbers that become 0 … K−1
            in sorted order. Nothing pickled is read.

    Returns:
        The records, with inputs of the shape that they have in the file.
    """
    with reading(path, "a .npz file"), path.open("rb") as stream:
        if not zipfile.is_zipfile(stream):
            raise refusal(path, "cannot be read as a .npz file: it is no zip archive")
        stream.seek(0)
        with NpzFile(stream, allow_pickle=False) as arrays:
            pair = next((pair for pair in _PAIRS if set(pair) <= set(arrays.files)), None)
            if pair is None:
                wanted = " or ".join(" and ".join(names) for names in _PAIRS)
                raise refusal(path, f"must hold the arrays {wanted}, got {arrays.files[:10]}")
            inputs, targets = _records(arrays, pair, path)
            test = _records(arrays, _TEST_PAIR, path) if _has_test(arrays, path) else None
    return _split(inputs, targets, test, path)


def _has_test(arrays: NpzFile, path: Path) -> bool:
    there = [name for name in _TEST_PAIR if name in arrays.files]
    if len(there) == 1:
        raise refusal(path, f"must hold both {' and '.join(_TEST_PAIR)} or none, got {there[0]}")
    return bool(there)


def _split(
    inputs: NDArray[np.float32],
    targets: list[int],
    test: tuple[NDArray[np.float32], list[int]] | None,
    path: Path,
) -> Split:
    test_inputs, test_targets = test or (inputs[:0], [])
    if test_inputs.shape[1:] != inputs.shape[1:]:
        raise refusal(
            path,
            f"must have records of one shape, got {inputs.shape[1:]} and {test_inputs.shape[1:]}",
        )
    numbers, classes = encode(targets + test_targets)
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
        raise refusal(path, f"{pair[0]} must be numbers, got {inputs.dtype}")
    if targets.dtype.kind not in "bui" or targets.ndim != 1:
        raise refusal(
            path,
            f"{pair[1]} must be whole numbers in one dimension, "
            f"got {targets.dtype} of shape {targets.shape}",
        )
    if inputs.ndim < 2 or inputs.size == 0 or len(inputs) != len(targets):
        raise refusal(
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
        raise refusal(path, f"{name} cannot be read: {why}") from None
    if not isinstance(values, np.ndarray):
        raise refusal(path, f"{name} must be an array, not other bytes")
    return values

"""Check single records for faults; the report is for the owner of the data only."""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, TensorDataset

from dither.data.examples import Examples
from dither.validate import InvalidTypeError, InvalidValueError, count

SHOWN = 5
_BLOCK = 4096

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Counts:
    """How many records have a fault, and the indices of the first few of them.

    Example:
        >>> print(Counts(3, (1, 4)))
        3 (at 1, 4, …)
    """

    count: int
    first: tuple[int, ...]

    def __str__(self) -> str:
        if self.count == 0:
            return "none"
        more = ", …" if self.count > len(self.first) else ""
        return f"{self.count:,} (at {', '.join(map(str, self.first))}{more})"


@dataclass(frozen=True)
class Report:
    """The report of :func:`check`: about private data, so for its owner only.

    Attributes:
        records: how many records there are.
        nans: those with a NaN among their inputs.
        infinities: those with an infinity among their inputs.
        bad_labels: those whose label is negative, not an integer, or too large.
        duplicates: those whose inputs and label are, bit by bit, an earlier record's.

    Example:
        >>> import torch
        >>> check((torch.arange(3.0), torch.tensor([0, 1, 0]))).ok
        True
    """

    records: int
    nans: Counts
    infinities: Counts
    bad_labels: Counts
    duplicates: Counts

    @property
    def ok(self) -> bool:
        """Whether no record has any of the faults."""
        faults = (self.nans, self.infinities, self.bad_labels, self.duplicates)
        return all(fault.count == 0 for fault in faults)

    def __str__(self) -> str:
        lines = (
            "SENSITIVE: about private data, for its owner only",
            f"records:             {self.records:,}",
            f"with NaN:            {self.nans}",
            f"with infinities:     {self.infinities}",
            f"labels out of range: {self.bad_labels}",
            f"duplicates:          {self.duplicates}",
        )
        return "\n".join(lines)


def check(dataset: object, *, classes: int | None = None) -> Report:
    """Return what is wrong with the records of a dataset; nothing is changed.

    Args:
        dataset: `Examples`, a TensorDataset of two tensors, a tuple (inputs, targets) of tensors
            or arrays, or any dataset with a length and (input, target) pairs.
        classes: labels must be below it; None is the number of classes of `Examples`, and no
            upper limit for others.

    Returns:
        The counts, each with the first indices. They depend on single records without any noise.

    Example:
        >>> import torch
        >>> inputs = torch.tensor([[1.0], [float("nan")], [1.0]])
        >>> print(check((inputs, torch.tensor([0, 1, 0])), classes=2))
        SENSITIVE: about private data, for its owner only
        records:             3
        with NaN:            1 (at 1)
        with infinities:     none
        labels out of range: none
        duplicates:          1 (at 2)
    """
    limit = None if classes is None else count(classes=classes)
    if limit is None and isinstance(dataset, Examples):
        limit = len(dataset.classes)
    nans, infinities, bad_labels, duplicates = (_Counter() for _ in range(4))
    seen: set[bytes] = set()
    records = 0
    for inputs, targets in _blocks(dataset):
        nans.add(records, _any(np.isnan, inputs))
        infinities.add(records, _any(np.isinf, inputs))
        bad_labels.add(records, _find_bad_labels(targets, limit))
        duplicates.add(records, _find_repeated(inputs, targets, seen))
        records += len(inputs)
    if records == 0:
        raise InvalidValueError("dataset must have at least one record, got none")
    faults = (nans, infinities, bad_labels, duplicates)
    return Report(records, *(fault.counts() for fault in faults))


class _Counter:
    def __init__(self) -> None:
        self.count = 0
        self.first: list[int] = []

    def add(self, start: int, faulty: NDArray[np.bool_]) -> None:
        indices = np.flatnonzero(faulty)
        self.count += len(indices)
        self.first += [start + int(index) for index in indices[: SHOWN - len(self.first)]]

    def counts(self) -> Counts:
        return Counts(self.count, tuple(self.first))


def _blocks(dataset: object) -> Iterator[tuple[Array, Array]]:
    """Yield inputs and targets of some records at a time."""
    if type(dataset) in (Examples, TensorDataset):
        dataset = dataset.tensors  # type: ignore[attr-defined] # checked above
    if not isinstance(dataset, tuple):
        yield from _records(dataset)
        return
    if len(dataset) != 2 or not all(isinstance(array, Tensor | np.ndarray) for array in dataset):
        raise InvalidTypeError("dataset must be (inputs, targets), two tensors or arrays")
    inputs, targets = dataset
    if inputs.ndim < 1 or targets.ndim != 1 or len(inputs) != len(targets):
        raise InvalidValueError(
            "dataset must have one label per record, "
            f"got targets of shape {tuple(targets.shape)} for inputs of {tuple(inputs.shape)}"
        )
    for start in range(0, len(inputs), _BLOCK):
        block = slice(start, start + _BLOCK)
        yield _numbers(inputs[block], "its inputs"), _array(targets[block])


def _records(dataset: Any) -> Iterator[tuple[Array, Array]]:
    sized = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if not sized or isinstance(dataset, IterableDataset | Mapping | Tensor | np.ndarray):
        raise InvalidTypeError(
            "dataset must have a length and give (input, target) pairs by their index, "
            f"got {type(dataset).__name__}"
        )
    for index in range(len(dataset)):
        record = dataset[index]
        if not isinstance(record, tuple | list) or len(record) != 2:
            raise InvalidTypeError(
                f"dataset[{index}] must be an (input, target) pair, got {type(record).__name__}"
            )
        target = _array(record[1])
        if target.size != 1:
            raise InvalidValueError(
                f"dataset[{index}] must have one label, got one of shape {target.shape}"
            )
        yield _numbers(record[0], f"dataset[{index}]")[None], target.reshape(1)


def _array(value: object) -> Array:
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        return np.asarray(tensor.float() if tensor.dtype == torch.bfloat16 else tensor)
    return np.asarray(value)


def _numbers(value: object, name: str) -> Array:
    try:
        values = _array(value)
    except ValueError:
        raise InvalidTypeError(f"{name} must be an array of numbers, got a ragged one") from None
    if values.dtype.kind not in "buifc":
        raise InvalidTypeError(f"{name} must be numbers, got {type(value).__name__}")
    return values


def _any(test: Callable[[Array], Array], inputs: Array) -> NDArray[np.bool_]:
    return np.asarray(test(inputs).reshape(len(inputs), -1).any(axis=1))


def _find_bad_labels(targets: Array, limit: int | None) -> NDArray[np.bool_]:
    if targets.dtype.kind not in "buif":
        return np.ones(len(targets), np.bool_)
    bad = (targets < 0) | ~np.isfinite(targets) | (targets != np.floor(targets))
    return np.asarray(bad if limit is None else bad | (targets >= limit))


def _find_repeated(inputs: Array, targets: Array, seen: set[bytes]) -> NDArray[np.bool_]:
    """Return which records were seen before; remember the others by their hashes."""
    repeated = np.zeros(len(inputs), np.bool_)
    head = f"{inputs.shape[1:]} {inputs.dtype} {targets.dtype}".encode()
    for index in range(len(inputs)):
        digest = hashlib.blake2b(head, digest_size=16)
        digest.update(repr(targets[index]).encode())
        digest.update(inputs[index].tobytes())
        repeated[index] = digest.digest() in seen
        seen.add(digest.digest())
    return repeated

"""The records of a dataset, by their indices: from memory, or one by one from a map-style dataset.

Tensors and numpy arrays are indexed where they are, without a copy of the whole; so are
``TensorDataset`` and subsets of one. Any other dataset with a length is asked for each record, in
worker processes if there are any.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    Subset,
    TensorDataset,
)

from dither.clipping.batch import mapped
from dither.planning import Plan, ReactivePlan
from dither.sampling.sampler import Indices
from dither.validate import InvalidTypeError, InvalidValueError


class Records(Protocol):
    """Where batches come from."""

    length: int

    @property
    def is_in_memory(self) -> bool:
        """Whether all records can be looked at without fetching them one by one."""
        ...

    def batches(self, draws: Iterable[Indices]) -> Iterator[Any]:
        """Yield the batch of each draw, with at least one record in each."""
        ...


class InMemory:
    """Tensors with the records along their first dimension."""

    is_in_memory = True

    def __init__(self, tensors: Any, length: int) -> None:
        self._tensors = tensors
        self.length = length

    def batches(self, draws: Iterable[Indices]) -> Iterator[Any]:
        """Yield the rows of each draw; zeros where there are no records to stand for none."""
        for draw in draws:
            if self.length:
                yield mapped(self._tensors, partial(_rows, index=torch.from_numpy(draw)))
            else:
                yield mapped(self._tensors, lambda tensor: tensor.new_zeros(1, *tensor.shape[1:]))


def _rows(tensor: Tensor, index: Tensor) -> Tensor:
    return tensor.index_select(0, index.to(tensor.device))


class InSubset:
    """Some records of others."""

    def __init__(self, base: Records, indices: Indices) -> None:
        self._base, self._indices = base, indices
        self.length = indices.size

    @property
    def is_in_memory(self) -> bool:
        """Whether the others are."""
        return self._base.is_in_memory

    def batches(self, draws: Iterable[Indices]) -> Iterator[Any]:
        """Yield what the others have at the subset's places; in an empty one, their first."""
        if not self.length:
            return self._base.batches(draws)
        return self._base.batches(self._indices[draw] for draw in draws)


class FromDataset:
    """A map-style dataset, by torch's own loader."""

    is_in_memory = False

    def __init__(self, dataset: Dataset[Any], length: int, workers: int) -> None:
        self._dataset, self._workers = dataset, workers
        self.length = length

    def batches(self, draws: Iterable[Indices]) -> Iterator[Any]:
        """Yield what torch's loader makes of each draw; workers fetch a few draws ahead."""
        return iter(
            DataLoader(
                self._dataset,
                batch_sampler=_Lists(draws),
                num_workers=self._workers,
            )
        )


class _Lists:
    """Draws as lists of Python numbers, which is what datasets expect."""

    def __init__(self, draws: Iterable[Indices]) -> None:
        self._draws = draws

    def __iter__(self) -> Iterator[list[int]]:
        return (draw.tolist() for draw in self._draws)


def records_of(dataset: Any, *, workers: int = 0, may_be_empty: bool = False) -> Records:
    """Return access to a dataset's records, or say why there is none.

    Args:
        dataset: tensors or numpy arrays (one, a tuple or a dict of them), a ``TensorDataset``, or
            any dataset with ``__len__`` and ``__getitem__``.
        workers: processes that fetch the records of a map-style dataset.
        may_be_empty: whether tensors without rows will do, of which the shapes are known.
    """
    found = _found(dataset, workers)
    if found.length < 1 and not (may_be_empty and isinstance(found, InMemory)):
        also = ", or be tensors without rows on a rank that has none" if may_be_empty else ""
        raise InvalidValueError(f"dataset must have at least one record{also}, got an empty one")
    return found


def part_of(records: Records, rank: int, size: int) -> Records:
    """Return every size-th record: those of one rank."""
    if size == 1:
        return records
    return InSubset(records, np.arange(rank, records.length, size))


def checked_pair(batch: Any) -> tuple[Any, ...]:
    """Return a batch if it is (inputs, …, targets)."""
    if not isinstance(batch, tuple) or len(batch) < 2:
        raise InvalidTypeError(
            "dataset must be of (inputs, targets), in memory as a tuple of two tensors, got "
            f"records of one {type(batch).__name__}"
        )
    return batch


def _found(dataset: Any, workers: int) -> Records:
    kind = type(dataset).__name__
    if isinstance(dataset, DataLoader):
        raise InvalidTypeError(
            "dataset must be the data itself, got a DataLoader: its batches are not what the plan "
            "was accounted for; pass loader.dataset"
        )
    if isinstance(dataset, IterableDataset) or (
        not isinstance(dataset, Tensor | np.ndarray) and isinstance(dataset, Iterator)
    ):
        raise InvalidTypeError(
            f"dataset must give any record by its index, got {kind}, which gives them in an order "
            "of its own: sampling at random, on which the privacy rests, cannot be done with it"
        )
    if (
        isinstance(dataset, TensorDataset)
        and type(dataset).__getitem__ is TensorDataset.__getitem__
    ):
        return _in_memory(dataset.tensors)
    if isinstance(dataset, Subset) and type(dataset) is Subset:
        indices = np.asarray(dataset.indices, dtype=np.int64)
        if np.unique(indices).size < indices.size:
            raise InvalidValueError(
                "dataset must have every record once, got a Subset with repeated indices: a record "
                "that is there twice counts twice, and the plan protects one"
            )
        return InSubset(_found(dataset.dataset, workers), indices)
    if isinstance(dataset, ConcatDataset) and len({*map(id, dataset.datasets)}) < len(
        dataset.datasets
    ):
        raise InvalidValueError(
            "dataset must have every record once, got a ConcatDataset with the same dataset twice: "
            "a record that is there twice counts twice, and the plan protects one"
        )
    if isinstance(dataset, list) and any(isinstance(each, Tensor | np.ndarray) for each in dataset):
        raise InvalidTypeError(
            "dataset must be a tuple (inputs, targets) of arrays with one record a row, or a list "
            "of (input, target) records, got a list of arrays"
        )
    if isinstance(dataset, Tensor | np.ndarray | tuple | Mapping):
        return _in_memory(dataset)
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise InvalidTypeError(
            f"dataset must be tensors, arrays or a dataset with __len__ and __getitem__, got {kind}"
        )
    return FromDataset(dataset, len(dataset), workers)


def _in_memory(dataset: Any) -> Records:
    leaves: list[Tensor] = []

    def taken(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: taken(each) for key, each in value.items()}
        if isinstance(value, tuple | list):
            return tuple(taken(each) for each in value)
        leaves.append(_tensor(value))
        return leaves[-1]

    tensors = taken(dataset)
    lengths = {len(leaf) if leaf.dim() else None for leaf in leaves}
    if len(lengths) != 1 or None in lengths:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves[:4]) or "none"
        shapes += ", …" if len(leaves) > 4 else ""
        raise InvalidValueError(
            f"dataset must have one record a row in each of its tensors, got shapes {shapes}"
        )
    return InMemory(tensors, len(leaves[0]))


def _tensor(value: Any) -> Tensor:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        if not value.dtype.isnative or any(stride < 0 for stride in value.strides):
            value = np.ascontiguousarray(value, dtype=value.dtype.newbyteorder("="))
        with warnings.catch_warnings():  # torch warns of what is never done here: writing to it
            warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
            return torch.from_numpy(value)
    if isinstance(value, Tensor):
        return value.detach()
    raise InvalidTypeError(
        f"dataset must be made of tensors or arrays of numbers, got {type(value).__name__}"
    )


def warn_of_other_size(plan: Plan | ReactivePlan, length: int, *, stacklevel: int) -> None:
    """Warn if there are far more or fewer records than were planned for."""
    if not 0.5 <= length / plan.dataset_size <= 2.0:
        warnings.warn(
            f"the dataset has another number of records than the plan, {plan.dataset_size:,}, "
            "by more than a factor of two: the claim holds where every record is there once, but "
            "batches have other sizes than the step sizes and the noise were planned for",
            stacklevel=stacklevel,
        )

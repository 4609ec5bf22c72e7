"""Batches of records by index: from tensors in memory, or from a map-style dataset.

A batch is made of plain tensors in new containers, which may be edited without changing the
dataset.
"""

import warnings
from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from dither.planning import Plan, ReactivePlan
from dither.randomness import Source
from dither.sampling import Indices, sampler_for
from dither.training.collate import Collate, CollateFn, Finding, leaves_of, plain
from dither.training.users import Users
from dither.validate import InvalidTypeError, InvalidValueError


class InMemory:
    """Tensors with one row per record."""

    is_in_memory = True

    def __init__(self, tensors: Any, length: int) -> None:
        self._tensors, self.length = tensors, length

    def batches(self, draws: Iterable[Indices]) -> Iterator[Any]:
        """Yield copies of the rows of each draw, or one row of zeros if there are no records."""
        return (self._rows(torch.from_numpy(draw)) for draw in draws)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        """Return a record."""
        return plain(self._tensors, itemgetter(index))

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return a list of records, for a ``collate_fn``."""
        rows = self._rows(torch.tensor(indices))
        return [plain(rows, itemgetter(i)) for i in range(len(indices))]

    def _rows(self, index: Tensor) -> Any:
        if not self.length:
            return plain(self._tensors, lambda leaf: leaf.new_zeros(1, *leaf.shape[1:]))
        return plain(self._tensors, lambda leaf: leaf.index_select(0, index.to(leaf.device)))


class InSubset:
    """Some of the records of others."""

    def __init__(self, base: "Records", indices: Indices) -> None:
        self._base, self._indices, self.length = base, indices, indices.size

    @property
    def is_in_memory(self) -> bool:
        """Whether the others are in memory."""
        return self._base.is_in_memory

    def batches(self, draws: Iterable[Indices]) -> Iterator[Any]:
        """Yield one batch per draw; an empty subset gives records of the others."""
        return self._base.batches(self._indices[draw] if self.length else draw for draw in draws)

    def __getitem__(self, index: int) -> Any:
        """Return a record."""
        return self._base[int(self._indices[index])]


class FromDataset:
    """A map-style dataset behind torch's ``DataLoader``."""

    is_in_memory = False

    def __init__(self, dataset: Any, collate_fn: CollateFn | None, workers: int) -> None:
        self.dataset, self.length, self._workers = dataset, len(dataset), workers
        self._collate = Collate(collate_fn)
        self._has_warned = False

    def __getitem__(self, index: int) -> Any:
        """Return a record, as the dataset gives it."""
        return self.dataset[index]

    def batches(self, draws: Iterable[Indices]) -> Iterator[Any]:
        """Return one batch per draw; workers begin at once to fetch a few draws ahead."""
        loader: DataLoader[Any] = DataLoader(
            self.dataset,
            batch_sampler=(draw.tolist() for draw in draws),
            collate_fn=self._collate,
            num_workers=self._workers,
        )
        return self._checked(iter(loader))

    def _checked(self, fetched: Iterator[tuple[Any, Finding | None]]) -> Iterator[Any]:
        for batch, finding in fetched:
            self._report(finding)
            yield plain(batch, lambda leaf: leaf)

    def _report(self, finding: Finding | None) -> None:
        if finding == "mixes":
            raise InvalidValueError(
                "collate_fn must make each record's row from that record alone, got rows that "
                "change with other records of the batch: leave out mixup and negatives from the "
                "batch, and normalize with public constants"
            )
        if finding == "pads" and not self._has_warned:
            self._has_warned = True
            warnings.warn(
                "collate_fn pads to the longest record of the batch, so that a record's row "
                "depends on other records: pad to a public length, or use a model and a loss that "
                "ignore padding",
                stacklevel=6,  # where the loop asks for its next batch
            )
        self._collate.is_checked |= finding is not None  # also in workers that start later


Records: TypeAlias = InMemory | InSubset | FromDataset
"""Batches of records by index: one per draw, which has at least one index."""


class Draws:
    """The batches of the steps to come: which records or users each has, and their rows.

    Args:
        records: this rank's records.
        users: this rank's users, if users are drawn instead of records.
        plan: how to sample.
        source: opens a stream of random numbers for every step.
        length: how many records or users all ranks have together.
        rank: of this process.
    """

    def __init__(
        self,
        records: Records,
        users: Users | None,
        plan: Plan | ReactivePlan,
        source: Source,
        *,
        length: int,
        rank: int,
    ) -> None:
        self._records, self._users, self._plan, self._source = records, users, plan, source
        self._length, self._own_length = length, records.length if users is None else users.count
        self._of_rank = f" of rank {rank}" if rank else ""
        self._drawn: dict[int, tuple[Indices, Indices]] = {}
        self.restart(0)

    def batches(self, first: int, last: int) -> Iterator[tuple[Any, Indices]]:
        """Return the batches of steps ``first`` to ``last`` - 1, and the rows of those drawn.

        The rows are how many each record (1) or user has, in the order of the batch. A step that
        was drawn before and not taken has the same ones again. An empty draw comes as one record,
        and has no rows.
        """
        counts: list[Indices] = []
        self._drawn = {step: draw for step, draw in self._drawn.items() if step >= first}
        fetched = self._records.batches(self._draw(first, last, counts))
        return ((batch, counts.pop(0)) for batch in fetched)

    def forget(self, step: int) -> None:
        """Forget the records of a step that was taken."""
        self._drawn.pop(step, None)

    def restart(self, step: int) -> None:
        """Draw the records of all steps again from a step on, and the subsets that they are in."""
        self._drawn.clear()
        self._sampler = sampler_for(
            self._plan,
            length=self._length,
            own_length=self._own_length,
            subsets=self._source.stream(f"subsets{self._of_rank}", step),
        )

    def _draw(self, first: int, last: int, counts: list[Indices]) -> Iterator[Indices]:
        for step in range(first, last):
            if step not in self._drawn:
                stream = self._source.stream(f"sampling{self._of_rank}", step)
                draw = self._sampler.draw(self._own_length, stream, step)
                if self._users is None:
                    self._drawn[step] = draw, np.ones(draw.size, np.int64)
                else:
                    stream = self._source.stream(f"rows{self._of_rank}", step)
                    self._drawn[step] = self._users.draw(draw, stream)
            records, count = self._drawn[step]
            counts.append(count)
            yield records if records.size else np.zeros(1, np.int64)


def records_of(
    dataset: Any,
    *,
    collate_fn: CollateFn | None = None,
    workers: int = 0,
    may_be_empty: bool = False,
    dtype: torch.dtype | None = None,
) -> Records:
    """Return access to the records of a dataset.

    Args:
        dataset: tensors, numpy arrays, data frames or series (one, or a tuple or dict of them), a
            ``TensorDataset``, or any dataset with ``__len__`` and ``__getitem__``, such as a list.
        collate_fn: makes a batch from a list of records, as in torch's ``DataLoader``.
        workers: processes that fetch the records of a map-style dataset.
        may_be_empty: whether tensors without rows are allowed.
        dtype: for float64 arrays, data frames and series; torch's default dtype if None.
    """
    if collate_fn is not None and not callable(collate_fn):
        kind = type(collate_fn).__name__
        raise InvalidTypeError(f"collate_fn must be a function or None, got {kind}")
    records = _open_dataset(dataset, collate_fn, workers, dtype or torch.get_default_dtype())
    has_shapes = isinstance(getattr(records, "dataset", records), InMemory)
    if records.length < 1 and not (may_be_empty and has_shapes):
        also = ": pass tensors without rows on a rank without records" if may_be_empty else ""
        raise InvalidValueError(f"the data must have at least one record, got an empty one{also}")
    return records


def part_of(records: Records, rank: int, size: int) -> Records:
    """Return the records of one rank: every size-th."""
    if size == 1:
        return records
    return InSubset(records, np.arange(rank, records.length, size))


def check_pair(batch: Any) -> tuple[Any, ...]:
    """Return a batch (inputs, …, targets) as a tuple."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise InvalidTypeError(
            "the data must be of (inputs, targets), in memory as a tuple of two tensors, got "
            f"records of one {type(batch).__name__}"
        )
    return tuple(batch)


def warn_of_dataset_size(plan: Plan | ReactivePlan, length: int, *, stacklevel: int) -> None:
    """Warn if there are far more or fewer records than were planned for."""
    if not 0.5 <= length / plan.dataset_size <= 2.0:
        warnings.warn(
            f"the dataset has another number of {plan.unit}s than the plan, {plan.dataset_size:,}, "
            "by more than a factor of two: the claim holds, but the step sizes and the noise were "
            f"planned for batches of another size; dataset_size counts {plan.unit}s",
            stacklevel=stacklevel,
        )


def _open_dataset(
    dataset: Any, collate_fn: CollateFn | None, workers: int, dtype: torch.dtype
) -> Records:
    _check_access(dataset)
    if type(dataset) is Subset:
        base = _open_dataset(dataset.dataset, collate_fn, workers, dtype)
        indices = np.asarray(dataset.indices, dtype=np.int64)
        indices = np.where(indices < 0, indices + base.length, indices)
        _check_once(np.unique(indices).size == indices.size, "a Subset with repeated indices")
        return InSubset(base, indices)
    if isinstance(dataset, ConcatDataset):
        places = np.stack(_places(dataset), axis=1)
        once = len(np.unique(places, axis=0)) == len(places)
        _check_once(once, "a ConcatDataset with the same records twice")
    if isinstance(dataset, list) and collate_fn is None and any(map(_is_array, dataset)):
        raise InvalidTypeError(
            "the data must be a tuple (inputs, targets) of arrays with one row per record, or a "
            "list of (input, target) records, got a list of arrays"
        )
    if getattr(type(dataset), "__getitem__", None) is TensorDataset.__getitem__:
        dataset = dataset.tensors
    if _is_array(dataset) or isinstance(dataset, tuple | Mapping):
        tensors = _in_memory(dataset, dtype)
        return tensors if collate_fn is None else FromDataset(tensors, collate_fn, workers)
    return FromDataset(dataset, collate_fn, workers)


def _check_access(dataset: Any) -> None:
    kind = type(dataset).__name__
    if isinstance(dataset, DataLoader):
        raise InvalidTypeError(
            "the data must be given directly, got a DataLoader, whose batches are not drawn as the "
            "plan was accounted for: pass loader.dataset, and collate_fn=loader.collate_fn"
        )
    if isinstance(dataset, IterableDataset | Iterator):
        raise InvalidTypeError(
            f"the data must give any record by its index, got {kind}, which gives records in its "
            "own order: the privacy guarantee needs random sampling"
        )
    has_index = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not has_index or isinstance(dataset, str | bytes):
        raise InvalidTypeError(
            "the data must be tensors, arrays or a dataset with __len__ and __getitem__, "
            f"got {kind}"
        )


def _places(dataset: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for every record, the dataset that it comes from and its index there."""
    if isinstance(dataset, ConcatDataset):
        found = [_places(each) for each in dataset.datasets]
        return np.concatenate([each[0] for each in found]), np.concatenate([e[1] for e in found])
    if isinstance(dataset, Subset):
        sources, indices = _places(dataset.dataset)
        chosen = np.asarray(dataset.indices, dtype=np.int64)
        return sources[chosen], indices[chosen]
    return np.full(len(dataset), id(dataset), np.int64), np.arange(len(dataset), dtype=np.int64)


def _check_once(is_once: bool, got: str) -> None:
    if not is_once:
        raise InvalidValueError(
            f"the data must have every record once, got {got}: the plan protects a record that "
            "occurs once"
        )


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray) or hasattr(value, "to_numpy")


def _in_memory(dataset: Any, dtype: torch.dtype) -> InMemory:
    tensors = plain(dataset, lambda leaf: _tensor(leaf, dtype))
    leaves = leaves_of(tensors)
    lengths = {len(leaf) if leaf.dim() else None for leaf in leaves}
    if len(lengths) != 1 or None in lengths:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves[:4]) or "none"
        shapes += ", …" if len(leaves) > 4 else ""
        raise InvalidValueError(
            f"the data must have one row per record in each of its tensors, got shapes {shapes}"
        )
    return InMemory(tensors, len(leaves[0]))


def _tensor(value: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    array = _table(value) if hasattr(value, "to_numpy") else value
    is_plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
    if not is_plain or array.dtype.kind not in "biuf":
        kind = type(value).__name__
        raise InvalidTypeError(f"the data must be made of tensors or arrays of numbers, got {kind}")
    native = array.dtype.newbyteorder("=") if array.itemsize <= 8 else np.dtype(np.float64)
    if array.dtype != native or any(s < 0 or s % array.itemsize for s in array.strides):
        array = np.array(array, native, order="C")
    with warnings.catch_warnings():  # torch warns of arrays that must not be written to
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        tensor = torch.from_numpy(array)
    return tensor.to(dtype) if tensor.dtype == torch.float64 else tensor


def _table(table: Any) -> NDArray[Any]:
    """Return a data frame or a series, of pandas or polars, as an array of numbers."""
    is_frame = len(table.shape) == 2 and hasattr(table, "columns")
    columns = [(getattr(table, "name", None), table)]
    if is_frame:
        columns = [*table.items()] if hasattr(table, "items") else [(c.name, c) for c in table]
    arrays: list[NDArray[Any]] = []
    refused: list[str] = []
    for name, column in columns:
        array = column.to_numpy()
        if _has_missing(column) or array.dtype.kind not in "biuf":
            refused.append("(unnamed)" if name is None else repr(name))
        arrays.append(array.astype(np.int64) if array.dtype.kind in "iu" else array)
    if refused:
        names = ", ".join(refused[:4]) + (", …" if len(refused) > 4 else "")
        raise InvalidTypeError(
            f"the data must have a number in every cell, got other values in the columns {names}: "
            "encode text, dates and categories as numbers, and fill or drop missing cells"
        )
    return np.stack(arrays, axis=1) if is_frame else arrays[0]


def _has_missing(column: Any) -> bool:
    """Return whether a nullable column has empty cells; NaN in a float column is a number."""
    if hasattr(column, "null_count"):
        return bool(column.null_count())
    return not isinstance(column.dtype, np.dtype) and bool(column.isna().any())

"""Batches of records by index: from tensors in memory, or from a map-style dataset.

A batch is made of plain tensors in new containers, which may be edited without changing the
dataset. A ``collate_fn`` of the caller must make each record's row from that record alone: some
records of its first batch are replaced by copies of others and collated again with the same seed,
and the rows of the records that were kept must not change.
"""

import copy
import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Any, Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset

from dither.planning import Plan, ReactivePlan
from dither.sampling.sampler import Indices
from dither.validate import InvalidTypeError, InvalidValueError

CollateFn = Callable[[list[Any]], Any]
Finding = Literal["fine", "pads", "mixes"]


class Records(Protocol):
    """Gives batches of records by index."""

    length: int

    @property
    def is_in_memory(self) -> bool:
        """Whether all records can be read without fetching them one by one."""
        ...

    def batches(self, draws: Iterable[Indices]) -> Iterator[Any]:
        """Yield one batch per draw; a draw has at least one index."""
        ...


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

    def __getitems__(self, indices: list[int]) -> list[Any]:
        """Return a list of records, for a ``collate_fn``."""
        rows = self._rows(torch.tensor(indices))
        return [_mapped(rows, itemgetter(i)) for i in range(len(indices))]

    def _rows(self, index: Tensor) -> Any:
        if not self.length:
            return _mapped(self._tensors, lambda leaf: leaf.new_zeros(1, *leaf.shape[1:]))
        return _mapped(self._tensors, lambda leaf: leaf.index_select(0, index.to(leaf.device)))


class InSubset:
    """Some of the records of others."""

    def __init__(self, base: Records, indices: Indices) -> None:
        self._base, self._indices, self.length = base, indices, indices.size

    @property
    def is_in_memory(self) -> bool:
        """Whether the others are in memory."""
        return self._base.is_in_memory

    def batches(self, draws: Iterable[Indices]) -> Iterator[Any]:
        """Yield one batch per draw; an empty subset gives records of the others."""
        return self._base.batches(self._indices[draw] if self.length else draw for draw in draws)


class FromDataset:
    """A map-style dataset behind torch's ``DataLoader``."""

    is_in_memory = False

    def __init__(self, dataset: Any, collate_fn: CollateFn | None, workers: int) -> None:
        self.dataset, self.length, self._workers = dataset, len(dataset), workers
        self._collate = _Collate(collate_fn)
        self._has_warned = False

    def batches(self, draws: Iterable[Indices]) -> Iterator[Any]:
        """Yield one batch per draw; workers fetch a few draws ahead."""
        loader: DataLoader[Any] = DataLoader(
            self.dataset,
            batch_sampler=(draw.tolist() for draw in draws),
            collate_fn=self._collate,
            num_workers=self._workers,
        )
        for batch, finding in loader:
            self._report(finding)
            yield _mapped(batch, lambda leaf: leaf)

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
                stacklevel=3,
            )
        self._collate.is_checked |= finding is not None  # also in workers that start later


class _Collate:
    """A ``collate_fn``, checked where the records are fetched, so that each is fetched once."""

    def __init__(self, collate_fn: CollateFn | None) -> None:
        self._collate_fn = collate_fn or torch.utils.data.default_collate
        self.is_checked = collate_fn is None

    def __call__(self, records: list[Any]) -> tuple[Any, Finding | None]:
        finding = None
        if not self.is_checked and len(records) > 1:
            finding = _check_collate(self._collate_fn, records[:64])
            self.is_checked = finding != "mixes"
        return self._collate_fn(records), finding


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
    found = _found(dataset, collate_fn, workers, dtype or torch.get_default_dtype())
    has_shapes = isinstance(getattr(found, "dataset", found), InMemory)
    if found.length < 1 and not (may_be_empty and has_shapes):
        also = ": pass tensors without rows on a rank without records" if may_be_empty else ""
        raise InvalidValueError(f"dataset must have at least one record, got an empty one{also}")
    return found


def part_of(records: Records, rank: int, size: int) -> Records:
    """Return the records of one rank: every size-th."""
    if size == 1:
        return records
    return InSubset(records, np.arange(rank, records.length, size))


def checked_pair(batch: Any) -> tuple[Any, ...]:
    """Return a batch (inputs, …, targets) as a tuple."""
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise InvalidTypeError(
            "dataset must be of (inputs, targets), in memory as a tuple of two tensors, got "
            f"records of one {type(batch).__name__}"
        )
    return tuple(batch)


def warn_of_other_size(plan: Plan | ReactivePlan, length: int, *, stacklevel: int) -> None:
    """Warn if there are far more or fewer records than were planned for."""
    if not 0.5 <= length / plan.dataset_size <= 2.0:
        warnings.warn(
            f"the dataset has another number of records than the plan, {plan.dataset_size:,}, "
            "by more than a factor of two: the claim holds if every record occurs once, but the "
            "step sizes and the noise were planned for batches of another size",
            stacklevel=stacklevel,
        )


def _found(dataset: Any, collate_fn: CollateFn | None, workers: int, dtype: torch.dtype) -> Records:
    _check_access(dataset)
    if type(dataset) is Subset:
        base = _found(dataset.dataset, collate_fn, workers, dtype)
        indices = np.asarray(dataset.indices, dtype=np.int64)
        indices = np.where(indices < 0, indices + base.length, indices)
        _check_once(np.unique(indices).size == indices.size, "a Subset with repeated indices")
        return InSubset(base, indices)
    if isinstance(dataset, ConcatDataset):
        once = len({*map(id, dataset.datasets)}) == len(dataset.datasets)
        _check_once(once, "a ConcatDataset with the same dataset twice")
    if isinstance(dataset, list) and collate_fn is None and any(map(_is_array, dataset)):
        raise InvalidTypeError(
            "dataset must be a tuple (inputs, targets) of arrays with one row per record, or a "
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
            "dataset must be the data itself, got a DataLoader, whose batches are not drawn as the "
            "plan was accounted for: pass loader.dataset, and collate_fn=loader.collate_fn"
        )
    if isinstance(dataset, IterableDataset | Iterator):
        raise InvalidTypeError(
            f"dataset must give any record by its index, got {kind}, which gives records in its "
            "own order: the privacy guarantee needs random sampling"
        )
    has_index = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    if not has_index or isinstance(dataset, str | bytes):
        raise InvalidTypeError(
            f"dataset must be tensors, arrays or a dataset with __len__ and __getitem__, got {kind}"
        )


def _check_once(is_once: bool, got: str) -> None:
    if not is_once:
        raise InvalidValueError(
            f"dataset must have every record once, got {got}: the plan protects a record that "
            "occurs once"
        )


def _is_array(value: Any) -> bool:
    return isinstance(value, Tensor | np.ndarray) or hasattr(value, "to_numpy")


def _mapped(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to the leaves of new containers; mappings become plain dicts."""
    if isinstance(value, Mapping):
        return {key: _mapped(each, function) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a namedtuple
        return value._make(_mapped(each, function) for each in value)
    if type(value) in (tuple, list):
        return type(value)(_mapped(each, function) for each in value)
    return function(value)


def _leaves(value: Any) -> list[Any]:
    found: list[Any] = []
    _mapped(value, found.append)
    return found


def _in_memory(dataset: Any, dtype: torch.dtype) -> InMemory:
    tensors = _mapped(dataset, lambda leaf: _tensor(leaf, dtype))
    leaves = _leaves(tensors)
    lengths = {len(leaf) if leaf.dim() else None for leaf in leaves}
    if len(lengths) != 1 or None in lengths:
        shapes = ", ".join(str(tuple(leaf.shape)) for leaf in leaves[:4]) or "none"
        shapes += ", …" if len(leaves) > 4 else ""
        raise InvalidValueError(
            f"dataset must have one row per record in each of its tensors, got shapes {shapes}"
        )
    return InMemory(tensors, len(leaves[0]))


def _tensor(value: Any, dtype: torch.dtype) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach()
    array = _table(value) if hasattr(value, "to_numpy") else value
    is_plain = isinstance(array, np.ndarray) and not isinstance(array, np.ma.MaskedArray)
    if not is_plain or array.dtype.kind not in "biuf":
        kind = type(value).__name__
        raise InvalidTypeError(f"dataset must be made of tensors or arrays of numbers, got {kind}")
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
            f"dataset must have a number in every cell, got other values in the columns {names}: "
            "encode text, dates and categories as numbers, and fill or drop missing cells"
        )
    return np.stack(arrays, axis=1) if is_frame else arrays[0]


def _has_missing(column: Any) -> bool:
    """Return whether a nullable column has empty cells; NaN in a float column is a number."""
    if hasattr(column, "null_count"):
        return bool(column.null_count())
    return not isinstance(column.dtype, np.dtype) and bool(column.isna().any())


def _check_collate(collate_fn: CollateFn, records: list[Any]) -> Finding:
    """Return how rows depend on other records; "fine" where that cannot be decided."""
    finding: Finding = "fine"
    try:
        ranked = sorted(records, key=_size, reverse=True)
        places = np.linspace(0, len(ranked) - 1, min(8, len(ranked))).astype(int)
        records = [ranked[place] for place in places]  # few, but of all sizes
        for seed in range(8):
            finding, is_random = _compare(collate_fn, records, seed)
            # Rows may mix for some seeds only; a generator of its own can differ by chance.
            if (finding == "mixes") == is_random:
                break
    except Exception:  # noqa: BLE001 - whatever a collate_fn raises for a record that occurs twice
        return "fine"
    return finding


def _compare(collate_fn: CollateFn, records: list[Any], seed: int) -> tuple[Finding, bool]:
    """Replace records by copies of others, and compare the rows of those that were kept.

    Also return whether random numbers were drawn from the generators of torch, numpy or Python.
    """
    n = len(records)
    (whole, drawn), (again, _) = (_collated(collate_fn, records, seed) for _ in range(2))
    is_random = drawn != _collated(lambda _: None, [], seed)[1]
    if not all(_is_close(a, b) for a, b in zip(whole, again, strict=True)):
        return "fine", False
    larger, _ = _collated(collate_fn, [*records, records[-1]], seed)
    lengths = [(*a.shape[:1], *b.shape[:1]) for a, b in zip(whole, larger, strict=True)]
    finding: Finding = "fine"
    for kept in _kept_places(records):
        nearest = [kept[np.abs(kept - i).argmin()] for i in range(n)]
        other, drawn_now = _collated(collate_fn, [records[i] for i in nearest], seed)
        # The first record alone gets the same random numbers as before in any order of the rows.
        is_comparable = drawn_now == drawn and (not is_random or kept[-1] == 0)
        for a, b, length in zip(whole, other, lengths, strict=True):
            if length != (n, n + 1):
                continue  # not one row per record
            if a.shape != b.shape:
                finding = "pads"
            elif is_comparable and _rows_in_common(a, b) < len(kept):
                return "mixes", is_random
    return finding, is_random


def _kept_places(records: list[Any]) -> list[Indices]:
    """Return places to keep in turn, of records that are sorted, the longest first."""
    sizes = [_size(record) for record in records]
    places, longest = np.arange(len(sizes)), sizes.count(sizes[0])
    shorter = places[longest if longest < len(sizes) else len(sizes) // 2 :]
    return [places[:1], shorter, places[::2], places[1::2]]


def _collated(collate_fn: CollateFn, records: list[Any], seed: int) -> tuple[list[Tensor], Any]:
    """Return the tensors of a batch, and the random numbers that would be drawn next.

    The generators of torch, numpy and Python, and the records, are left as they were.
    """
    copies = [_mapped(record, _copied) for record in records]
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with torch.random.fork_rng(devices), warnings.catch_warnings(action="ignore"):
        try:
            torch.default_generator.manual_seed(seed)
            np.random.seed(seed)  # noqa: NPY002
            random.seed(seed)
            leaves = _leaves(collate_fn(copies))
            following = int(torch.randint(2**62, ())), np.random.random(), random.random()  # noqa: NPY002, S311
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)  # noqa: NPY002
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)], following


def _copied(leaf: Any) -> Any:
    return leaf.clone() if isinstance(leaf, Tensor) else copy.copy(leaf)


def _size(value: Any) -> int:
    """Return the number of entries of a record."""
    if isinstance(value, Mapping | tuple | list):
        return sum(map(_size, value.values() if isinstance(value, Mapping) else value))
    if isinstance(value, Tensor | np.ndarray):
        return int(np.prod(value.shape))
    return len(value) if isinstance(value, str | bytes) else 1


def _rows_in_common(a: Tensor, b: Tensor) -> int:
    """Return how many rows occur in both, in any order."""
    unused = set(range(len(a)))
    for i, row in enumerate(b):
        match = next((j for j in (i, *unused) if j in unused and _is_close(a[j], row)), None)
        unused -= {match}
    return len(a) - len(unused)


def _is_close(a: Tensor, b: Tensor) -> bool:
    """Return whether tensors agree up to rounding."""
    if a.shape != b.shape or not a.is_floating_point() or not a.numel():
        return torch.equal(a, b)
    tolerance = max(3e-4, torch.finfo(a.dtype).eps ** 0.5)
    scale = float(torch.nan_to_num(a, 0.0, 0.0, 0.0).abs().max())
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)

"""A ``collate_fn`` of the caller, which must make each record's row from that record alone.

Some records of its first batch are replaced by copies of others and collated again with the same
seed: the rows of the records that were kept must not change, but for their order and padding.
"""

import copy
import random
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dither.clipping.random_state import random_state, set_random_state

CollateFn = Callable[[list[Any]], Any]
Finding = Literal["fine", "pads", "mixes"]
_FAILURES = (ArithmeticError, AssertionError, LookupError, RuntimeError, TypeError, ValueError)


def plain(value: Any, function: Callable[[Any], Any]) -> Any:
    """Apply a function to the leaves of new containers; mappings become plain dicts."""
    if isinstance(value, Mapping):
        return {key: plain(each, function) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_make"):  # a namedtuple
        return value._make(plain(each, function) for each in value)
    if type(value) in (tuple, list):
        return type(value)(plain(each, function) for each in value)
    return function(value)


def leaves_of(value: Any) -> list[Any]:
    """Return the leaves of nested containers."""
    found: list[Any] = []
    plain(value, found.append)
    return found


class Collate:
    """A ``collate_fn``, checked where the records are fetched, so that each is fetched once."""

    def __init__(self, collate_fn: CollateFn | None) -> None:
        self._collate_fn = collate_fn or torch.utils.data.default_collate
        self.is_checked = collate_fn is None

    def __call__(self, records: list[Any]) -> tuple[Any, Finding | None]:
        """Return a batch, and what the check has found if this was the batch to check."""
        finding = None
        if not self.is_checked and len(records) > 1:
            finding = _check_collate(self._collate_fn, records[:64])
            self.is_checked = finding != "mixes"
        return self._collate_fn(records), finding


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
    except _FAILURES:  # a collate_fn may not work for other records than were drawn
        return "fine"
    return finding


def _compare(collate_fn: CollateFn, records: list[Any], seed: int) -> tuple[Finding, bool]:
    """Replace records by copies of others, and compare the rows of those that were kept.

    Also return whether random numbers were drawn from the generators of torch, numpy or Python.
    """
    n = len(records)
    (original, drawn), (again, _) = (_collate(collate_fn, records, seed) for _ in range(2))
    is_random = drawn != _collate(lambda _: None, [], seed)[1]
    if not all(_is_close(a, b) for a, b in zip(original, again, strict=True)):
        return "fine", False
    larger, _ = _collate(collate_fn, [*records, records[-1]], seed)
    lengths = [(*a.shape[:1], *b.shape[:1]) for a, b in zip(original, larger, strict=True)]
    finding: Finding = "fine"
    for kept in _places_to_keep(records):
        nearest = [kept[np.abs(kept - i).argmin()] for i in range(n)]
        other, drawn_now = _collate(collate_fn, [records[i] for i in nearest], seed)
        # The first record alone gets the same random numbers as before in any order of the rows.
        is_comparable = drawn_now == drawn and (not is_random or kept[-1] == 0)
        for a, b, length in zip(original, other, lengths, strict=True):
            if length != (n, n + 1):
                continue  # not one row per record
            if a.shape != b.shape:
                finding = "pads"
            elif is_comparable and _rows_in_common(a, b) < len(kept):
                return "mixes", is_random
    return finding, is_random


def _places_to_keep(records: list[Any]) -> list[NDArray[np.int64]]:
    """Return places to keep in turn, of records that are sorted, the longest first."""
    sizes = [_size(record) for record in records]
    places, longest = np.arange(len(sizes)), sizes.count(sizes[0])
    shorter = places[longest if longest < len(sizes) else len(sizes) // 2 :]
    return [places[:1], shorter, places[::2], places[1::2]]


def _collate(collate_fn: CollateFn, records: list[Any], seed: int) -> tuple[list[Tensor], Any]:
    """Return the tensors of a batch, and the random numbers that would be drawn next.

    The generators of torch, numpy and Python, and the records, are left as they were.
    """
    copies = [plain(record, _copy_leaf) for record in records]
    before = random_state(leaf for leaf in leaves_of(copies) if isinstance(leaf, Tensor))
    try:
        torch.default_generator.manual_seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        with warnings.catch_warnings(action="ignore"):
            leaves = leaves_of(collate_fn(copies))
        following = int(torch.randint(2**62, ())), np.random.random(), random.random()  # noqa: NPY002, S311
    finally:
        set_random_state(before)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)], following


def _copy_leaf(leaf: Any) -> Any:
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

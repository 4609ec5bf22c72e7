"""Records told apart by numbers, so that ranks can compare what they hold without sending it."""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dither.clipping.batch import tensors
from dither.sampling.sampler import Indices
from dither.training.records import records_of

Prints = NDArray[np.uint64]
_LOOKED_AT, _PIECE = 128, 4096


def prints_of(dataset: Any, *, some: bool = False) -> Prints:
    """Return a number for every record, or for some that must be fetched one by one.

    Equal records have equal numbers, others almost surely not. Each that is fetched is looked at
    with the same dice, so that random augmentation makes the same of it at any place.
    """
    records = records_of(dataset, may_be_empty=True)
    places = np.arange(records.length)
    if some and not records.is_in_memory:
        places = np.unique(np.linspace(0, records.length - 1, _LOOKED_AT).astype(np.int64))
    if not places.size:
        return np.zeros(0, np.uint64)
    pieces: Iterable[Indices] = np.array_split(places, -(-places.size // _PIECE))
    with _dice_kept():
        parts = records.batches(pieces if records.is_in_memory else _one_by_one(places))
        return np.concatenate([_numbers(part) for part in parts])


def _one_by_one(places: Indices) -> Iterator[Indices]:
    """Yield one place after the other, each with the dice as everybody has them."""
    for place in places:
        torch.default_generator.manual_seed(0)
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 - users' own
        yield np.array([place])


def _numbers(batch: Any) -> Prints:
    """Return Σ w_k·(the k-th word of a record) mod 2^64, with odd weights w_k, always the same."""
    leaves = tensors(batch)
    total = np.zeros(len(leaves[0]), np.uint64)
    weights = np.random.default_rng(2_021)
    for leaf in leaves:
        words = _words(leaf)
        weight = weights.integers(0, 2**63, words.shape[1], np.uint64) * np.uint64(2) + np.uint64(1)
        total = total * np.uint64(0x9E3779B97F4A7C15) + (words * weight).sum(1, dtype=np.uint64)
    return total


def _words(leaf: Tensor) -> Prints:
    """Return the bytes of each row as 64-bit words."""
    rows = leaf.detach().cpu().contiguous().view(len(leaf), -1)
    raw = rows.view(torch.uint8).numpy() if rows.shape[1] else np.zeros((len(leaf), 0), np.uint8)
    return np.pad(raw, ((0, 0), (0, -raw.shape[1] % 8))).view(np.uint64)


@contextmanager
def _dice_kept() -> Iterator[None]:
    """Leave the dice of torch, numpy and Python as they were."""
    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - users' own
    with torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)  # noqa: NPY002

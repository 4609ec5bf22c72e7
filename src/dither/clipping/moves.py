"""Functions that put records into the rows of others: picking, sorting, filling."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dither.clipping.batch import tensors
from dither.clipping.layouts import Layout

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Of a call: positional, and by name."""

_FILLING = (
    "index_add", "index_add_", "index_copy", "index_copy_", "scatter", "scatter_",
    "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_",
)  # fmt: skip
_FILLS = {getattr(Tensor, name) for name in (*_FILLING, "index_put", "index_put_", "__setitem__")}
_FILLS |= {getattr(torch, name) for name in (*_FILLING, "index_put") if hasattr(torch, name)}
"""Functions that put rows of others into their first argument, which may have no records itself."""

_INDEXED = {Tensor.__getitem__, Tensor.__setitem__}
_INDEXED |= {torch.index_put, Tensor.index_put, Tensor.index_put_}
"""Functions whose second argument is an index."""

_MOVING: dict[Any, tuple[int, int | None]] = {
    getattr(home, name): found
    for names, found in {
        ("index_select", "gather", "flip", "select", "narrow", *_FILLING): (1, None),
        ("sort",): (1, -1),
        ("topk",): (2, -1),
        ("roll", "take_along_dim", "repeat_interleave", "masked_select"): (2, None),
        ("split", "chunk", "tensor_split"): (2, 0),
        ("unbind",): (1, 0),
        ("cat", "concat", "stack"): (1, 0),
    }.items()
    for name in names
    for home in (torch, Tensor)
    if hasattr(home, name)
}
"""Functions that can put a record into another's row: the position of their ``dim``, and which it
is if it is not given; None for all dimensions flattened."""


def are_of_records(indices: Tensor) -> bool:
    """Return whether indices may be those of records; a square is a table if its rows differ."""
    if indices.is_floating_point() or indices.dim() < 2:
        return False
    return indices.shape[0] != indices.shape[1] or bool((indices == indices[:1]).all())


def moves_records(
    function: Callable[..., Any],
    arguments: Arguments,
    given: Tensor,
    layout: Layout | None,
    records: int,
) -> bool:
    """Return whether a function can put a record into another's row.

    Args:
        function: what was called.
        arguments: what with, positional and by name.
        given: the first one with records.
        layout: where the records are in it, as far as is known.
        records: how many there are.
    """
    args, kwargs = arguments
    into = function in _FILLS and isinstance(args[0], Tensor)
    if not (into or any(given is each for each in tensors(args[:1]))):
        return False
    given = args[0] if into else given
    if not given.dim():
        return False
    axes = {0} if len(given) % records == 0 else set()
    axes |= {1} if given.shape[1:2] == (records,) else set()
    axes |= set() if layout is None else {layout.axis}
    if function in _INDEXED:
        return any(_picks_rows(given, axis, args[1]) for axis in axes)
    if function not in _MOVING:
        return False
    place, along = _MOVING[function]
    along = args[place] if len(args) > place else along
    along = kwargs.get("dim", kwargs.get("dims", along))
    if along is None:
        return bool(axes)
    dims = along if isinstance(along, tuple | list) else (along,)
    most = max(1, given.dim() + (function is torch.stack))
    return any(dim % most in axes for dim in dims)


def _picks_rows(subject: Tensor, axis: int, index: Any) -> bool:
    """Return whether an index takes some rows along a dimension, or all in another order."""
    indices = index if isinstance(index, tuple) else (index,)
    if axis and any(each is None or each is Ellipsis or torch.is_tensor(each) for each in indices):
        return not all(_is_complete(each) for each in indices)
    if len(indices) <= axis:
        return False
    first = indices[axis]
    if isinstance(first, Tensor) and first.dtype == torch.int64:
        every = torch.arange(subject.shape[axis], device=first.device)
        return not torch.equal(first.flatten(), every)
    return not _is_complete(first)


def _is_complete(index: Any) -> bool:
    return index is None or index is Ellipsis or (isinstance(index, slice) and index == slice(None))


def picked_records(
    function: Callable[..., Any], args: tuple[Any, ...], outputs: list[Tensor], records: int
) -> Tensor | None:
    """Return in which order a call puts all records of its first argument, if it does that."""
    subject = args[0] if args else None
    if not isinstance(subject, Tensor):
        return None
    axis = 0 if subject.shape[:1] == (records,) else 1
    index = _index_along(axis, function, args, outputs)
    if index is None or not index.shape == subject.shape[axis : axis + 1] == (records,):
        return None
    every = torch.arange(records, device=index.device)
    return index if torch.equal(index.sort().values, every) else None


def _index_along(
    axis: int, function: Callable[..., Any], args: tuple[Any, ...], outputs: list[Tensor]
) -> Tensor | None:
    """Return the integers by which a call picks along a dimension."""
    index: Any = None
    if function in (torch.index_select, Tensor.index_select) and len(args) == 3:
        index = args[2] if args[1] == axis else None
    elif function is Tensor.__getitem__ and axis == 0:
        index = args[1]
    elif function in (torch.sort, Tensor.sort) and args[0].dim() == 1:
        index = outputs[1]
    is_index = isinstance(index, Tensor) and index.dtype == torch.int64
    return index if is_index else None

"""Functions with which a model can move records about, depending on data or on chance.

What such a model does on one batch says little about the next, so that a proof does not carry over.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_TO_PYTHON = {
    Tensor.item, Tensor.tolist, Tensor.numpy, Tensor.__bool__, Tensor.__int__, Tensor.__float__,
    Tensor.__index__, Tensor.__array__,
}  # fmt: skip
_BY_INDEX = {Tensor.__getitem__, Tensor.__setitem__}
_ANYWHERE = {
    torch.randperm, torch.nonzero, Tensor.nonzero, torch.masked_select, Tensor.masked_select,
    torch.unique, Tensor.unique, torch.take, Tensor.take, torch.index_put, Tensor.index_put,
    Tensor.index_put_, torch.repeat_interleave, Tensor.repeat_interleave,
}  # fmt: skip
_ALONG = {
    getattr(home, name)
    for name in (
        "gather", "take_along_dim", "index_select", "sort", "argsort", "topk", "index_add",
        "index_copy", "index_fill", "scatter", "scatter_add", "scatter_reduce",
    )
    for home in (torch, Tensor)
} | {
    getattr(Tensor, f"{name}_")
    for name in ("index_add", "index_copy", "index_fill", "scatter", "scatter_add")
}  # fmt: skip
_DIMENSION_THIRD = {torch.topk, Tensor.topk, torch.take_along_dim, Tensor.take_along_dim}
_ALL = _TO_PYTHON | _BY_INDEX | _ANYWHERE | _ALONG


def may_depend_on_data(function: Callable[..., Any]) -> bool:
    """Return whether a function is of a kind that can move records; its arguments decide."""
    return function in _ALL


def moves_records(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Return whether a call can move records, or tell the model about their values."""
    if function in _BY_INDEX:
        index = args[1]
        first = index[0] if isinstance(index, tuple) and index else index
        return isinstance(first, Tensor | list)
    if function in _ALONG:
        dims = max(1, int(args[0].dim()))
        return _dimension(function, args, kwargs) % dims == 0
    return True


def _dimension(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    place = 2 if function in _DIMENSION_THIRD else 1
    given = kwargs.get("dim", args[place] if len(args) > place else -1)
    return 0 if given is None else int(given)

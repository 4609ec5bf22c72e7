"""Where the records are in a tensor, and where functions that move dimensions bring them.

In memory, a position and a record are counted as ``(outer · records + record) · inner + rest``.
Reshaping leaves all of these as they are, so that the dimension of the records can be found again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """Where the records are in a tensor.

    Attributes:
        axis: the dimension.
        joined: the records are alone along it ("") or joined with the dimension that was after
            ("after") or before ("before") them.
    """

    axis: int = 0
    joined: str = ""

    def fits(self, tensor: Tensor, records: int) -> bool:
        """Return whether a tensor can have its records there."""
        return self.fits_shape(tensor.shape, records)

    def fits_shape(self, shape: Sequence[int], records: int) -> bool:
        """Return whether a tensor of this shape can have its records there."""
        if len(shape) <= self.axis:
            return False
        size = shape[self.axis]
        return size > 0 and size % records == 0 if self.joined else size == records

    def record_first(self, tensor: Tensor, records: int) -> Tensor:
        """Return the tensor with one entry per record along the first dimension."""
        if self.joined:
            sizes = (records, -1) if self.joined == "after" else (-1, records)
            tensor = tensor.unflatten(self.axis, sizes)
        axis = self.axis + (self.joined == "before")
        return tensor.movedim(axis, 0) if axis else tensor

    def outer(self, shape: Sequence[int], records: int) -> int:
        """Return how many positions are counted before the records."""
        inside = shape[self.axis] // records if self.joined == "before" else 1
        return prod(shape[: self.axis]) * inside


FIRST, SECOND = Layout(0), Layout(1)
JOINED = Layout(0, "after")


_RESHAPES = {
    getattr(home, name)
    for name in ("reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze")
    for home in (torch, Tensor)
    if hasattr(home, name)
}
_TRANSPOSES: dict[Any, Callable[..., Tensor]] = {
    getattr(home, name): getattr(Tensor, name)
    for name in ("transpose", "swapaxes", "swapdims", "permute", "movedim", "moveaxis", "t")
    for home in (torch, Tensor)
    if hasattr(home, name)
}


def layout_of(
    shape: Sequence[int], records: int, any_leading_dims: bool, before: Layout | None = None
) -> Layout | None:
    """Return where the records seem to be in an output; it is verified later.

    Args:
        shape: of the output.
        records: how many there are.
        any_leading_dims: whether they may be along another dimension than the first.
        before: where they are in the input.
    """
    inside = any_leading_dims and before is not None and before.axis < len(shape) - 1
    if before is not None and before.fits_shape(shape, records) and (inside or not before.axis):
        return before
    if shape and shape[0] == records:
        return FIRST
    if any_leading_dims and len(shape) >= 3 and shape[1] == records:
        return SECOND
    return JOINED if len(shape) >= 2 and JOINED.fits_shape(shape, records) else None


def layout_after(
    function: Callable[..., Any],
    arguments: tuple[tuple[Any, ...], dict[str, Any]],
    given: Tensor,
    layout: Layout,
    output: Tensor,
    records: int,
) -> Layout | None:
    """Return where the records are in the output of a function, None if that is unknown.

    Args:
        function: what was called.
        arguments: what with, positional and by name.
        given: the one with the records.
        layout: where they are in it.
        output: what was returned.
        records: how many there are.
    """
    args, kwargs = arguments
    if function in _RESHAPES:
        return _at(output.shape, layout.outer(given.shape, records), records)
    if function in _TRANSPOSES and args[:1] and args[0] is given:
        marks = torch.empty([2 + axis for axis in range(given.dim())], device="meta")
        moved = _TRANSPOSES[function](marks, *args[1:], **kwargs).shape
        return Layout(moved.index(2 + layout.axis), layout.joined)
    if output.shape[: given.dim()] == given.shape:  # with more dimensions behind, perhaps
        return layout
    if layout.fits(output, records) and (given.dim() == output.dim() or layout.axis == 0):
        return layout
    return FIRST if FIRST.fits(output, records) else None


def _at(shape: Sequence[int], outer: int, records: int) -> Layout | None:
    """Return where so many positions are counted before the records."""
    before = 1
    for axis, size in enumerate(shape):
        if before == outer and size % records == 0:
            return Layout(axis, "" if size == records else "after")
        if before * size == outer * records and size % records == 0:
            return Layout(axis, "before")
        before *= size
    return None


class Rows:
    """Rows of records that are anywhere along the leading dimensions.

    Args:
        shape: the leading dimensions.
        owners: the record of every row, in order; −1 for none.
        records: how many there are.

    Example:
        >>> rows = Rows((3,), torch.tensor([1, 0, 1]), 2)
        >>> rows.record_first(torch.tensor([5.0, 6.0, 7.0]), 2)
        tensor([[6., 0.],
                [5., 7.]])
    """

    joined = "anyhow"

    def __init__(self, shape: Sequence[int], owners: Tensor, records: int) -> None:
        self.shape, self.records = tuple(shape), records
        order = owners.argsort(stable=True)
        order = order[int((owners < 0).sum()) :]
        of_rows = owners[order]
        counts = torch.bincount(of_rows, minlength=records)
        starts = counts.cumsum(0) - counts
        places = torch.arange(len(order), device=order.device) - starts[of_rows]
        size = records, max(1, int(counts.max()))
        self._index = torch.zeros(size, dtype=torch.int64, device=order.device)
        self._index[of_rows, places] = order
        self._is_padding = torch.ones(size, dtype=torch.bool, device=order.device)
        self._is_padding[of_rows, places] = False

    def fits(self, tensor: Tensor, records: int) -> bool:
        """Return whether a tensor has these leading dimensions."""
        return tuple(tensor.shape[: len(self.shape)]) == self.shape

    def record_first(self, tensor: Tensor, records: int) -> Tensor:
        """Return records × rows × rest, with zeros for the rows that a record does not have."""
        found = tensor.flatten(0, len(self.shape) - 1)[self._index]
        rest = (1,) * (found.dim() - 2)
        return found.masked_fill(self._is_padding.view(*self._is_padding.shape, *rest), 0)

"""Where the records are in a tensor."""

from collections.abc import Sequence
from enum import Enum

from torch import Tensor


class Layout(Enum):
    """Where the records are in a tensor: first, second, or joined with the dimension after."""

    FIRST = "first"
    SECOND = "second"
    JOINED = "joined"

    def fits(self, tensor: Tensor, records: int) -> bool:
        """Return whether a tensor can have its records there."""
        if self is Layout.SECOND:
            return tensor.dim() > 1 and tensor.shape[1] == records
        if self is Layout.JOINED:
            return tensor.dim() > 0 and len(tensor) % records == 0
        return tensor.dim() > 0 and len(tensor) == records

    def record_first(self, tensor: Tensor, records: int) -> Tensor:
        """Return the tensor with one entry per record along the first dimension."""
        if self is Layout.SECOND:
            return tensor.transpose(0, 1)
        if self is Layout.JOINED:
            return tensor.reshape(records, -1, *tensor.shape[1:])
        return tensor


def layout_of(shape: Sequence[int], records: int, leading_alike: bool) -> Layout | None:
    """Return where the records seem to be, going by the shape alone; a proof follows later."""
    if shape and shape[0] == records:
        return Layout.FIRST
    if leading_alike and len(shape) >= 3 and shape[1] == records:
        return Layout.SECOND
    if leading_alike and len(shape) >= 2 and shape[0] and shape[0] % records == 0:
        return Layout.JOINED
    return None

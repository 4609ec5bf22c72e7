"""A bare parameter that is repeated for every record, as class tokens are."""

import torch
from torch import Tensor

from dither.clipping.contributions import PerRecord
from dither.clipping.registry import Call, UnseenUseError, register


@register(Tensor.expand, Tensor.expand_as, torch.broadcast_to, Tensor.repeat)
def expand(call: Call, gradient: Tensor) -> list[tuple[Tensor, PerRecord]]:
    """Every record has a copy of its own, so that its gradient is what arrives at the copy."""
    parameter = call.args[0]
    missing = gradient.dim() - parameter.dim()
    shape = (1,) * missing + tuple(parameter.shape)
    if shape[0] != 1 or any(
        size not in (1, given) for size, given in zip(shape[1:], gradient.shape[1:], strict=True)
    ):
        raise UnseenUseError("a parameter is repeated along more than the records")
    spread = [axis for axis in range(1, gradient.dim()) if shape[axis] != gradient.shape[axis]]
    reduced = gradient.sum(spread, keepdim=True) if spread else gradient
    return [(parameter, PerRecord(reduced.reshape(call.records, *parameter.shape)))]

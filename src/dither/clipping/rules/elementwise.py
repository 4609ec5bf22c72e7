"""Bare parameters that are added, multiplied or otherwise applied entry by entry.

Position embeddings, scales and shifts: the parameter is broadcast against the records. Give every
record a copy of its own, and the gradient with respect to the copies is one gradient per record.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dither.clipping.batch import accumulation_dtype
from dither.clipping.contributions import PerRecord
from dither.clipping.rules.registry import Call, UnsupportedCallError, register

_IN_PLACE: dict[Any, Callable[..., Tensor]] = {
    Tensor.add_: torch.add,
    Tensor.__iadd__: torch.add,
    Tensor.sub_: torch.sub,
    Tensor.__isub__: torch.sub,
}


@register(
    torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__,
    torch.sub, Tensor.sub, Tensor.__sub__, Tensor.__rsub__,
    torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__,
    torch.div, Tensor.div, Tensor.__truediv__, Tensor.__rtruediv__,
    torch.pow, Tensor.pow, Tensor.__pow__,
    torch.maximum, torch.minimum, torch.where, torch.addcmul, torch.lerp,
    *_IN_PLACE,
)  # fmt: skip
def elementwise(call: Call, gradient: Tensor) -> list[tuple[Tensor, PerRecord]]:
    """Apply the function again to a copy of the parameter for every record."""
    function: Callable[..., Tensor] = _IN_PLACE.get(call.function, call.function)
    copies: dict[int, Tensor] = {}

    def copy(argument: Any) -> Any:
        if not call.is_parameter(argument):
            return argument.detach() if isinstance(argument, Tensor) else argument
        if id(argument) not in copies:
            copies[id(argument)] = _copy_for_every_record(argument, gradient)
        return copies[id(argument)]

    with torch.enable_grad():
        args = [copy(argument) for argument in call.args]
        kwargs = {name: copy(argument) for name, argument in call.kwargs.items()}
        output = function(*args, **kwargs)
    rows = torch.autograd.grad(output, list(copies.values()), gradient.to(output.dtype))
    by_id = {id(parameter): parameter for parameter in call.parameters}
    return [
        (by_id[key], PerRecord(row.reshape(call.records, *by_id[key].shape)))
        for key, row in zip(copies, rows, strict=True)
    ]


def _copy_for_every_record(parameter: Tensor, output: Tensor) -> Tensor:
    missing = output.dim() - parameter.dim()
    copied = parameter.detach().to(accumulation_dtype(parameter.dtype))
    copied = copied.reshape((1,) * missing + tuple(parameter.shape))
    if copied.shape[0] != 1:
        raise UnsupportedCallError("a parameter has an entry of its own for every record")
    return copied.expand(len(output), *copied.shape[1:]).requires_grad_()


@register(Tensor.expand, Tensor.expand_as, torch.broadcast_to, Tensor.repeat)
def expand(call: Call, gradient: Tensor) -> list[tuple[Tensor, PerRecord]]:
    """Every record has a copy of its own, so that its gradient is what arrives at the copy."""
    parameter = call.args[0]
    missing = gradient.dim() - parameter.dim()
    shape = (1,) * missing + tuple(parameter.shape)
    if shape[0] != 1 or any(
        size not in (1, given) for size, given in zip(shape[1:], gradient.shape[1:], strict=True)
    ):
        raise UnsupportedCallError("a parameter is repeated along more than the records")
    spread = [axis for axis in range(1, gradient.dim()) if shape[axis] != gradient.shape[axis]]
    reduced = gradient.sum(spread, keepdim=True) if spread else gradient
    return [(parameter, PerRecord(reduced.reshape(call.records, *parameter.shape)))]

"""Bare parameters that are added, multiplied or otherwise applied entry by entry.

Position embeddings, scales and shifts: the parameter is broadcast against the records. Give every
record a copy of its own, and the gradient with respect to the copies is one gradient per record.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from dither.clipping.batch import accumulation_dtype
from dither.clipping.contributions import PerRecord
from dither.clipping.replacements import mask_of_scores
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
    torch.maximum, torch.minimum, torch.where, torch.addcmul, torch.addcdiv, torch.lerp,
    Tensor.maximum, Tensor.minimum, Tensor.where, Tensor.addcmul, Tensor.addcdiv, Tensor.lerp,
    torch.clamp, Tensor.clamp, torch.atan2, torch.logaddexp, torch.hypot,
    *_IN_PLACE,
    any_leading_dims=True,
    by_entry=True,
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
    copied = _aligned(parameter.detach(), output).to(accumulation_dtype(parameter.dtype))
    return copied.expand(len(output), *copied.shape[1:]).requires_grad_()


def _aligned(parameter: Tensor, output: Tensor) -> Tensor:
    """Return a parameter with the dimensions of an output, the records first."""
    missing = output.dim() - parameter.dim()
    aligned = parameter.reshape((1,) * missing + tuple(parameter.shape))
    if aligned.dim() > 1 and len(aligned) > 1 and aligned.shape[1] == 1:  # the records are second
        aligned = aligned.transpose(0, 1)
    if len(aligned) > 1:
        raise UnsupportedCallError("a parameter has an entry of its own for every record")
    return aligned


@register(
    Tensor.expand, Tensor.expand_as, torch.broadcast_to, Tensor.repeat, mask_of_scores,
    any_leading_dims=True,
)  # fmt: skip
def expand(call: Call, gradient: Tensor) -> list[tuple[Tensor, PerRecord]]:
    """Every record has a copy of its own, so that its gradient is what arrives at the copy."""
    parameter = call.args[0]
    return [(parameter, PerRecord(sum_to(parameter, gradient)))]


def sum_to(parameter: Tensor, gradient: Tensor) -> Tensor:
    """Return gradients of a parameter that was broadcast, one per record."""
    shape = _aligned(parameter, gradient).shape
    pairs = zip(shape[1:], gradient.shape[1:], strict=True)
    if any(size not in (1, given) for size, given in pairs):
        raise UnsupportedCallError("a parameter is repeated along more than the records")
    spread = [axis for axis in range(1, gradient.dim()) if shape[axis] != gradient.shape[axis]]
    reduced = gradient.sum(spread, keepdim=True) if spread else gradient
    return reduced.reshape(len(gradient), *parameter.shape)


@register(functional.prelu, torch.prelu, Tensor.prelu)
def prelu(call: Call, gradient: Tensor) -> list[tuple[Tensor, PerRecord]]:
    """The slope of negative inputs: one for all, or one per channel."""
    inputs, weight = call.arguments("input", "weight")
    slopes = (gradient * inputs.clamp(max=0.0)).reshape(call.records, len(weight.view(-1)), -1)
    return [(weight, PerRecord(slopes.sum(2).view(-1, *weight.shape)))]

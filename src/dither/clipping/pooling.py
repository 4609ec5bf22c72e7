"""Maxima over overlapping windows, more than twice as fast as PyTorch's own on CPUs, and equal.

PyTorch walks over every window by itself. Where windows move by one place at a time, the whole
input can be compared with itself, shifted by one place of the window after the other, in long runs
of memory. Of several equal maxima the first is meant, as in PyTorch, so that gradients are the
same, too; their way back is PyTorch's own.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_MOST_PLACES = 16
_CHUNK = 2**18
"""Numbers that are compared at a time: they stay in the cache."""


class MaxPool2d(torch.autograd.Function):
    """The maximum of every window of a contiguous input."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, kernel: Any) -> Tensor:
        """Return the maxima, and remember where they are."""
        high, wide = inputs.shape[-2] - kernel[0] + 1, inputs.shape[-1] - kernel[1] + 1
        most = inputs.new_empty(*inputs.shape[:2], high, wide)
        places = torch.empty(most.shape, dtype=torch.int64)
        corners = (torch.arange(high)[:, None] * inputs.shape[-1] + torch.arange(wide)).to(most)
        step = max(1, _CHUNK // inputs[0].numel())
        for start in range(0, len(inputs), step):
            part = slice(start, start + step)
            found, offset = _first_maxima(inputs[part], kernel)
            most[part].copy_(found)
            places[part].copy_(offset + corners)
        ctx.save_for_backward(inputs, places)
        ctx.kernel = kernel
        return most

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Send every gradient to the place of its maximum."""
        inputs, places = ctx.saved_tensors
        window = ctx.kernel, (1, 1), (0, 0), (1, 1), False
        back = torch.ops.aten.max_pool2d_with_indices_backward
        return back(gradient.contiguous(), inputs, *window, places), None


def max_pool2d(
    inputs: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """Do what ``torch.nn.functional.max_pool2d`` does, by the quick way where there is one."""
    kernel = _pair(kernel_size)
    is_quick = (
        not return_indices
        and inputs.device.type == "cpu"
        and inputs.dtype in (torch.float32, torch.float64)
        and inputs.dim() == 4
        and inputs.is_contiguous()
        and inputs.numel() > 0
        and _pair(kernel_size if stride is None or stride == [] else stride) == (1, 1)
        and _pair(padding) == (0, 0)
        and _pair(dilation) == (1, 1)
        and 1 < kernel[0] * kernel[1] <= _MOST_PLACES
        and inputs.shape[-2] >= kernel[0]
        and inputs.shape[-1] >= kernel[1]
    )
    if not is_quick:
        window = kernel_size, stride, padding, dilation
        return functional.max_pool2d(inputs, *window, ceil_mode, return_indices)  # type: ignore[call-overload] # a bool
    return MaxPool2d.apply(inputs, kernel)  # type: ignore[no-untyped-call] # torch's


def _first_maxima(inputs: Tensor, kernel: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Return the maximum of every window, and how far behind its corner the first of them is."""
    (high, wide), width = kernel, inputs.shape[-1]
    flat = inputs.view(-1)
    length = flat.numel() - (wide - 1)
    rows, offsets = flat[:length], torch.zeros_like(flat[:length])
    for j in range(1, wide):
        rows, offsets = _larger(rows, offsets, flat[j : j + length], offsets.new_full((), j))
    length -= (high - 1) * width
    most, offset = rows[:length], offsets[:length]
    for i in range(1, high):
        below = slice(i * width, i * width + length)
        most, offset = _larger(most, offset, rows[below], offsets[below] + i * width)
    shape = *inputs.shape[:2], inputs.shape[-2] - high + 1, width - wide + 1
    return most.as_strided(shape, inputs.stride()), offset.as_strided(shape, inputs.stride())


def _larger(one: Tensor, places: Tensor, two: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return the larger entries and their places; the first ones where both are equal."""
    more = torch.maximum(one, two)
    is_two = torch.ne(more, one, out=torch.empty_like(more))
    return more, torch.addcmul(places, is_two, others - places)


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    first, *others = value
    return int(first), int(others[0] if others else first)

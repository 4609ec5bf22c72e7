"""Convolutions in one, two and three dimensions: matrix products of shifted copies of the input.

The shifted copies are a view of the padded input until a chunk of records is asked for. With the
channels last in memory, copying from the view moves runs of kernel width × channels numbers, an
order of magnitude faster than ``torch.nn.functional.unfold``.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from dither.clipping.contributions import Contribution, Factor, Outer, PerRecord, Records
from dither.clipping.rules.registry import Call, UnsupportedCallError, register


class ShiftedInputs(Factor):
    """What a convolution multiplies with its weight: shifted inputs, copied when needed."""

    is_copied = True

    def __init__(self, view: Tensor, dims: int, stored: int) -> None:
        """Take a view, records × groups × output… × kernel… × channels, with ``dims`` of each."""
        self._view, self._dims, self._stored = view, dims, stored
        self.records, self.groups = view.shape[:2]
        self.terms = prod(view.shape[2 : 2 + dims])
        self.width = prod(view.shape[2 + dims :])

    @property
    def stored(self) -> int:
        """The numbers of a record's input, not of its shifted copies."""
        return self._stored

    def rows(self, start: int, stop: int, space: Tensor | None = None) -> Tensor:
        """Return records × groups × terms × width, copied into ``space`` if there is any."""
        view = self._view[start:stop]
        space = self.space(stop - start) if space is None else space[: stop - start]
        return space.copy_(view).view(stop - start, self.groups, self.terms, self.width)

    def space(self, records: int) -> Tensor:
        """Return memory for the shifted inputs of that many records."""
        return self._view.new_empty(records, *self._view.shape[1:])

    def select(self, records: Records) -> "ShiftedInputs":
        """Return the factors of these records alone."""
        return ShiftedInputs(self._view[records], self._dims, self._stored)

    def double(self) -> "ShiftedInputs":
        """Return the same in float64."""
        return ShiftedInputs(self._view.double(), self._dims, self._stored)

    def join(self, count: int) -> "ShiftedInputs":
        """Return the factors with the positions of neighbouring rows joined."""
        view = self._view.unflatten(0, (-1, count)).transpose(1, 2)
        return ShiftedInputs(view, self._dims + 1, count * self._stored)


@register(torch.conv1d, torch.conv2d, torch.conv3d)
def convolution(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """The weight's gradient is Σ_t gradient_t ⊗ shifted input_t over output positions t."""
    inputs, weight, bias, stride, padding, dilation, groups = call.arguments(
        "input", "weight", "bias", "stride", "padding", "dilation", "groups"
    )
    if inputs.dim() != weight.dim():
        raise UnsupportedCallError("a convolution without a dimension for the records")
    groups, dims = groups or 1, weight.dim() - 2
    positions = gradient.shape[2:]
    steps, gaps = _per_dimension(stride, dims, 1), _per_dimension(dilation, dims, 1)
    padded = channels_last(inputs, _sides(padding, gaps, weight.shape[2:]))
    view = shifted_views(padded, groups, positions, weight.shape[2:], steps, gaps)
    left = gradient.reshape(call.records, groups, -1, prod(positions)).transpose(2, 3)
    kernel_first = (len(weight), *weight.shape[2:], weight.shape[1])
    channels_second = (0, dims + 1, *range(1, dims + 1))
    right = ShiftedInputs(view, dims, padded[0].numel())
    product = Outer(left, right, kernel_first, channels_second)
    found: list[tuple[Tensor, Contribution]] = [(weight, product)]
    if bias is not None:
        found.append((bias, PerRecord(gradient.flatten(2).sum(2))))
    return found


def channels_last(inputs: Tensor, sides: Sequence[tuple[int, int]]) -> Tensor:
    """Return the inputs, padded with zeros, as records × positions… × channels in memory."""
    records, channels, *sizes = inputs.shape
    padded_sizes = [low + size + high for size, (low, high) in zip(sizes, sides, strict=True)]
    padded = any(low or high for low, high in sides)
    allocate = inputs.new_zeros if padded else inputs.new_empty
    result = allocate(records, *padded_sizes, channels)
    inner = result
    for axis, (size, (low, _)) in enumerate(zip(sizes, sides, strict=True), start=1):
        inner = inner.narrow(axis, low, size)
    inner.copy_(inputs.movedim(1, -1))
    return result


def shifted_views(
    padded: Tensor,
    groups: int,
    positions: Sequence[int],
    kernel: Sequence[int],
    steps: Sequence[int],
    gaps: Sequence[int],
) -> Tensor:
    """Return a view, records × groups × output… × kernel… × channels, of what was padded."""
    record, *strides, channel = padded.stride()
    channels = padded.shape[-1] // groups
    return padded.as_strided(
        (len(padded), groups, *positions, *kernel, channels),
        (
            record,
            channels * channel,
            *(stride * step for stride, step in zip(strides, steps, strict=True)),
            *(stride * gap for stride, gap in zip(strides, gaps, strict=True)),
            channel,
        ),
    )


def _sides(padding: Any, gaps: Sequence[int], kernel: Sequence[int]) -> list[tuple[int, int]]:
    if padding == "same":
        total = [gap * (size - 1) for gap, size in zip(gaps, kernel, strict=True)]
        return [(each // 2, each - each // 2) for each in total]
    given = _per_dimension(0 if padding == "valid" else padding, len(kernel), 0)
    return [(each, each) for each in given]


def _per_dimension(setting: Any, dims: int, default: int) -> list[int]:
    if setting is None:
        return [default] * dims
    given = [setting] if isinstance(setting, int) else list(setting)
    return given * dims if len(given) == 1 else given

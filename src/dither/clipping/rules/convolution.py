"""Convolutions in one, two and three dimensions: matrix products of shifted copies of the input.

The shifted copies are a view of the padded input until a chunk of records is asked for. With the
channels last in memory, copying from the view moves runs of kernel width × channels numbers, an
order of magnitude faster than ``torch.nn.functional.unfold``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import torch
from torch import Tensor

from dither.clipping.contributions import (
    Contribution,
    Convolved,
    Factor,
    Outer,
    PerRecord,
    Records,
    WeightGradients,
)
from dither.clipping.rules.registry import Call, UnsupportedCallError, register

SUM_COST = 8
"""What adding up one entry costs, relative to a product in a matrix product."""


@dataclass(frozen=True)
class Geometry:
    """Where a convolution's weight meets its inputs.

    Attributes:
        groups: of channels.
        positions: how many outputs there are along every dimension.
        kernel: the size of the kernel.
        steps: the stride.
        gaps: the dilation.
        sides: the zeros before and behind every dimension.
    """

    groups: int
    positions: tuple[int, ...]
    kernel: tuple[int, ...]
    steps: tuple[int, ...]
    gaps: tuple[int, ...]
    sides: tuple[tuple[int, int], ...]

    def places(self, offset: Sequence[int]) -> tuple[slice, ...]:
        """Return which padded inputs meet one entry of the kernel."""
        return tuple(
            slice(k * gap, k * gap + (count - 1) * step + 1, step)
            for k, gap, count, step in zip(
                offset, self.gaps, self.positions, self.steps, strict=True
            )
        )


class ShiftedInputs(Factor):
    """What a convolution multiplies with its weight: shifted inputs, copied when needed.

    Args:
        inputs: one per row.
        geometry: of the convolution.
        count: how many neighbouring rows make a record.
    """

    is_copied = True

    def __init__(self, inputs: Tensor, geometry: Geometry, count: int = 1) -> None:
        self._inputs, self._geometry, self._count = inputs, geometry, count
        self.records, self.groups = len(inputs) // count, geometry.groups
        self.terms = count * prod(geometry.positions)
        self.width = prod(geometry.kernel) * inputs.shape[1] // geometry.groups

    @cached_property
    def _padded(self) -> Tensor:
        return channels_last(self._inputs, self._geometry.sides)

    @cached_property
    def _view(self) -> Tensor:
        view = shifted_views(self._padded, self._geometry)
        return view if self._count == 1 else view.unflatten(0, (-1, self._count)).transpose(1, 2)

    @property
    def _places(self) -> int:
        """How many positions a record's padded inputs have."""
        sizes = zip(self._inputs.shape[2:], self._geometry.sides, strict=True)
        return self._count * prod(low + size + high for size, (low, high) in sizes)

    @property
    def stored(self) -> int:
        """The numbers of a record's input, not of its shifted copies."""
        return self._inputs.shape[1] * self._places

    @property
    def gram_work(self) -> int:
        """The products that the inner products of a record's factors take, in a group."""
        return min(super().gram_work, self._work_without_copies())

    def _work_without_copies(self) -> int:
        return self._places**2 * self._inputs.shape[1] // self.groups + SUM_COST * (
            prod(self._geometry.kernel) * self.terms**2
        )

    def gram(self, start: int, stop: int) -> Tensor:
        """Return the inner products of all pairs of terms, in float64.

        They are sums, over the kernel, of inner products of inputs at two positions. Where kernels
        overlap, it takes less to compute those of all pairs of positions once.
        """
        if super().gram_work <= self._work_without_copies():
            return super().gram(start, stop)
        padded = self._padded.unflatten(0, (-1, self._count))[start:stop].double()
        inputs = padded.unflatten(-1, (self.groups, -1)).movedim(-2, 1)
        sizes, flat = inputs.shape[2:-1], inputs.flatten(2, -2)
        pairs = (flat @ flat.transpose(2, 3)).view(*flat.shape[:2], *sizes, *sizes)
        total = torch.zeros((), dtype=torch.float64)
        for offset in product(*map(range, self._geometry.kernel)):
            place = slice(None), *self._geometry.places(offset)
            total = total + pairs[:, :, *place, *place]
        return total.reshape(stop - start, self.groups, self.terms, self.terms)

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
        inputs = self._inputs.unflatten(0, (-1, self._count))[records].flatten(0, 1)
        return ShiftedInputs(inputs, self._geometry, self._count)

    def double(self) -> "ShiftedInputs":
        """Return the same in float64."""
        return ShiftedInputs(self._inputs.double(), self._geometry, self._count)

    def join(self, count: int) -> "ShiftedInputs":
        """Return the factors with the positions of neighbouring rows joined."""
        return ShiftedInputs(self._inputs, self._geometry, count * self._count)


@register(torch.conv1d, torch.conv2d, torch.conv3d)
def convolution(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """The weight's gradient is Σ_t gradient_t ⊗ shifted input_t over output positions t."""
    inputs, weight, bias, stride, padding, dilation, groups = call.arguments(
        "input", "weight", "bias", "stride", "padding", "dilation", "groups"
    )
    if inputs.dim() != weight.dim():
        raise UnsupportedCallError("a convolution without a dimension for the records")
    is_fast = padding != "same" and _has_own_backward(inputs)
    sides = _sides(padding, _per_dimension(dilation, weight.dim() - 2, 1), weight.shape[2:])
    part = _products((inputs, gradient), weight, stride, sides, dilation, groups or 1, is_fast)
    return _with_bias(weight, part, bias, gradient)


@register(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
def transposed_convolution(call: Call, gradient: Tensor) -> list[tuple[Tensor, Contribution]]:
    """A convolution in which inputs and gradients have changed their roles.

    The weight's gradient is Σ_t input_t ⊗ shifted gradient_t over input positions t.
    """
    inputs, weight, bias, stride, padding, more, groups, dilation = call.arguments(
        "input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation"
    )
    if inputs.dim() != weight.dim():
        raise UnsupportedCallError("a convolution without a dimension for the records")
    dims = weight.dim() - 2
    is_fast = not any(_per_dimension(more, dims, 0)) and _has_own_backward(inputs)
    sides = _sides(0 if padding is None else padding, [1] * dims, weight.shape[2:])
    part = _products((gradient, inputs), weight, stride, sides, dilation, groups or 1, is_fast)
    return _with_bias(weight, part, bias, gradient)


def _products(
    pair: tuple[Tensor, Tensor],
    weight: Tensor,
    stride: Any,
    sides: Sequence[tuple[int, int]],
    dilation: Any,
    groups: int,
    is_fast: bool,
) -> Contribution:
    """Return Σ_t output_t ⊗ shifted input_t over the positions t of a convolution's outputs."""
    inputs, outputs = pair
    dims, kernel, positions = weight.dim() - 2, weight.shape[2:], outputs.shape[2:]
    steps, gaps = _per_dimension(stride, dims, 1), _per_dimension(dilation, dims, 1)
    sizes = tuple(positions), tuple(kernel), tuple(steps), tuple(gaps), tuple(sides)
    left = outputs.reshape(len(outputs), groups, -1, prod(positions)).transpose(2, 3)
    kernel_first = (len(weight), *kernel, weight.shape[1])
    channels_second = (0, dims + 1, *range(1, dims + 1))
    shifted = ShiftedInputs(inputs, Geometry(groups, *sizes))
    products = Outer(left, shifted, kernel_first, channels_second)
    if not is_fast:
        return Convolved(products)
    settings = steps, [low for low, _ in sides], gaps, False, [0] * dims, groups
    return Convolved(products, WeightGradients(inputs, outputs, weight.detach(), settings))


def _with_bias(
    weight: Tensor, part: Contribution, bias: Tensor | None, gradient: Tensor
) -> list[tuple[Tensor, Contribution]]:
    found: list[tuple[Tensor, Contribution]] = [(weight, part)]
    if bias is not None:
        found.append((bias, PerRecord(gradient.flatten(2).sum(2))))
    return found


def _has_own_backward(inputs: Tensor) -> bool:
    """Return whether PyTorch's backward pass of a convolution is fast for single records."""
    is_fast = inputs.device.type == "cpu" and inputs.dtype == torch.float32
    return is_fast and torch.backends.mkldnn.is_available()


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


def shifted_views(padded: Tensor, geometry: Geometry) -> Tensor:
    """Return a view, records × groups × output… × kernel… × channels, of what was padded."""
    record, *strides, channel = padded.stride()
    channels = padded.shape[-1] // geometry.groups
    return padded.as_strided(
        (len(padded), geometry.groups, *geometry.positions, *geometry.kernel, channels),
        (
            record,
            channels * channel,
            *(stride * step for stride, step in zip(strides, geometry.steps, strict=True)),
            *(stride * gap for stride, gap in zip(strides, geometry.gaps, strict=True)),
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

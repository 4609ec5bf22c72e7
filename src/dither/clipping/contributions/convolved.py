"""Gradients of convolutions: outer products, or PyTorch's own gradients of a record's weight."""

from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from dither.clipping.contributions.base import Contribution, PerRecord, Records
from dither.clipping.contributions.grouped import Grouped
from dither.clipping.contributions.outer import TERMS, Outer, reordered

MAX_KEPT = 2**25
"""Per-record gradients of a convolution are stored if they are no more numbers than this, …"""

KEPT_SHARE = 4
"""… and no more than this multiple of what the forward pass holds for the layer anyway."""

MIN_WORK = 2**22
"""Products that make one call of PyTorch's convolutions worth more than it costs to start."""

CHAIN = 256
"""Terms of all records that one call may add up one after the other, as a matrix product does."""


@dataclass(frozen=True, eq=False)
class WeightGradients:
    """The gradients of a convolution's weight, by PyTorch's backward pass of convolutions.

    Attributes:
        inputs: one per row.
        gradients: with respect to the outputs, one per row.
        weight: the weight, of which only the shape counts.
        settings: stride, padding, dilation, transposed, output padding, groups.
        rows: how many neighbouring rows make a record.
    """

    inputs: Tensor
    gradients: Tensor
    weight: Tensor
    settings: tuple[Any, ...]
    rows: int = 1

    def of(self, start: int, stop: int, weights: Tensor | None = None) -> Tensor:
        """Return the sum of the gradients of these records, each times its weight."""
        part = slice(start * self.rows, stop * self.rows)
        gradients = self.gradients[part]
        if weights is not None:
            scale = weights[start:stop].repeat_interleave(self.rows)
            gradients = gradients * scale.view(-1, *(1,) * (gradients.dim() - 1))
        found: Tensor = torch.ops.aten.convolution_backward(
            gradients, self.inputs[part], self.weight, None, *self.settings, (False, True, False)
        )[1]
        return found

    def select(self, records: Records) -> "WeightGradients":
        """Return those of some records."""

        def chosen(values: Tensor) -> Tensor:
            by_record: Tensor = values.unflatten(0, (-1, self.rows))
            return by_record[records].flatten(0, 1)

        parts = chosen(self.inputs), chosen(self.gradients)
        return WeightGradients(*parts, self.weight, self.settings, self.rows)

    def double(self) -> "WeightGradients":
        """Return those in float64."""
        values = self.inputs.double(), self.gradients.double(), self.weight.double()
        return WeightGradients(*values, self.settings, self.rows)

    def join(self, count: int) -> "WeightGradients":
        """Return those of records that have so many times as many rows."""
        values = self.inputs, self.gradients, self.weight
        return WeightGradients(*values, self.settings, count * self.rows)


class Convolved(Contribution):
    """Gradients of a convolution's weight.

    Where a record's gradient is small, it is formed and kept: its norm is taken and it is added up
    as it was stored. Else norms are those of outer products. PyTorch's own backward pass has no
    inputs to be copied, and on CPUs is about twice as fast as matrix products, where there is
    enough to do in a call.

    Args:
        products: the same gradients as outer products of shifted inputs.
        direct: the same by PyTorch's backward pass, where it is worth it.

    Example:
        >>> products = Outer(torch.ones(2, 1, 3), torch.ones(2, 1, 4))
        >>> Convolved(products).norms()[0]
        tensor([12.0000, 12.0000], dtype=torch.float64)
    """

    def __init__(self, products: Outer, direct: WeightGradients | None = None) -> None:
        self.products, self.direct = products, direct
        self.records, self.dtype, self.size = products.records, products.dtype, products.size
        self._kept: PerRecord | None = None
        self._axes = tuple(range(len(products.axes)))

    @property
    def is_kept(self) -> bool:
        return self._kept is not None

    def rows(self, start: int, stop: int) -> Tensor:
        return self.products.rows(start, stop)

    def magnitudes(self) -> Tensor:
        return self.products.magnitudes()

    def norms(self) -> tuple[Tensor, Tensor | None]:
        if self._kept is None:
            if self.products.inner_products_are_cheaper() or not self._can_keep():
                return self.products.norms()
            self._kept = PerRecord(self._form())
        return self._kept.norms()

    def weighted_sum(self, weights: Tensor) -> Tensor:
        if self._kept is not None:
            return reordered(self._kept.weighted_sum(weights), self._axes)
        step = CHAIN // self.products.terms
        is_short = self.products.terms <= TERMS
        if self.direct is None or not is_short or step * self._work() < MIN_WORK:
            return self.products.weighted_sum(weights)
        starts = range(0, self.records, step)
        first, *others = (self.direct.of(i, min(i + step, len(weights)), weights) for i in starts)
        for each in others:
            first += each
        return first

    def select(self, records: Records) -> Self:
        direct = None if self.direct is None else self.direct.select(records)
        made = type(self)(self.products.select(records), direct)
        made._kept = None if self._kept is None else self._kept.select(records)
        made._axes = self._axes
        return made

    def double(self) -> Self:
        direct = None if self.direct is None else self.direct.double()
        return type(self)(self.products.double(), direct)

    def join(self, count: int) -> Self:
        direct = None if self.direct is None else self.direct.join(count)
        return type(self)(self.products.join(count), direct)

    def merge(self, counts: Tensor) -> Grouped:
        return Grouped(self, counts)

    def _can_keep(self) -> bool:
        products = self.products
        held = KEPT_SHARE * (
            products.groups * products.terms * products.height + products.right.stored
        )
        return self.records * self.size <= MAX_KEPT and self.size <= held

    def _work(self) -> int:
        """Return how many products a record's gradient is made of."""
        return self.products.terms * self.size

    def _form(self) -> Tensor:
        """Return every record's gradient, with its axes in an order that is noted."""
        products = self.products
        if self.direct is not None and self._work() >= MIN_WORK:
            made = products.left.new_empty(self.records, *self.direct.weight.shape)
            for record in range(self.records):
                made[record] = self.direct.of(record, record + 1)
            return made
        made = products.left.new_empty(self.records, *products.shape)
        rows = made.view(self.records * products.groups, products.height, -1)
        for i, j, right in products.rights(self.size):
            products.form(i, j, right, rows[i * products.groups : j * products.groups])
        self._axes = products.axes
        return made

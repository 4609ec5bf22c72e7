"""Gradients that are small enough to be formed one a record."""

from typing import Self

from torch import Tensor

from dither.clipping.contributions.base import Contribution
from dither.clipping.contributions.rounding import row_norms

SMALL = 2**14
"""Up to this many numbers, a matrix product costs more to start than to compute."""


class PerRecord(Contribution):
    """Gradients that were formed one a record: ``gradients[i]`` has the parameter's shape."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients
        self.records, self.dtype = len(gradients), gradients.dtype
        self.size = gradients.shape[1:].numel()

    def rows(self, start: int, stop: int) -> Tensor:
        return self.gradients[start:stop]

    def norms(self) -> tuple[Tensor, Tensor | None]:
        return row_norms(self.gradients.reshape(self.records, -1)).double().square_(), None

    def magnitudes(self) -> Tensor:
        return row_norms(self.gradients.reshape(self.records, -1))

    def weighted_sum(self, weights: Tensor) -> Tensor:
        flat = self.gradients.reshape(self.records, -1)
        if flat.numel() <= SMALL:
            return (flat * weights.unsqueeze(1)).sum(0).view(self.gradients.shape[1:])
        return (weights @ flat).view(self.gradients.shape[1:])

    def select(self, records: Tensor) -> Self:
        return type(self)(self.gradients[records])

    def double(self) -> Self:
        return type(self)(self.gradients.double())

    def merged(self, views: int) -> Self:
        return type(self)(self.gradients.unflatten(0, (-1, views)).sum(1))

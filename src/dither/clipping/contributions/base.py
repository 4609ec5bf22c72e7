"""What every contribution can do."""

from abc import ABC, abstractmethod
from typing import Self

import torch
from torch import Tensor


class Contribution(ABC):
    """One gradient a record, of the shape of a parameter."""

    records: int
    dtype: torch.dtype
    size: int
    """The number of a parameter's entries."""

    @abstractmethod
    def rows(self, start: int, stop: int) -> Tensor:
        """Return the gradients of these records, one after the other."""

    @abstractmethod
    def norms(self) -> tuple[Tensor, Tensor | None]:
        """Return squared norms, one a record, and what cancellation may hide of them.

        Rounding by 64 unit roundoffs of the squared norm itself is allowed for elsewhere.
        """

    @abstractmethod
    def magnitudes(self) -> Tensor:
        """Return what the norms would be if no terms cancelled, one a record."""

    @abstractmethod
    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return Σ_i weights[i]·gradient[i]."""

    @abstractmethod
    def select(self, records: Tensor) -> Self:
        """Return the contribution of these records alone."""

    @abstractmethod
    def double(self) -> Self:
        """Return the same in float64."""

    @abstractmethod
    def merged(self, views: int) -> Self:
        """Return the same with every ``views`` neighbours, views of one record, added up."""

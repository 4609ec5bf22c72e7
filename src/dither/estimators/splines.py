"""The features of additive models: columns as they are, and splines of numbers, coarse to fine.

A straight effect takes one weight, and a curve those of its splines. Splines of b bins are
multiplied by 1/√b: where there is more noise than signal, a curve stays near a line.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from dither.schema import Number, Schema
from dither.types import FloatArray

COARSEST = 4
_FINER = {30_000.0: 16, 3_000.0: 8}
"""From which n·ε on how many bins are worth their noise."""


def default_bins(dataset_size: int, epsilon: float) -> int:
    """Return the number of bins of the finest splines.

    Example:
        >>> [default_bins(n, 1.0) for n in (1_000, 10_000, 100_000)]
        [4, 8, 16]
    """
    fitting = (bins for least, bins in _FINER.items() if dataset_size * epsilon >= least)
    return next(fitting, COARSEST)


@final
@dataclass(frozen=True, eq=False)
class Block:
    """A part of the features: those of some columns, times a factor.

    Attributes:
        schema: the columns.
        bins: of the splines of numbers; None leaves them linear.
        factor: multiplies the features.
    """

    schema: Schema
    bins: int | None = None
    factor: float = 1.0

    @property
    def _how(self) -> dict[str, Any]:
        return {} if self.bins is None else {"numbers": "spline", "bins": self.bins}

    def encode(self, table: Any) -> FloatArray:
        """Return the features of a table."""
        return np.asarray(np.float32(self.factor) * self.schema.encode(table, **self._how))

    def squared_norm(self) -> float:
        """Return the largest squared norm of the features of a row."""
        numbers = "linear" if self.bins is None else "spline"
        return float((self.factor * self.schema.feature_norm(numbers=numbers)) ** 2)

    def slices(self) -> dict[str, slice]:
        """Return which features each column has."""
        return self.schema.feature_slices(**self._how)


def blocks_of(schema: Schema, bins: int) -> Iterator[Block]:
    """Yield the columns themselves, then splines of their numbers, from coarse to fine.

    Example:
        >>> schema = Schema({"age": Number(bounds=(0, 120))})
        >>> [(block.bins, round(block.factor, 2)) for block in blocks_of(schema, 16)]
        [(None, 1.0), (4, 0.5), (8, 0.35), (16, 0.25)]
    """
    yield Block(schema)
    numbers = {name: each for name, each in schema.columns.items() if isinstance(each, Number)}
    halvings = max(0, int(np.log2(bins / COARSEST)))
    for level in range(halvings, -1, -1):
        # Knots of a column's own are used once.
        fit = {name: each for name, each in numbers.items() if level == 0 or each.knots is None}
        if fit:
            count = bins // 2**level
            yield Block(Schema(fit), count, count**-0.5)

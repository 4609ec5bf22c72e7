"""The same number of records in every step."""

from dataclasses import dataclass
from typing import final

import numpy as np

from dither import validate
from dither.randomness import Stream
from dither.sampling.sampler import Indices


@final
@dataclass(frozen=True)
class Fixed:
    """m distinct records, every set of m as likely as any other.

    Args:
        batch_size: m.

    Example:
        >>> from dither.randomness import Source
        >>> Fixed(4).draw(1000, Source(seed=1).stream("sampling", 0))
        array([295, 344, 416, 643])
    """

    batch_size: int

    def __post_init__(self) -> None:
        """Check the number."""
        object.__setattr__(self, "batch_size", validate.count(batch_size=self.batch_size))

    def draw(self, length: int, stream: Stream) -> Indices:
        """Return the first m distinct numbers of a uniform sequence, in order."""
        m = self.batch_size
        if m > length:
            raise validate.InvalidValueError(
                f"batch_size must be at most the number of records, {length}, got {m}"
            )
        if 2 * m > length:  # the records that stay out are fewer, and as uniform
            left_out = _distinct(length, length - m, stream)
            return np.setdiff1d(np.arange(length), left_out, assume_unique=True)
        return np.sort(_distinct(length, m, stream))


def _distinct(length: int, count: int, stream: Stream) -> Indices:
    found = np.empty(0, np.int64)
    while found.size < count:
        drawn = np.concatenate([found, stream.below(length, count - found.size)])
        _, first = np.unique(drawn, return_index=True)
        found = drawn[np.sort(first)]
    return found

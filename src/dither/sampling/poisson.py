"""Each record by its own coin."""

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from dither import validate
from dither.randomness import Stream
from dither.sampling.sampler import Indices


@final
@dataclass(frozen=True)
class Poisson:
    """Every record takes part with probability q, independently of all others.

    A coin is a random byte, and where the byte alone does not decide, one more 64-bit word: heads
    comes with probability q rounded down to a multiple of 2^(−72), never above q.

    Args:
        sample_rate: q, in (0, 1].

    Example:
        >>> from dither.randomness import Source
        >>> Poisson(0.004).draw(1000, Source(seed=1).stream("sampling", 0))
        array([426, 780, 788])
    """

    sample_rate: float

    def __post_init__(self) -> None:
        """Check the rate."""
        object.__setattr__(self, "sample_rate", validate.rate(sample_rate=self.sample_rate))

    def draw(self, length: int, stream: Stream) -> Indices:
        """Return the records whose coin shows heads."""
        if self.sample_rate == 1.0:
            return np.arange(length)
        whole, rest = divmod(self.sample_rate * 2.0**8, 1.0)
        coins = stream.bytes(length)
        heads = coins < whole
        undecided = np.flatnonzero(coins == whole)
        # q·2^8 is exact in floating point, and so is its fraction times 2^64 but for its last bits.
        heads[undecided] = stream.words(undecided.size) < np.uint64(math.floor(rest * 2.0**64))
        return np.flatnonzero(heads)

"""What every sampler can do."""

from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dither.randomness import Stream

Indices = NDArray[np.int64]


@runtime_checkable
class Sampler(Protocol):
    """Draws the records of one step."""

    def draw(self, length: int, stream: Stream) -> Indices:
        """Return ascending indices from 0 … length−1, none twice."""
        ...

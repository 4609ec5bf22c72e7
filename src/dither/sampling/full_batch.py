"""All records in every step."""

from dataclasses import dataclass
from typing import final

import numpy as np

from dither.randomness import Stream
from dither.sampling.sampler import Indices


@final
@dataclass(frozen=True)
class FullBatch:
    """Every record, every time: gradient descent without sampling.

    Example:
        >>> from dither.randomness import Source
        >>> FullBatch().draw(3, Source().stream("sampling", 0))
        array([0, 1, 2])
    """

    def draw(self, length: int, stream: Stream) -> Indices:
        """Return all indices."""
        return np.arange(length)

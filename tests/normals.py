"""The standard normals that a stream gives."""

import numpy as np

from dither.normals import for_each_block
from dither.randomness import Stream
from dither.types import FloatArray


def standard_normals(count: int, stream: Stream, threads: int = 1) -> FloatArray:
    found = np.full(count, np.nan)

    def keep(start: int, normals: FloatArray) -> None:
        found[start : start + normals.size] = normals

    for_each_block(keep, count, stream, threads)
    return found

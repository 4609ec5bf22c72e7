"""Standard normals as fine as doubles, from a cryptographic stream of 64-bit words.

Half of the density, for x > 0, lies in 1,024 layers of equal area: the ziggurat of Marsaglia and
Tsang (2000), as modified by McFarland (2016). 1,018 layers are rectangles that begin at x = 0 and
lie under the density. The last six hold the rest: the tail, the boxes beside each rectangle that
the density crosses, and some area outside of both.

The last ten bits of a word choose a layer. In a rectangle, the normal is the word times its width:
one product for 99.4 % of all normals. In the last six, the word chooses a box, and two more words a
point of it. Where that lies above the density, the normal is a new one from the inverse of the
distribution function. This is rejection sampling, which is exact: what is rejected is replaced by
an independent normal. The tail comes from the inverse, too.

A word has 54 bits beyond those that choose its layer, so that a normal in a rectangle or a box, up
to 4.02, differs by at most 2^(−50) from the next one. Those from the inverse have 63-bit uniforms:
in the tail they differ by less than 2^(−40) up to 7 and reach 10.1 standard deviations, and the new
normals, three in a thousand, by less than 2^(−40) up to 5.6 and reach 9.1.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import final

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from dither.randomness import Stream
from dither.types import FloatArray

_BLOCK = 2**16
_LAYERS, _RECTANGLES = 1024, 1018
_HALF = math.sqrt(math.pi / 2.0)  # area under exp(−x²/2) for x > 0
_AREA = 1.003 * _HALF / _LAYERS
_UNIT = 2.0**-63


@final
@dataclass(frozen=True, eq=False)
class Layers:
    """The rectangles, and the boxes beside them: the tail, the boxes, and what is outside of both.

    Attributes:
        widths: of the rectangles, from the lowest.
        chances: cumulative, of the boxes.
        left: where each box begins; so ``bottom``. Those of tail and outside hold no point.
        width: of each box; so ``height``.
        reach: the largest probability from which the inverse makes a normal in place of a point.
    """

    widths: FloatArray
    chances: FloatArray
    left: FloatArray
    width: FloatArray
    bottom: FloatArray
    height: FloatArray
    reach: FloatArray


@cache
def layers() -> Layers:
    """Return the layers of the density."""
    widths, tops = [4.1], [0.0]
    for _ in range(_RECTANGLES):
        widths.append(_next_width(widths[-1], tops[-1]))
        tops.append(_density(widths[-1]))
    left = np.array([*widths[1:], 0.0])
    bottom = np.array(tops)
    width, height = np.diff(-left, prepend=-left[0]), np.diff(bottom, append=1.0)
    tail = 0.5 * math.erfc(left[0] / math.sqrt(2.0))
    areas = np.append(width * height, math.inf)
    areas[0] = 2.0 * _HALF * tail
    bottom[0], height[0] = 1.0, 0.0
    reach = np.full(len(areas), 0.5)
    reach[0] = tail
    return Layers(
        widths=left[:-1],
        chances=np.cumsum(areas) / (_AREA * (_LAYERS - _RECTANGLES)),
        left=np.append(left, 0.0), width=np.append(width, 0.0),
        bottom=np.append(bottom, 1.0), height=np.append(height, 0.0), reach=reach,
    )  # fmt: skip


@cache
def _widths() -> FloatArray:
    """Return the widths of all layers in units of a word; the last six have none."""
    return np.pad(layers().widths * _UNIT, (0, _LAYERS - _RECTANGLES))


def _density(x: float) -> float:
    return math.exp(-0.5 * x * x)


def _next_width(x: float, bottom: float) -> float:
    """Return the width below x of a rectangle on ``bottom`` whose corner is on the density."""
    for _ in range(20):
        f = _density(x)
        x -= (x * (f - bottom) - _AREA) / (f - bottom - x * x * f)
    return x


def for_each_block(
    work: Callable[[int, FloatArray], None], count: int, stream: Stream, threads: int = 1
) -> None:
    """Draw standard normals in blocks, and call ``work`` with where each begins and its normals.

    Every block has a stream of its own. So the normals are the same for any number of threads.

    Args:
        work: may change the normals, which the next block overwrites; called on all threads.
        count: how many normals in total.
        stream: is split into those of the blocks.
        threads: at most so many are used.
    """
    starts = range(0, count, _BLOCK)
    blocks = list(zip(starts, stream.split(len(starts)), strict=True))

    def draw(mine: Sequence[tuple[int, Stream]]) -> None:
        sampler = _Sampler(min(count, _BLOCK))
        for start, own in mine:
            work(start, sampler.draw(min(count - start, _BLOCK), own))

    threads = min(threads, len(blocks))
    if threads <= 1:
        draw(blocks)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(draw, [blocks[first::threads] for first in range(threads)]))


class _Sampler:
    """Draws blocks of normals into the same memory, which fits into the cache of a core."""

    def __init__(self, size: int) -> None:
        self._words, self._index = np.empty(size, np.int64), np.empty(size, np.int64)
        self._normals, self._scale = np.empty(size), np.empty(size)

    def draw(self, count: int, stream: Stream) -> FloatArray:
        words, index = self._words[:count], self._index[:count]
        normals, scale = self._normals[:count], self._scale[:count]
        stream.fill(words.view(np.uint8))
        np.bitwise_and(words, _LAYERS - 1, out=index)
        np.take(_widths(), index, out=scale, mode="clip")
        np.copyto(normals, words)
        normals *= scale
        (others,) = (index >= _RECTANGLES).nonzero()
        if others.size:
            normals[others] = _beside_rectangles(words[others], stream)
        return normals


def _beside_rectangles(words: NDArray[np.int64], stream: Stream) -> FloatArray:
    """Return a normal for each word whose layer is none of the rectangles."""
    known = layers()
    box = np.searchsorted(known.chances, _uniforms(words))
    u, v, new = _uniforms(stream.words(3 * words.size).view(np.int64)).reshape(3, -1)
    x, y = known.left[box] + known.width[box] * u, known.bottom[box] + known.height[box] * v
    sizes = np.where(y < np.exp(-0.5 * x * x), x, -ndtri(known.reach[box] * new))
    return np.copysign(sizes, words)


def _uniforms(words: NDArray[np.int64]) -> FloatArray:
    """Return numbers above 0 and up to 1."""
    return (np.abs(words.astype(np.float64)) + 0.5) * _UNIT

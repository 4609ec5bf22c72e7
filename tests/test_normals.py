"""Standard normals: their layers against the density, and what they draw against its law."""

import dataclasses
import math
from typing import Any, cast

import numpy as np
import pytest
from scipy import integrate, special, stats
from tests.normals import standard_normals

from dither import normals
from dither.normals import Layers, layers
from dither.randomness import Source, Stream
from dither.types import FloatArray

LEVEL = 1e-6
LAYERS = 1024


def from_rectangles(x: FloatArray, known: Layers) -> FloatArray:
    return np.asarray(sum((x < width) / width for width in known.widths)) / LAYERS


def density(x: FloatArray, known: Layers) -> FloatArray:
    """The density of a normal's size, by adding up all ways in which it is drawn."""
    others = (LAYERS - len(known.widths)) / LAYERS
    tail, *chances = others * np.diff(known.chances[:-1], prepend=0.0)
    accepted, found = 1.0 - others + tail, from_rectangles(x, known)
    for i, chance in enumerate(chances, start=1):
        left, width = known.left[i], known.width[i]
        bottom, height = known.bottom[i], known.height[i]
        right = left + width
        share = np.clip((np.exp(-0.5 * x * x) - bottom) / height, 0.0, 1.0)
        found += chance * share * ((x >= left) & (x < right)) / width
        under = math.sqrt(2.0 * math.pi) * (special.ndtr(right) - special.ndtr(left))
        accepted += chance * (under - bottom * width) / (height * width)
    half = 2.0 * stats.norm.pdf(x)
    found += tail * (x > known.widths[0]) * half / (2.0 * stats.norm.sf(known.widths[0]))
    return np.asarray(found + (1.0 - accepted) * half)


def places() -> FloatArray:
    widths = layers().widths
    return np.concatenate([np.linspace(0.0, 8.0, 4_001), widths * (1 - 1e-9), widths * (1 + 1e-9)])


def test_the_layers_give_the_normal_density() -> None:
    x = places()
    np.testing.assert_allclose(density(x, layers()), 2.0 * stats.norm.pdf(x), rtol=1e-10)


@pytest.mark.parametrize("name", ["widths", "chances", "left", "bottom", "height"])
def test_layers_that_are_a_little_wrong_have_another_density(name: str) -> None:
    values = getattr(layers(), name).copy()
    values[len(values) // 2] *= 1.0 + 1e-6
    wrong = density(places(), dataclasses.replace(layers(), **{name: values}))
    assert np.abs(wrong / (2.0 * stats.norm.pdf(places())) - 1.0).max() > 1e-9


def beside_rectangles(count: int) -> FloatArray:
    words = Source(1).stream("words", 0).words(count).view(np.int64)
    return normals._beside_rectangles(words, Source(1).stream("others", 0))


def test_what_is_beside_the_rectangles_has_the_law_that_they_leave() -> None:
    x = np.linspace(0.0, 9.0, 900_001)
    rest = 2.0 * stats.norm.pdf(x) - from_rectangles(x, layers())
    law = np.append(0.0, integrate.cumulative_trapezoid(rest, x))
    assert law[-1] == pytest.approx(6 / LAYERS, rel=1e-4)
    found = beside_rectangles(200_000)

    def p_value(values: FloatArray) -> float:
        cdf = lambda size: np.interp(size, x, law / law[-1])  # noqa: E731
        return float(stats.kstest(np.abs(values), cdf, method="asymp").pvalue)

    assert p_value(found) > LEVEL
    assert p_value(np.where(np.abs(found) > 3.0, 3.0, found)) < LEVEL
    assert p_value(np.random.default_rng(1).normal(size=found.size)) < LEVEL
    assert stats.binomtest(int((found > 0).sum()), found.size).pvalue > LEVEL


def test_the_tail_is_that_of_the_normal_law() -> None:
    widest = layers().widths[0]
    tail = np.abs(beside_rectangles(400_000))
    tail = tail[tail > widest]
    uniform = stats.norm.sf(tail) / stats.norm.sf(widest)
    assert tail.size > 2_000
    assert stats.kstest(uniform, "uniform", method="asymp").pvalue > LEVEL
    assert stats.kstest(uniform**1.2, "uniform", method="asymp").pvalue < LEVEL


def test_a_word_in_a_rectangle_is_multiplied_by_its_width() -> None:
    """Most normals, one by one, from the words of the first block's stream."""
    (own,) = Source(5).stream("noise", 0).split(1)
    words = [int(word) for word in own.words(5_000).view(np.int64)]
    found = standard_normals(5_000, Source(5).stream("noise", 0))
    widths = layers().widths
    expected = {
        i: word * float(widths[word % LAYERS]) / 2.0**63
        for i, word in enumerate(words)
        if word % LAYERS < len(widths)
    }
    assert len(expected) > 4_900
    np.testing.assert_allclose(found[[*expected]], [*expected.values()], rtol=1e-15)


@pytest.mark.parametrize(("box", "size"), [(0, 7.0), (1, 5.6)])
def test_normals_from_the_inverse_are_fine(box: int, size: float) -> None:
    """The next word changes a normal of this size by less than 2^(−40)."""
    share = stats.norm.sf(size) / layers().reach[box]
    words = np.array([share * 2.0**63]).astype(np.int64) + np.arange(2)
    one, two = special.ndtri(layers().reach[box] * normals._uniforms(words))
    assert abs(one) == pytest.approx(size, rel=1e-6)
    assert 0.0 < abs(one - two) < 2.0**-40


class Repeating:
    """A stream that fills every word with the same bits."""

    def __init__(self, word: int) -> None:
        self.word = word

    def split(self, count: int) -> "list[Repeating]":
        return [self] * count

    def words(self, count: int) -> Any:
        return np.full(count, self.word).view(np.uint64)

    def fill(self, buffer: Any) -> None:
        buffer.view(np.int64)[:] = self.word


@pytest.mark.parametrize("word", [0, 1, -1, 2**63 - 1, -(2**63), -(2**63) + 1023, 1023, 1018, -5])
def test_the_rarest_words_give_finite_noise(word: int) -> None:
    values = standard_normals(5, cast(Stream, Repeating(word)))
    assert (values == values[0]).all()
    assert abs(values[0]) < 10.2


@pytest.mark.parametrize("count", [0, 1, 2**16 - 1, 2**16, 2**16 + 1, 200_003])
def test_blocks_have_streams_of_their_own_for_any_number_of_threads(count: int) -> None:
    whole = standard_normals(count, Source(3).stream("noise", 0))
    assert np.isfinite(whole).all()
    assert np.unique(whole).size == count
    for threads in (2, 3, 16):
        again = standard_normals(count, Source(3).stream("noise", 0), threads)
        np.testing.assert_array_equal(again, whole)
    streams = Source(3).stream("noise", 0).split(-(-count // 2**16))
    for start, own in zip(range(0, count, 2**16), streams, strict=True):
        words = own.words(min(count - start, 2**16)).view(np.int64)
        assert (np.sign(whole[start : start + words.size]) == np.sign(words)).all()


def test_an_error_of_a_thread_is_raised() -> None:
    def broken(start: int, drawn: FloatArray) -> None:
        if start:
            raise OSError("no more random numbers")

    for threads in (1, 2):
        with pytest.raises(OSError, match="no more"):
            normals.for_each_block(broken, 200_000, Source(1).stream("noise", 0), threads)

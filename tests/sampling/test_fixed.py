"""Fixed batches against all subsets, counted one by one."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from dither.randomness import Source, Stream
from dither.sampling import Fixed

LEVEL = 1e-6
Draw = Callable[[int, int, Stream], list[int]]


def fixed(length: int, m: int, stream: Stream) -> list[int]:
    found: list[int] = Fixed(m).draw(length, stream).tolist()
    return found


def next_free(length: int, m: int, stream: Stream) -> list[int]:
    """Wrong: a number that came before gives way to the next one that is free."""
    found: set[int] = set()
    for number in stream.below(length, m).tolist():
        while number in found:
            number = (number + 1) % length
        found.add(number)
    return sorted(found)


def smallest_of_more(length: int, m: int, stream: Stream) -> list[int]:
    """Wrong: distinct numbers in order, cut off at m of them."""
    found = np.unique(stream.below(length, 3 * m))
    while found.size < m:
        found = np.unique(np.concatenate([found, stream.below(length, 3 * m)]))
    return [int(number) for number in found[:m]]


def subsets_p_value(draw: Draw, length: int, m: int, draws: int) -> float:
    """Chi-square over all subsets of m, none of which may be missing from the list."""
    number = {subset: i for i, subset in enumerate(itertools.combinations(range(length), m))}
    counts = np.zeros(len(number))
    for step in range(draws):
        counts[number[tuple(draw(length, m, Source(1).stream("sampling", step)))]] += 1
    return float(stats.chisquare(counts).pvalue)


# The complement is drawn where m is more than half.
@pytest.mark.parametrize(("length", "m"), [(6, 3), (6, 4), (6, 1), (6, 5), (7, 3), (5, 2), (2, 1)])
def test_all_subsets_are_equally_likely(length: int, m: int) -> None:
    assert subsets_p_value(fixed, length, m, 4_000) > LEVEL


@pytest.mark.parametrize("wrong", [next_free, smallest_of_more])
@pytest.mark.parametrize(("length", "m"), [(6, 3), (6, 4), (7, 3)])
def test_biased_draws_are_noticed(wrong: Draw, length: int, m: int) -> None:
    assert subsets_p_value(wrong, length, m, 4_000) < LEVEL


def inclusion_p_value(draw: Draw, length: int, m: int, draws: int) -> float:
    """Of each record's count: their covariance is that of m out of n, hence n − 1 degrees."""
    counts = np.zeros(length)
    for step in range(draws):
        counts[draw(length, m, Source(2).stream("sampling", step))] += 1
    rate = m / length
    squares = ((counts - draws * rate) ** 2).sum() / (draws * rate * (1.0 - rate))
    return float(stats.chi2.sf(squares * (length - 1) / length, length - 1))


@pytest.mark.parametrize("m", [30, 300, 301, 500])
def test_records_take_part_equally_often(m: int) -> None:
    assert inclusion_p_value(fixed, 600, m, 1_000) > LEVEL


def test_records_that_take_part_more_often_are_noticed() -> None:
    assert inclusion_p_value(smallest_of_more, 600, 30, 1_000) < LEVEL


def test_every_batch_has_the_same_size() -> None:
    for length, m in ((1000, 1), (1000, 500), (1000, 501), (1000, 999), (9, 9), (1, 1)):
        sizes = {Fixed(m).draw(length, Source(3).stream("s", step)).size for step in range(50)}
        assert sizes == {m}


def test_all_of_them_is_all_of_them() -> None:
    assert fixed(5, 5, Source(1).stream("sampling", 0)) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("length", "m"), [(5, 6), (1, 2), (0, 1)])
def test_more_than_there_are_is_refused(length: int, m: int) -> None:
    message = f"^batch_size must be at most the number of records, {length}, got {m}$"
    with pytest.raises(ValueError, match=message):
        Fixed(m).draw(length, Source(1).stream("sampling", 0))

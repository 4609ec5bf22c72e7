"""Poisson sampling against the binomial law, and every decision against exact fractions."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import cast

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dither.randomness import Source, Stream
from dither.sampling import Poisson

LEVEL = 1e-6
BEYOND = float(stats.norm.isf(LEVEL / 2.0))
Draws = NDArray[np.bool_]


class Scripted:
    """A stream of given bytes, and always the same word."""

    def __init__(self, given: NDArray[np.uint8], word: int) -> None:
        self.given, self.word = given, word

    def bytes(self, count: int) -> NDArray[np.uint8]:
        assert count == self.given.size
        return self.given.copy()

    def words(self, count: int) -> NDArray[np.uint64]:
        return np.full(count, self.word, np.uint64)


@pytest.mark.parametrize(
    "rate",
    [1.0 / 256.0, 1.0 / 3.0, 1.0 - 2.0**-30, 1e-9, 0.5, 255.0 / 256.0, 0.1, 3e-22, 1.0 - 2.0**-53],
)
def test_a_record_is_included_below_the_rate_of_all_its_72_bits(rate: float) -> None:
    threshold = math.floor(Fraction(rate) * 2**72)
    edge = threshold % 2**64
    every_byte = np.arange(256, dtype=np.uint8)
    for word in {0, 1, 2**63, 2**64 - 1, *(min(max(edge + i, 0), 2**64 - 1) for i in (-1, 0, 1))}:
        stream = cast(Stream, Scripted(every_byte, word))
        included = [byte for byte in range(256) if byte * 2**64 + word < threshold]
        assert Poisson(rate).draw(256, stream).tolist() == included


def test_the_probability_of_inclusion_is_never_above_the_rate_and_within_a_last_bit() -> None:
    """By the same threshold, whose position among 2^72 values is the probability."""
    for rate in (*np.random.default_rng(1).random(200), 1e-9, 1.0 / 3.0, 1e-30):
        edge = math.floor(Fraction(float(rate)) * 2**72)
        below = cast(Stream, Scripted(np.array([edge >> 64], np.uint8), (edge - 1) % 2**64))
        at = cast(Stream, Scripted(np.array([edge >> 64], np.uint8), edge % 2**64))
        if edge % 2**64:
            assert Poisson(float(rate)).draw(1, below).size == 1
        assert Poisson(float(rate)).draw(1, at).size == 0


def count_included(sampler: Poisson, draws: int, seed: int) -> int:
    length = min(draws, 4_000_000)
    return sum(
        sampler.draw(length, Source(seed).stream("sampling", step)).size
        for step in range(draws // length)
    )


def frequency_p_value(found: int, draws: int, rate: float) -> float:
    return float(stats.binomtest(found, draws, rate).pvalue)


# Enough records in or out that three percent are ten standard deviations.
@pytest.mark.parametrize(
    ("rate", "draws"),
    [(0.3, 400_000), (1.0 / 3.0, 400_000), (0.02, 8_000_000), (1 / 256, 4 * 10**7)],
)
def test_records_take_part_as_often_as_the_rate_says(rate: float, draws: int) -> None:
    assert frequency_p_value(count_included(Poisson(rate), draws, 1), draws, rate) > LEVEL
    for wrong in (0.97 * rate, 1.03 * rate):
        assert frequency_p_value(count_included(Poisson(wrong), draws, 1), draws, rate) < LEVEL


def test_a_byte_alone_would_not_do() -> None:
    draws = 20_000_000
    assert frequency_p_value(count_included(Poisson(1.0 / 3.0), draws, 2), draws, 1.0 / 3.0) > LEVEL
    assert (
        frequency_p_value(count_included(Poisson(85.0 / 256.0), draws, 2), draws, 1.0 / 3.0) < LEVEL
    )


def test_rare_records_are_rare_and_common_ones_common() -> None:
    length, rate = 4_000_000, 2.0**-20
    found = [
        Poisson(q).draw(length, Source(3).stream("sampling", step)).size
        for q in (rate, 1.0 - rate)
        for step in range(25)
    ]
    draws = 25 * length  # of each: 95 are expected to be in, or out
    assert frequency_p_value(sum(found[:25]), draws, rate) > LEVEL
    assert frequency_p_value(draws - sum(found[25:]), draws, rate) > LEVEL
    assert frequency_p_value(2 * sum(found[:25]), draws, rate) < LEVEL


RATE, RECORDS, STEPS = 0.3, 200, 4_000


def poisson(step: int) -> Draws:
    row = np.zeros(RECORDS, bool)
    row[Poisson(RATE).draw(RECORDS, Source(4).stream("sampling", step))] = True
    return row


def in_pairs(step: int) -> Draws:
    """Every record has the right rate, and a neighbour that takes part whenever it does."""
    row = np.zeros(RECORDS // 2, bool)
    row[Poisson(RATE).draw(RECORDS // 2, Source(4).stream("sampling", step))] = True
    return np.repeat(row, 2)


def of_one_size(step: int) -> Draws:
    """Every record has the right rate, and the batch no spread."""
    row = np.zeros(RECORDS, bool)
    row[np.random.default_rng(step).permutation(RECORDS)[: int(RATE * RECORDS)]] = True
    return row


def repeated(step: int) -> Draws:
    """The same batch in two steps."""
    return poisson(step // 2)


def uneven(step: int) -> Draws:
    """The right rate over all records, but not of each."""
    rates = np.where(np.arange(RECORDS) % 2 == 0, 1.1, 0.9) * RATE
    return np.asarray(np.random.default_rng(step).random(RECORDS) < rates)


def matrix(draw: Callable[[int], Draws]) -> Draws:
    return np.array([draw(step) for step in range(STEPS)])


def scores(drawn: Draws) -> dict[str, float]:
    """How many standard deviations each statistic is from what independent draws give."""
    q, n, t = RATE, RECORDS, STEPS
    unit = (drawn - q) / math.sqrt(q * (1.0 - q))
    sizes = drawn.sum(axis=1)
    variance = n * q * (1.0 - q)
    fourth = variance * (1.0 + (3.0 * n - 6.0) * q * (1.0 - q))
    spread = math.sqrt((fourth - variance**2) / t)
    counts = (unit.sum(axis=0) ** 2 / t).sum()
    return {
        "records": float(stats.norm.isf(stats.chi2.sf(counts, n))),
        "size": float((((sizes - n * q) ** 2).mean() - variance) / spread),
        "neighbours": float((unit[:, 1:] * unit[:, :-1]).sum() / math.sqrt(t * (n - 1))),
        "steps": float((unit[1:] * unit[:-1]).sum() / math.sqrt((t - 1) * n)),
    }


def test_records_and_steps_are_independent() -> None:
    for name, score in scores(matrix(poisson)).items():
        assert abs(score) < BEYOND, name


@pytest.mark.parametrize(
    ("draw", "names"),
    [
        (in_pairs, {"size", "neighbours"}),
        (of_one_size, {"size"}),
        (repeated, {"steps"}),
        (uneven, {"records"}),
    ],
)
def test_dependence_is_noticed(draw: Callable[[int], Draws], names: set[str]) -> None:
    found = scores(matrix(draw))
    for name in names:
        assert not abs(found[name]) < BEYOND, name

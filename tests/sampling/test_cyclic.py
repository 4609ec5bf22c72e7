"""Cyclic Poisson sampling: subsets and draws against their laws."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dither import Plan
from dither.randomness import Source
from dither.sampling import Cyclic, sampler_for

BANDS, LENGTH, RATE = 4, 4000, 0.05
LEVEL = 1e-6


def sampler(seed: int | None = None, length: int = LENGTH) -> Cyclic:
    return Cyclic(RATE, BANDS, length, Source(seed).stream("subsets", 0))


def taking_part(draw: Callable[[int], NDArray[np.int64]], steps: int) -> NDArray[np.bool_]:
    found = np.zeros((steps, LENGTH), dtype=bool)
    for step in range(steps):
        found[step, draw(step)] = True
    return found


def test_a_record_is_drawn_in_one_step_of_a_cycle_only() -> None:
    source, made = Source(3), sampler(3)
    found = taking_part(lambda t: made.draw(LENGTH, source.stream("sampling", t), t), 40)
    by_turn = found.reshape(10, BANDS, LENGTH).any(0).sum(0)
    assert by_turn.max() == 1
    drawn = found.sum()  # binomial: every record ten times with probability b·q
    assert stats.binomtest(int(drawn), 10 * LENGTH, BANDS * RATE).pvalue > LEVEL
    assert stats.binomtest(int(drawn), 10 * LENGTH, RATE).pvalue < LEVEL


def p_value_of_subsets(subsets: NDArray[np.int64]) -> float:
    """Whether neighbours' subsets are uniform and independent, by the counts of their pairs."""
    pairs = np.bincount(BANDS * subsets[:-1:2] + subsets[1::2], minlength=BANDS**2)
    return float(stats.chisquare(pairs).pvalue)


def subsets_of(made: Cyclic) -> NDArray[np.int64]:
    found = np.empty(LENGTH, np.int64)
    for number, members in enumerate(made._subsets):
        found[members] = number
    return found


def test_subsets_are_uniform_and_independent() -> None:
    assert p_value_of_subsets(subsets_of(sampler())) > LEVEL
    assert p_value_of_subsets(np.arange(LENGTH) % BANDS) < LEVEL
    assert p_value_of_subsets(np.sort(subsets_of(sampler()))) < LEVEL


def test_subsets_are_drawn_anew_for_every_run() -> None:
    same = float((subsets_of(sampler()) == subsets_of(sampler())).mean())
    assert stats.binomtest(int(same * LENGTH), LENGTH, 1.0 / BANDS).pvalue > LEVEL
    assert (subsets_of(sampler(5)) == subsets_of(sampler(5))).all()


@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_subsets_may_be_empty(length: int) -> None:
    made, source = sampler(1, length), Source(1)
    for step in range(8):
        assert made.draw(length, source.stream("sampling", step), step).size <= length


def test_a_full_subset_is_drawn_completely() -> None:
    made, source = Cyclic(0.25, 4, LENGTH, Source(1).stream("subsets", 0)), Source(1)
    sizes = [made.draw(LENGTH, source.stream("sampling", t), t).size for t in range(4)]
    assert sum(sizes) == LENGTH


def test_a_plan_of_correlated_noise_is_drawn_cyclically() -> None:
    plan = Plan.from_noise_multipliers(
        [1.0] * 8, delta=1e-3, dataset_size=100, batch_size=10, correlation=[1.0, 0.5]
    )
    made = sampler_for(plan, length=97)
    assert isinstance(made, Cyclic)
    assert (made._poisson.sample_rate, len(made._subsets)) == (0.2, 2)


def test_too_many_subsets_are_refused() -> None:
    with pytest.raises(ValueError, match=r"bands must be at most 1/sample_rate = 20, got 21"):
        Cyclic(0.05, 21, LENGTH, Source(1).stream("subsets", 0))

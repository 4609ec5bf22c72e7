"""The statistics of an audit, against closed forms and against mechanisms that are the worst."""

import math
from itertools import product

import mpmath
import numpy as np
import pytest
from scipy.stats import binom, binomtest

from dither.audit import independent_bound, one_run_bound
from dither.audit.bounds import at_least, at_most, one_run_p_value

LEVEL = 1e-6


@pytest.mark.parametrize(("k", "n"), [(0, 7), (1, 7), (60, 100), (7, 7), (24_000, 25_000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.9995])
def test_proportions_are_those_of_clopper_and_pearson(k: int, n: int, confidence: float) -> None:
    low, high = at_least(k, n, confidence), at_most(k, n, confidence)
    exact = binomtest(k, n).proportion_ci(2.0 * confidence - 1.0, method="exact")
    assert low == pytest.approx(exact.low, abs=1e-9)
    assert high == pytest.approx(exact.high, abs=1e-9)


def test_a_proportion_where_the_tail_is_known() -> None:
    # All n right: p^n = 1 − confidence.
    assert at_least(40, 40, 0.95) == pytest.approx(0.05 ** (1.0 / 40.0), rel=1e-12)
    assert at_most(0, 40, 0.95) == pytest.approx(1.0 - 0.05 ** (1.0 / 40.0), rel=1e-12)


def test_without_delta_both_bounds_solve_the_binomial_tail() -> None:
    v, r, confidence = 700, 1000, 0.95
    for found in (
        independent_bound(v, r, trials=5000, delta=0.0, confidence=confidence),
        one_run_bound(v, r, canaries=5000, delta=0.0, confidence=confidence),
    ):
        p = mpmath.mpf(1) / (1 + mpmath.exp(-found))
        tail = sum(mpmath.binomial(r, i) * p**i * (1 - p) ** (r - i) for i in range(v, r + 1))
        assert float(tail) == pytest.approx(1.0 - confidence, rel=1e-5)


def exact_p_value(v: int, r: int, m: int, epsilon: float, delta: float) -> float:
    """The formula of the theorem in fifty digits, term by term."""
    with mpmath.workdps(50):
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        mass = [mpmath.binomial(r, i) * p**i * (1 - p) ** (r - i) for i in range(r + 1)]
        tail = sum(mass[v:])
        steepest = max(sum(mass[v - i : v]) / i for i in range(1, v + 1))
        return float(min(tail + 2 * m * mpmath.mpf(delta) * steepest, 1))


@pytest.mark.parametrize(("v", "r", "m"), [(8, 10, 10), (30, 40, 60), (60, 60, 100), (1, 3, 9)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 1e-3), (0.7, 1e-5), (2.0, 1e-2)])
def test_the_p_value_is_the_theorems(v: int, r: int, m: int, epsilon: float, delta: float) -> None:
    expected = exact_p_value(v, r, m, epsilon, delta)
    assert one_run_p_value(v, r, m, epsilon, delta) == pytest.approx(expected, rel=1e-9)


def tails_of_worst_mechanisms(m: int, epsilon: float, delta: float) -> dict[str, list[float]]:
    """P(at least v guesses of m are right), by enumeration, for (ε, δ)-private mechanisms."""
    p = 1.0 / (1.0 + math.exp(-epsilon))
    leak = delta + (1.0 - delta) * p
    alone = [float(binom.sf(v - 1, m, leak)) for v in range(m + 1)]
    plain = [float(binom.sf(v - 1, m, p)) for v in range(m + 1)]
    together = [delta + (1.0 - delta) * tail for tail in plain]
    return {"every secret by itself": alone, "all secrets at once": together}


@pytest.mark.parametrize("m", [3, 10, 40])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.01), (1.0, 0.003), (3.0, 0.02)])
def test_the_one_run_bound_covers_the_worst_mechanisms(
    m: int, epsilon: float, delta: float
) -> None:
    for tails in tails_of_worst_mechanisms(m, epsilon, delta).values():
        for v, tail in enumerate(tails):
            assert one_run_p_value(v, m, m, epsilon, delta) >= tail * (1.0 - 1e-9)


def test_a_bound_without_the_delta_term_would_not() -> None:
    m, epsilon, delta = 40, 1.0, 0.01
    tails = tails_of_worst_mechanisms(m, epsilon, delta)["all secrets at once"]
    assert one_run_p_value(m, m, m, epsilon, 0.0) < 0.01 * tails[m]


def guesses_of_a_leaking_mechanism(
    random: np.random.Generator, trials: int, epsilon: float, delta: float, *, only_leaks: bool
) -> tuple[int, int]:
    """Guess by randomised response that gives secrets away; or where they are given away only."""
    leaks = random.random(trials) < delta
    right = leaks | (random.random(trials) < 1.0 / (1.0 + math.exp(-epsilon)))
    made = leaks if only_leaks else np.ones(trials, bool)
    return int((right & made).sum()), int(made.sum())


@pytest.mark.parametrize("only_leaks", [False, True])
@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (0.5, 1e-3), (2.0, 1e-2)])
def test_independent_bounds_hold_as_often_as_they_say(
    epsilon: float, delta: float, only_leaks: bool
) -> None:
    random, repetitions, confidence = np.random.default_rng(4), 4000, 0.9
    wrong = 0
    for _ in range(repetitions):
        right, made = guesses_of_a_leaking_mechanism(
            random, 500, epsilon, delta, only_leaks=only_leaks
        )
        lower = independent_bound(right, made, trials=500, delta=delta, confidence=confidence)
        wrong += lower > epsilon
    assert binom.sf(wrong - 1, repetitions, 1.0 - confidence) > LEVEL


def test_the_same_count_finds_a_bound_that_forgets_delta() -> None:
    random, wrong = np.random.default_rng(4), 0
    for _ in range(1000):
        right, made = guesses_of_a_leaking_mechanism(random, 500, 0.5, 1e-2, only_leaks=True)
        wrong += independent_bound(right, made, trials=500, delta=0.0, confidence=0.9) > 0.5
    assert binom.sf(wrong - 1, 1000, 0.1) < LEVEL


def test_one_run_bounds_hold_as_often_as_they_say() -> None:
    """All secrets at once with probability δ: guesses that depend on each other."""
    random, wrong, epsilon, delta = np.random.default_rng(5), 0, 0.7, 0.02
    for _ in range(3000):
        right = int(random.binomial(200, 1.0 / (1.0 + math.exp(-epsilon))))
        right = 200 if random.random() < delta else right
        bound = one_run_bound(right, 200, canaries=200, delta=delta, confidence=0.9)
        wrong += bound > epsilon
    assert binom.sf(wrong - 1, 3000, 0.1) > LEVEL


def test_bounds_grow_with_right_guesses_and_fall_with_confidence() -> None:
    for name, setting in (("trials", independent_bound), ("canaries", one_run_bound)):
        found = {
            (v, c): setting(v, 100, **{name: 100}, delta=1e-6, confidence=c)
            for v, c in product((40, 60, 80, 100), (0.9, 0.99))
        }
        assert found[40, 0.9] == 0.0
        assert found[60, 0.9] <= found[80, 0.9] < found[100, 0.9]
        assert found[80, 0.99] < found[80, 0.9]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"right": 5, "guesses": 4}, "right must be at most guesses"),
        ({"right": 5, "guesses": 11}, "right must be at most guesses"),
        ({"right": -1, "guesses": 4}, "right must be at most guesses"),
        ({"confidence": 1.0}, "confidence must be"),
        ({"delta": -0.1}, "delta must be"),
        ({"delta": 2.0}, "delta must be"),
    ],
)
def test_bad_input(arguments: dict[str, float], words: str) -> None:
    given = {"right": 3, "guesses": 4, "delta": 0.0, "confidence": 0.9, **arguments}
    right, guesses = int(given.pop("right")), int(given.pop("guesses"))
    with pytest.raises(ValueError, match=words):
        independent_bound(right, guesses, trials=10, **given)
    with pytest.raises(ValueError, match=words):
        one_run_bound(right, guesses, canaries=10, **given)

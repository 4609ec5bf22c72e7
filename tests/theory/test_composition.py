"""The lemmas against mpmath, and against exact privacy losses found by brute force."""

import itertools
import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.theory import (
    advanced_composition,
    amplification_by_sampling,
    extended_advanced_composition,
    gaussian_mechanism,
)
from dither.types import EpsilonDelta

probabilities = st.floats(1e-12, 0.999)


def exact_gaussian_delta(ratio: float, epsilon: float) -> mpmath.mpf:
    """δ of the Gaussian mechanism with Δ/σ = ratio at ε (Balle and Wang 2018), at 50 digits."""
    with mpmath.workdps(50):
        r, e = mpmath.mpf(ratio), mpmath.mpf(epsilon)
        return mpmath.ncdf(r / 2 - e / r) - mpmath.exp(e) * mpmath.ncdf(-r / 2 - e / r)


@given(st.floats(1e-3, 1e3), st.floats(1.0 + 1e-9, 1e4), probabilities)
def test_gaussian_mechanism_is_sound(sensitivity: float, spare: float, delta: float) -> None:
    sigma = spare * math.sqrt(2.0 * math.log(1.25 / delta)) * sensitivity
    epsilon, same_delta = gaussian_mechanism(sensitivity, sigma, delta)
    assert same_delta == delta
    assert epsilon == pytest.approx(1.0 / spare, rel=1e-12)
    assert exact_gaussian_delta(sensitivity / sigma, epsilon) <= delta


def test_gaussian_mechanism_refuses_where_it_would_be_wrong() -> None:
    delta, epsilon = 1e-5, 20.0
    sigma = math.sqrt(2.0 * math.log(1.25 / delta)) / epsilon
    assert exact_gaussian_delta(1.0 / sigma, epsilon) > 10 * delta
    with pytest.raises(ValueError, match=r"sigma must be above 4\.84481, .*, got 0\.24"):
        gaussian_mechanism(1.0, sigma, delta)
    with pytest.raises(ValueError, match="sigma must be above"):
        gaussian_mechanism(1.0, math.sqrt(2.0 * math.log(1.25 / delta)), delta)


def sampled_response_delta(epsilon: float, delta: float, q: float, at: float) -> mpmath.mpf:
    """δ at ε = ``at`` of the worst (ε, δ) mechanism on one of two records, the first with chance q.

    The first record is replaced. The mechanism gives its record away with chance δ and otherwise
    answers by randomized response; the other record is the one that hides the change worst.
    """
    with mpmath.workdps(50):
        truth = mpmath.exp(epsilon) / (1 + mpmath.exp(epsilon))
        lie, d, q, keep = 1 - truth, mpmath.mpf(delta), mpmath.mpf(q), 1 - mpmath.mpf(delta)
        said = q * keep * truth + (1 - q) * keep * lie
        said_by_neighbour = keep * lie
        given_away = q * d
        return given_away + max(0, said - mpmath.exp(at) * said_by_neighbour)


@given(st.floats(1e-3, 20.0), st.floats(1e-12, 0.9), st.floats(1e-4, 1.0))
def test_amplification_covers_randomized_response(epsilon: float, delta: float, q: float) -> None:
    amplified = amplification_by_sampling(epsilon, delta, q)
    exact = sampled_response_delta(epsilon, delta, q, amplified.epsilon)
    assert exact <= amplified.delta * (1 + 1e-12)
    assert amplified.epsilon == pytest.approx(float(q * mpmath.expm1(epsilon)), rel=1e-13)


def test_the_reference_rejects_an_amplification_that_is_too_strong() -> None:
    exact = sampled_response_delta(1.0, 1e-6, 0.1, 0.1 * 1.0)
    assert exact > amplification_by_sampling(1.0, 1e-6, 0.1).delta


def test_amplification_overflows_to_infinity() -> None:
    assert amplification_by_sampling(1e4, 1e-5, 0.5).epsilon == math.inf


def exact_delta(epsilons: np.ndarray, deltas: np.ndarray, epsilon: float) -> float:
    """δ at ε of the worst (ε_i, δ_i) mechanisms together, over all outcomes.

    Each either gives the record away (δ_i) or answers by randomized response with ε_i: no
    mechanism with these parameters has a larger loss (Kairouz, Oh and Viswanath 2015).
    """
    kept = 1.0
    for signs in itertools.product((-1.0, 1.0), repeat=epsilons.size):
        loss = float(np.dot(signs, epsilons))
        chance = np.prod(
            [1.0 / (1.0 + math.exp(-s * e)) for s, e in zip(signs, epsilons, strict=True)]
        )
        kept -= float(chance) * max(0.0, -math.expm1(epsilon - loss))
    return 1.0 - float(np.prod(1.0 - deltas)) * kept


parts = st.lists(st.tuples(st.floats(0.01, 0.99), st.floats(1e-9, 1e-2)), min_size=1, max_size=8)


@given(parts, st.floats(1e-8, 0.5))
def test_composition_covers_the_worst_mechanisms(
    pairs: list[tuple[float, float]], slack: float
) -> None:
    epsilons, deltas = (np.array(column) for column in zip(*pairs, strict=True))
    epsilon, delta = extended_advanced_composition(epsilons, deltas, slack)
    assert exact_delta(epsilons, deltas, epsilon) <= delta


def test_the_reference_rejects_a_composition_that_is_too_cheap() -> None:
    epsilons, deltas = np.full(10, 0.5), np.full(10, 1e-6)
    epsilon, delta = extended_advanced_composition(epsilons, deltas, 0.05)
    assert exact_delta(epsilons, deltas, epsilon) <= delta
    assert exact_delta(epsilons, deltas, 0.5 * epsilon) > delta


@given(st.floats(1e-6, 3.0), st.floats(1e-15, 0.1), st.integers(1, 10**5), probabilities)
def test_equal_parts_are_the_classical_lemma(
    epsilon: float, delta: float, k: int, slack: float
) -> None:
    classical = advanced_composition(epsilon, delta, k, slack)
    extended = extended_advanced_composition(np.full(k, epsilon), np.full(k, delta), slack)
    assert extended == pytest.approx(classical, rel=1e-12)


def mpmath_composition(epsilons: np.ndarray, deltas: np.ndarray, slack: float) -> EpsilonDelta:
    with mpmath.workdps(50):
        e = [mpmath.mpf(float(x)) for x in epsilons]
        spread = mpmath.sqrt(2 * mpmath.fsum(x * x for x in e) * mpmath.log(1 / mpmath.mpf(slack)))
        drift = mpmath.fsum(x * (mpmath.exp(x) - 1) / (mpmath.exp(x) + 1) for x in e)
        survives = mpmath.fprod(1 - mpmath.mpf(float(x)) for x in deltas)
        return EpsilonDelta(spread + drift, 1 - survives + mpmath.mpf(slack))


@pytest.mark.parametrize("seed", range(20))
def test_rounds_towards_privacy(seed: int) -> None:
    random = np.random.default_rng(seed)
    epsilons, deltas = 10.0 ** random.uniform(-9, 0, 50), 10.0 ** random.uniform(-18, -2, 50)
    got = extended_advanced_composition(epsilons, deltas, 1e-6)
    true = mpmath_composition(epsilons, deltas, 1e-6)
    assert got.epsilon >= true.epsilon
    assert got.delta >= true.delta


@pytest.mark.parametrize("seed", range(20))
def test_unequal_parts_against_mpmath(seed: int) -> None:
    random = np.random.default_rng(seed)
    k = int(random.integers(1, 300))
    epsilons = 10.0 ** random.uniform(-9, 0, k)
    deltas = 10.0 ** random.uniform(-18, -2, k)
    slack = float(10.0 ** random.uniform(-15, -1))
    got = extended_advanced_composition(epsilons, deltas, slack)
    assert got == pytest.approx(mpmath_composition(epsilons, deltas, slack), rel=1e-13)


def test_many_parts_against_mpmath() -> None:
    random = np.random.default_rng(0)
    epsilons = 10.0 ** random.uniform(-9, 0, 20_000)
    deltas = 10.0 ** random.uniform(-20, -10, 20_000)
    got = extended_advanced_composition(epsilons, deltas, 1e-12)
    assert got == pytest.approx(mpmath_composition(epsilons, deltas, 1e-12), rel=1e-13)


@pytest.mark.parametrize("bad", [0.0, 1.0, -1e-9, 1.5, math.nan])
def test_refuses_a_delta_outside_the_unit_interval(bad: float) -> None:
    calls: list[Callable[[], EpsilonDelta]] = [
        lambda: gaussian_mechanism(1.0, 1e3, bad),
        lambda: amplification_by_sampling(1.0, bad, 0.1),
        lambda: advanced_composition(0.1, bad, 10, 1e-6),
        lambda: extended_advanced_composition([0.1], [bad], 1e-6),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="delta.* must be strictly between 0 and 1, got"):
            call()
    with pytest.raises(ValueError, match="slack must be strictly between 0 and 1, got"):
        advanced_composition(0.1, 1e-6, 10, bad)
    with pytest.raises(ValueError, match="slack must be strictly between 0 and 1, got"):
        extended_advanced_composition([0.1], [1e-6], bad)


def test_refuses_the_rest() -> None:
    with pytest.raises(ValueError, match="sample_rate must be above 0 and at most 1, got 1.5"):
        amplification_by_sampling(1.0, 1e-5, 1.5)
    with pytest.raises(ValueError, match="steps must be an integer of at least 1, got 0"):
        advanced_composition(0.1, 1e-6, 0, 1e-6)
    with pytest.raises(ValueError, match="deltas must have one entry per step, 2 in all, got 1"):
        extended_advanced_composition([0.1, 0.1], [1e-6], 1e-6)
    with pytest.raises(ValueError, match=r"epsilons\[0\] must be positive and finite, got 0.0"):
        extended_advanced_composition([0.0], [1e-6], 1e-6)

"""Bounds on membership inference, against a numerical optimum and an exact mechanism."""

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import norm

from dither.accounting.gaussian import gaussian_epsilon
from dither.reports.odds import (
    best_guess,
    group_privacy,
    max_true_positive_rate,
    membership_odds,
    percent,
    times,
)

EPSILONS, DELTAS = st.floats(0.0, 12.0), st.floats(1e-9, 0.5)


def optimum(epsilon: float, delta: float, weights: tuple[float, float], **fixed: float) -> float:
    """Return the largest weights·(P, F) that the two lines of the definition allow, by search."""
    e = math.exp(epsilon)
    lines = [[1.0, -e], [e, -1.0]]  # P − e·F ≤ δ, and e·P − F ≤ e − 1 + δ
    level = [delta, e - 1.0 + delta]
    wrong = fixed.get("wrong")
    box = [(0.0, 1.0), (0.0, 1.0) if wrong is None else (wrong, wrong)]
    found = linprog([-weights[0], -weights[1]], A_ub=lines, b_ub=level, bounds=box)
    assert found.fun is not None
    return float(-found.fun)


@given(EPSILONS, DELTAS)
def test_the_best_guess_is_the_optimum_of_the_trade_off(epsilon: float, delta: float) -> None:
    truth = 0.5 + 0.5 * optimum(epsilon, delta, (1.0, -1.0))
    found = best_guess(epsilon, delta)
    assert found == pytest.approx(truth, abs=1e-7)
    exact = (math.exp(epsilon) + delta) / (1.0 + math.exp(epsilon))
    assert exact <= found * (1.0 + 1e-15)
    assert found == pytest.approx(exact, rel=1e-11)


@given(EPSILONS, DELTAS, st.floats(0.0, 1.0))
def test_the_true_positive_rate_is_the_optimum_of_the_trade_off(
    epsilon: float, delta: float, wrong: float
) -> None:
    truth = optimum(epsilon, delta, (1.0, 0.0), wrong=wrong)
    assert max_true_positive_rate(wrong, epsilon, delta) == pytest.approx(truth, abs=1e-7)


@pytest.mark.parametrize("mu", [0.3, 1.0, 2.5])
def test_the_gaussian_mechanism_stays_below_and_a_smaller_epsilon_would_not(mu: float) -> None:
    """The best test between two Gaussians is known: no bound may lie below what it reaches."""
    delta = 1e-3
    epsilon = gaussian_epsilon(mu, delta).upper
    wrong = np.linspace(1e-4, 0.9999, 2000)
    reached = norm.cdf(norm.ppf(wrong) + mu)
    allowed = np.array([max_true_positive_rate(float(F), epsilon, delta) for F in wrong])
    assert (reached <= allowed).all()
    assert norm.cdf(mu / 2.0) <= best_guess(epsilon, delta)
    below = np.array([max_true_positive_rate(float(F), 0.97 * epsilon, delta) for F in wrong])
    assert (reached > below).any()


def test_limits_and_large_epsilons() -> None:
    nothing = membership_odds(0.0, 1e-12)
    assert nothing.best_guess == pytest.approx(0.5, abs=1e-9)
    assert nothing.likelihood_ratio == pytest.approx(1.0)
    huge = membership_odds(5000.0, 1e-5)
    assert huge.best_guess == 1.0
    assert huge.likelihood_ratio == math.inf
    assert [share for _, share in huge.rates] == [1.0, 1.0, 1.0]
    assert times(huge.likelihood_ratio) == "more than 10^300"


@given(st.floats(0.0, 1.0), st.floats(1.0, 1e12))
def test_what_is_shown_is_never_less(share: float, factor: float) -> None:
    assert float(percent(share).removesuffix(" %")) >= min(100.0, 100.0 * share)
    assert float(times(factor).replace(",", "")) >= factor


@given(EPSILONS, DELTAS, st.integers(1, 4))
def test_groups_follow_from_single_records_by_induction(
    epsilon: float, delta: float, size: int
) -> None:
    assume(size * epsilon < 30.0)
    smaller = (0.0, 0.0) if size == 1 else group_privacy(size - 1, epsilon, delta)
    group = group_privacy(size, epsilon, delta)
    assert group[0] == pytest.approx(smaller[0] + epsilon)
    assert group[1] == pytest.approx(min(1.0, delta + math.exp(epsilon) * smaller[1]), rel=1e-9)

"""The cost of a search against exact distributions, and against dp-accounting."""

import math
from itertools import islice

import dp_accounting
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp

from dither.accounting.rdp import ORDERS, renyi_divergences, renyi_epsilon
from dither.accounting.selection import TrialCount, selection_divergences
from dither.types import FloatArray

CASES = [(1.0, 1.0), (10.0, 1.0), (10.0, 0.0), (3.3, 0.5), (100.0, 0.0), (50.0, 2.0)]


@pytest.mark.parametrize(("mean", "shape"), CASES)
def test_the_number_of_trials_is_a_distribution_with_its_mean(mean: float, shape: float) -> None:
    chances = np.array([*islice(TrialCount(mean, shape).probabilities(), 50_000)])
    assert chances.sum() == pytest.approx(1.0, abs=1e-9)
    assert chances @ np.arange(1, 50_001) == pytest.approx(mean, rel=1e-9)


def generating(trials: TrialCount, x: FloatArray) -> FloatArray:
    """Return E[x^K] in closed form."""
    gamma, eta = trials.gamma, trials.shape
    if eta == 0.0:
        return np.log1p(-(1.0 - gamma) * x) / math.log(gamma)
    return np.expm1(-eta * np.log1p(-(1.0 - gamma) * x)) / math.expm1(-eta * math.log(gamma))


def divergence(p: FloatArray, q: FloatArray, order: float) -> float:
    log_p, log_q = np.log(np.maximum(p, 1e-300)), np.log(np.maximum(q, 1e-300))
    return float(logsumexp(order * log_p + (1.0 - order) * log_q)) / (order - 1.0)


def best_of(p: FloatArray, trials: TrialCount) -> FloatArray:
    """Return the distribution of the largest of K outcomes."""
    return np.diff(generating(trials, np.minimum(np.cumsum(p), 1.0)), prepend=0.0)


outcomes = st.lists(st.floats(0.02, 1.0), min_size=6, max_size=6)


@given(outcomes, outcomes, st.sampled_from(CASES[1:]))
def test_exact_searches_cost_no_more_than_the_bound(
    one: list[float], two: list[float], case: tuple[float, float]
) -> None:
    p, q = np.array(one) / sum(one), np.array(two) / sum(two)
    orders, trials = np.array([1.1, 1.5, 2.0, 3.0, 6.0, 20.0, 100.0]), TrialCount(*case)
    base = np.array([max(divergence(p, q, a), divergence(q, p, a)) for a in orders])
    bound = selection_divergences(base, orders, trials)
    best_p, best_q = best_of(p, trials), best_of(q, trials)
    for a, most in zip(orders, bound, strict=True):
        assert max(divergence(best_p, best_q, a), divergence(best_q, best_p, a)) <= most + 1e-9


def test_one_run_s_cost_is_not_enough_for_a_search() -> None:
    p, q = np.array([0.999, 0.001]), np.array([0.998, 0.002])
    trials, order = TrialCount(100.0, 1.0), 2.0
    alone = divergence(q, p, order)
    assert divergence(best_of(q, trials), best_of(p, trials), order) > 10.0 * alone


@pytest.mark.parametrize(("mean", "shape"), CASES[1:])
def test_dp_accounting_agrees(mean: float, shape: float) -> None:
    noise, steps, rate, delta = 1.5, 50, 0.05, 1e-5
    event = dp_accounting.PoissonSampledDpEvent(rate, dp_accounting.GaussianDpEvent(noise))
    run = dp_accounting.SelfComposedDpEvent(event, steps)
    peer = RdpAccountant(orders=ORDERS.tolist()).compose(
        dp_accounting.dp_event.RepeatAndSelectDpEvent(run, mean, shape)
    )
    base = renyi_divergences([noise] * steps, sample_rate=rate)
    ours = selection_divergences(base, ORDERS, TrialCount(mean, shape))
    # The peer's γ gives the mean to about six digits, ours to nine.
    assert renyi_epsilon(ours, ORDERS, delta) == pytest.approx(peer.get_epsilon(delta), rel=1e-5)


@pytest.mark.parametrize(
    ("mean", "shape"), [(0.5, 1.0), (math.nan, 1.0), (10.0, -1.0), (10.0, 1e3), (1e12, 1.0)]
)
def test_refusals(mean: float, shape: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        TrialCount(mean, shape)

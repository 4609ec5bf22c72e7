"""The convergence theorem against simulation, and the cost of noise in it."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.stats import binom
from tests.theory.problems import BUDGET, PROBLEM, budgets, problems

from dither.noise import Matched
from dither.schedules import Constant, InverseSqrt
from dither.theory import (
    Problem,
    adp_sigma,
    b_delta,
    improvement,
    noise_cost,
    utility_bound,
)
from dither.types import FloatArray


def simulated_gradient(eta: FloatArray, s: FloatArray, runs: int) -> float:
    """min_t E F'(θ_t)² of noisy SGD on the pseudo-Huber loss √(1 + (θ − x)²), L = G = 1."""
    random = np.random.default_rng(7)
    data = np.array([-1.0, 0.5, 3.0])
    theta = np.full(runs, 6.0)
    means = []
    for step, noise in zip(eta, s, strict=True):
        away = theta[:, None] - data
        slopes = away / np.sqrt(1.0 + away**2)
        means.append(float(np.mean(slopes.mean(axis=1) ** 2)))
        picked = slopes[np.arange(runs), random.integers(0, 3, runs)]
        theta = theta - step * (picked + noise * random.standard_normal(runs))
    return min(means)


def test_the_theorem_bounds_a_real_run_and_the_main_texts_prefactor_does_not() -> None:
    T, m = 60, 1
    eta = InverseSqrt(4.0, 1.0, 0.5).stepsizes(T)
    z = np.full(T, 0.5)
    away = 6.0 - np.array([-1.0, 0.5, 3.0])
    gap = float(np.mean(np.sqrt(1.0 + away**2)))  # F* > 0, so this is more than the gap
    problem = Problem(1, 1.0, gap, clip_norm=1.0, dataset_size=3, batch_size=m)
    bound = utility_bound(problem, eta, noise_multipliers=z)
    reached = simulated_gradient(eta, z / m, runs=4000)
    assert reached <= bound.total
    b = 1.0 / eta
    as_printed = bound.total * float(np.sum(1.0 / b)) / float(np.sum(b))
    assert reached > as_printed


@given(st.lists(st.tuples(st.floats(1e-3, 10), st.floats(0.1, 10)), min_size=1), problems, budgets)
def test_the_theorem_in_the_papers_form(
    values: list[tuple[float, float]], problem: Problem, budget: dict[str, Any]
) -> None:
    eta, alpha = (np.array(column) for column in zip(*values, strict=True))
    T, n, m, G = eta.size, problem.dataset_size, problem.batch_size, problem.clip_norm
    assume(budget["delta"] < 12.8 * T * m / n)
    scale = 0.3
    b = scale / eta
    B = b_delta(T, dataset_size=n, batch_size=m, delta=budget["delta"])
    M = math.fsum((alpha / b) ** 2) * math.fsum(alpha**-2.0)
    prefactor = 1.0 / math.fsum(1.0 / b)
    L, d = problem.smoothness, problem.dimension
    plain = problem.initial_gap / scale + scale * L / 2 * math.fsum(G**2 / b**2)
    noise = scale * L * d * (16 * G) ** 2 * B / (2 * n**2 * budget["epsilon"] ** 2) * M
    bound = utility_bound(problem, eta, alphas=alpha, **budget)
    assert bound.optimization == pytest.approx(prefactor * plain, rel=1e-11)
    assert bound.noise == pytest.approx(prefactor * noise, rel=1e-11)
    assert float(bound) == bound.total == bound.optimization + bound.noise


def test_noise_multipliers_are_the_noise_on_the_sum() -> None:
    eta = InverseSqrt().stepsizes(50)
    alpha = Matched().alphas(eta)
    by_theorem = utility_bound(PROBLEM, eta, alphas=alpha, **BUDGET)
    sigma = adp_sigma(alpha, clip_norm=1.0, dataset_size=50_000, batch_size=256, **BUDGET)
    by_hand = utility_bound(PROBLEM, eta, noise_multipliers=256 * alpha * sigma)
    assert by_hand.total == pytest.approx(by_theorem.total, rel=1e-13)
    assert utility_bound(PROBLEM, eta, noise_multipliers=np.zeros(50)).noise == 0.0


def test_poisson_sampling_adds_the_variance_of_the_batch() -> None:
    """E‖sum/m‖² over Binomial(n, m/n) equal gradients of length G, by brute force."""
    n, m, G = 40, 8, 1.5
    problem = Problem(1, 2.0, 0.0, clip_norm=G, dataset_size=n, batch_size=m)
    size = np.arange(n + 1)
    second_moment = float(np.sum(binom.pmf(size, n, m / n) * (G * size / m) ** 2))
    bound = utility_bound(problem, [0.3], noise_multipliers=[0.0], sampling="poisson")
    assert bound.optimization == pytest.approx(0.5 * 2.0 * 0.3 * second_moment, rel=1e-12)
    fixed = utility_bound(problem, [0.3], noise_multipliers=[0.0], sampling="fixed")
    assert fixed.optimization < bound.optimization


pairs = st.lists(st.tuples(st.floats(1e-4, 1e4), st.floats(1e-4, 1e4)), min_size=1, max_size=40)


@given(pairs)
def test_matched_noise_minimises_the_cost(values: list[tuple[float, float]]) -> None:
    eta, alpha = (np.array(column) for column in zip(*values, strict=True))
    matched = 1.0 / np.sqrt(eta)
    least = noise_cost(matched, eta)
    assert least == pytest.approx(eta.sum() ** 2, rel=1e-12)
    assert noise_cost(alpha, eta) >= least * (1 - 1e-12)


@given(pairs, st.integers(0, 39), st.floats(0.05, 0.5))
def test_any_departure_from_matched_noise_costs(
    values: list[tuple[float, float]], where: int, size: float
) -> None:
    eta = np.array([max(v, 1.0) for v, _ in [*values, (1.0, 1.0)]])
    matched = 1.0 / np.sqrt(eta)
    moved = matched.copy()
    moved[where % eta.size] *= 1.0 + size
    # M grows by the factor 1 + w·(1−w)·(x − 1/x)², w the step's share of Ση and x = 1 + size.
    w = eta[where % eta.size] / eta.sum()
    factor = 1.0 + w * (1.0 - w) * ((1.0 + size) - 1.0 / (1.0 + size)) ** 2
    assert noise_cost(moved, eta) == pytest.approx(noise_cost(matched, eta) * factor, rel=1e-11)


@given(pairs)
def test_cost_by_its_definition(values: list[tuple[float, float]]) -> None:
    eta, alpha = (np.array(column) for column in zip(*values, strict=True))
    b = 1.0 / eta
    direct = math.fsum((alpha / b) ** 2) * math.fsum(1.0 / alpha**2)
    assert noise_cost(alpha, eta) == pytest.approx(direct, rel=1e-12)
    uniform = eta.size * math.fsum(eta**2)
    assert improvement(eta) == pytest.approx(uniform / eta.sum() ** 2, rel=1e-12)
    assert improvement(eta, alpha) == pytest.approx(uniform / direct, rel=1e-12)


def test_scales_do_not_matter_nor_overflow() -> None:
    eta, alpha = np.array([1.0, 0.5, 0.1]), np.array([1.0, 3.0, 2.0])
    assert noise_cost(alpha * 1e49, eta) == pytest.approx(noise_cost(alpha, eta), rel=1e-14)
    assert improvement(eta * 1e-48) == pytest.approx(improvement(eta), rel=1e-14)


def test_constant_steps_gain_nothing() -> None:
    assert improvement(Constant(0.3).stepsizes(1000)) == pytest.approx(1.0, rel=1e-14)


def test_improvement_grows_like_log_t() -> None:
    """T·Ση²/(Ση)² → (log T − log 20 + …)/4 for η = 1/√(20+t): a quarter more each e-fold."""
    T = 10**5
    low, high = (improvement(InverseSqrt(20).stepsizes(steps)) for steps in (T, 10 * T))
    quarter = math.log(10.0) / 4.0
    # (Ση)² = 4T·(1 − O(√(20/T))), so the growth is off by no more than that times the factor.
    assert high - low == pytest.approx(quarter, abs=high * 2.5 * math.sqrt(21 / T))


def test_refuses_unequal_lengths() -> None:
    with pytest.raises(ValueError, match="alphas must have one entry per step, 2 in all, got 1"):
        noise_cost([1.0], [1.0, 2.0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dimension": 0}, "dimension must be an integer of at least 1, got 0"),
        ({"smoothness": 0.0}, "smoothness must be a positive, finite number, got 0.0"),
        ({"initial_gap": -1.0}, "initial_gap must be a finite number of at least 0, got -1.0"),
        ({"clip_norm": math.nan}, "clip_norm must be a positive, finite number, got nan"),
        ({"batch_size": 60_000}, "batch_size must be at most dataset_size = 50000, got 60000"),
    ],
)
def test_refuses_bad_problems(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Problem(**{**vars(PROBLEM), **change})


def test_refuses_the_rest() -> None:
    eta = [0.1, 0.1]
    with pytest.raises(TypeError, match="takes alphas, epsilon and delta together, or"):
        utility_bound(PROBLEM, eta)
    with pytest.raises(TypeError, match="takes alphas, epsilon and delta together, or"):
        utility_bound(PROBLEM, eta, alphas=eta, noise_multipliers=eta, **BUDGET)
    with pytest.raises(TypeError, match="takes alphas, epsilon and delta together, or"):
        utility_bound(PROBLEM, eta, alphas=eta, epsilon=1.0)
    with pytest.raises(ValueError, match="noise_multipliers must have one entry per step"):
        utility_bound(PROBLEM, eta, noise_multipliers=[1.0])
    with pytest.raises(ValueError, match="alphas must have one entry per step, 2 in all, got 3"):
        utility_bound(PROBLEM, eta, alphas=[1.0, 1.0, 1.0], **BUDGET)
    with pytest.raises(ValueError, match="sampling must be one of fixed, poisson, got 'shuffle'"):
        utility_bound(PROBLEM, eta, noise_multipliers=eta, sampling="shuffle")
    with pytest.raises(ValueError, match="sampling must be 'fixed' with the theorem's noise"):
        utility_bound(PROBLEM, eta, alphas=eta, sampling="poisson", **BUDGET)
    with pytest.raises(TypeError, match="problem must be a Problem, got None"):
        utility_bound(None, eta, noise_multipliers=eta)  # type: ignore[arg-type]

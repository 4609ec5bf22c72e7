"""The simplified utility bounds against the theorem, and the sums behind them."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.theory.problems import BUDGET, PROBLEM, budgets, problems

from dither.noise import GrowthBound, Matched, Uniform
from dither.schedules import InverseSqrt
from dither.theory import (
    Problem,
    adaptive_bounds,
    adaptive_utility_bound,
    b_delta,
    best_steps,
    constant_bound,
    decaying_bounds,
    logarithmic_sum_bound,
    noise_cost,
    power_sum_bounds,
    utility_bound,
)


@given(problems, budgets, st.floats(0.1, 50), st.floats(0.1, 10), st.floats(0.1, 5), st.integers(0))
def test_decaying_bounds_simplify_the_theorem(
    problem: Problem, budget: dict[str, Any], a: float, c: float, scale: float, more: int
) -> None:
    T = math.ceil(5 + 4 * a / c) + more % 3000
    assume(budget["delta"] < 12.8 * T * problem.batch_size / problem.dataset_size)
    eta = InverseSqrt(a, c, scale).stepsizes(T)
    both = decaying_bounds(problem, T, a=a, c=c, scale=scale, **budget)
    for simple, allocation in ((both.adp, Matched()), (both.dp, Uniform())):
        theorem = utility_bound(problem, eta, alphas=allocation.alphas(eta), **budget)
        assert theorem.optimization <= simple.optimization * (1 + 1e-12)
        assert theorem.noise <= simple.noise * (1 + 1e-12)


def test_decaying_bounds_by_hand() -> None:
    T, a, c, scale = 1000, 7.0, 3.0, 0.5
    problem = Problem(700, 3.0, 2.0, clip_norm=2.0, dataset_size=50_000, batch_size=256)
    both = decaying_bounds(problem, T, a=a, c=c, scale=scale, **BUDGET)
    log_T = math.log(1 + T * c / a)
    plain = math.sqrt(c) * (2.0 / scale + scale * 4.0 * 3.0 * log_T / (2 * c)) / math.sqrt(T - 1)
    B = b_delta(T, dataset_size=50_000, batch_size=256, delta=1e-5)
    unit = scale * 700 * 3.0 * (16 * 2.0) ** 2 * B / (50_000**2 * 8.0**2 * math.sqrt(c))
    assert both.adp.optimization == both.dp.optimization == pytest.approx(plain, rel=1e-12)
    assert both.adp.noise == pytest.approx(unit * math.sqrt(T), rel=1e-12)
    assert both.dp.noise == pytest.approx(unit * log_T * (math.sqrt(T - 1) + 1) / 2, rel=1e-12)


def test_half_of_the_decaying_adp_bound_is_false() -> None:
    """The main text's version: for long runs the theorem itself is above it."""
    T, a, c = 100_000, 0.1, 1.0
    eta = InverseSqrt(a, c).stepsizes(T)
    theorem = utility_bound(PROBLEM, eta, alphas=Matched().alphas(eta), **BUDGET)
    simple = decaying_bounds(PROBLEM, T, a=a, c=c, **BUDGET).adp
    assert simple.noise / 2 < theorem.noise <= simple.noise


@given(
    problems,
    budgets,
    st.floats(0.01, 30),
    st.floats(0.001, 1.0),
    st.floats(0.0, 1.0),
    st.integers(0),
    st.integers(0, 2**32 - 1),
)
def test_adaptive_bounds_simplify_their_theorem(
    problem: Problem,
    budget: dict[str, Any],
    b0_squared: float,
    nu_share: float,
    between: float,
    more: int,
    seed: int,
) -> None:
    """For any gradients of length at most G, and any C in [ν, G²]."""
    G = problem.clip_norm
    nu = nu_share * G**2
    growth = nu + between * (G**2 - nu)
    T = math.ceil(5 + 4 * b0_squared / G**2)
    assume(T < 10**5)
    T += more % 1000
    assume(budget["delta"] < 12.8 * T * problem.batch_size / problem.dataset_size)
    lengths = G * np.random.default_rng(seed).uniform(0, 1, T) ** 4
    b = np.sqrt(b0_squared + np.cumsum(np.maximum(lengths**2, nu)))
    both = adaptive_bounds(problem, T, b0_squared=b0_squared, nu=nu, **budget)
    for simple, allocation in (
        (both.adp, GrowthBound(b0_squared, growth)),
        (both.dp, Uniform()),
    ):
        theorem = adaptive_utility_bound(
            problem,
            T,
            expected_cost=noise_cost(allocation.alphas(1.0 / b), 1.0 / b),
            b0_squared=b0_squared,
            nu=nu,
            **budget,
        )
        assert theorem.noise <= simple.noise * (1 + 1e-12)


def test_the_adaptive_theorem_bounds_a_real_run() -> None:
    """Reactive step sizes on the pseudo-Huber loss, whose gradients are at most G = 1 long."""
    random, runs, T, b0_squared, nu, z = np.random.default_rng(3), 2000, 200, 0.5, 0.1, 0.3
    data = np.array([-1.0, 0.5, 3.0])
    theta, b_squared = np.full(runs, 6.0), np.full(runs, b0_squared)
    means, noise = [], np.zeros(runs)
    for _ in range(T):
        away = theta[:, None] - data
        slopes = away / np.sqrt(1.0 + away**2)
        means.append(float(np.mean(slopes.mean(axis=1) ** 2)))
        picked = slopes[np.arange(runs), random.integers(0, 3, runs)]
        b_squared = b_squared + np.maximum(picked**2, nu)
        noise += 1.0 / b_squared
        theta = theta - (picked + z * random.standard_normal(runs)) / np.sqrt(b_squared)
    gap = float(np.mean(np.sqrt(1.0 + (6.0 - data) ** 2)))
    problem = Problem(1, 1.0, gap, clip_norm=1.0, dataset_size=3, batch_size=1)
    # The theorem's σ² is its variance times Σ1/α² = T: choose E[M] so that σ = z.
    variance = problem.theorem_variance(T, epsilon=1.0, delta=0.1)
    cost = float(np.mean(noise)) * z**2 / variance
    bound = adaptive_utility_bound(
        problem, T, expected_cost=cost, b0_squared=b0_squared, nu=nu, epsilon=1.0, delta=0.1
    )
    assert min(means) <= bound.total


def test_adaptive_constants_are_the_corrected_ones() -> None:
    T, nu, b0_squared = 5000, 0.25, 2.0
    problem = Problem(700, 3.0, 2.0, clip_norm=2.0, dataset_size=50_000, batch_size=256)
    both = adaptive_bounds(problem, T, b0_squared=b0_squared, nu=nu, scale=0.5, **BUDGET)
    B = b_delta(T, dataset_size=50_000, batch_size=256, delta=1e-5)
    unit = math.sqrt(2) * 2.0**3 * 0.5 * 700 * 3.0 * B * T
    unit /= 50_000**2 * 8.0**2 * nu * math.sqrt(T - 1)
    assert both.adp.noise == pytest.approx(1024 * unit, rel=1e-12)
    log_T = math.log(1 + T * nu / b0_squared)
    assert both.dp.noise == pytest.approx(256 * unit * log_T, rel=1e-12)
    inside = 2.0 / 0.5 + (2 * 2.0 + 0.5 * 3.0 / 2) * (1 + math.log(T * (4.0 + nu) / 2.0 + 1))
    plain = 2 * math.sqrt(2) * 2.0 / math.sqrt(T - 1) * inside
    assert both.adp.optimization == pytest.approx(plain, rel=1e-12)


@given(problems, budgets, st.integers(1, 5000), st.floats(1e-4, 10.0))
def test_constant_bound_is_twice_the_theorem(
    problem: Problem, budget: dict[str, Any], T: int, stepsize: float
) -> None:
    assume(budget["delta"] < 12.8 * T * problem.batch_size / problem.dataset_size)
    simple = constant_bound(problem, T, stepsize=stepsize, **budget)
    theorem = utility_bound(problem, np.full(T, stepsize), alphas=np.ones(T), **budget)
    assert simple.optimization == pytest.approx(2 * theorem.optimization, rel=1e-11)
    assert simple.noise == pytest.approx(2 * theorem.noise, rel=1e-11)


def test_constant_bound_at_its_default_step_size() -> None:
    T = 400
    bound = constant_bound(PROBLEM, T, **BUDGET)
    B = b_delta(T, dataset_size=50_000, batch_size=256, delta=1e-5)
    assert bound.optimization == pytest.approx((2 * 2.0 + 1.0) / math.sqrt(T), rel=1e-12)
    noise = 1000 * 16**2 * B * math.sqrt(T) / (50_000**2 * 8.0**2)
    assert bound.noise == pytest.approx(noise, rel=1e-12)


@given(problems, budgets)
def test_best_steps_against_every_number_of_steps(problem: Problem, budget: dict[str, Any]) -> None:
    best = best_steps(problem, **budget)
    assume(best < 10**7)
    fewest = math.floor(problem.dataset_size * budget["delta"] / (12.8 * problem.batch_size)) + 1
    T = np.unique(
        np.concatenate([np.arange(max(fewest, best - 500), best + 500), np.geomspace(fewest, 1e8)])
    ).astype(int)
    least = min(constant_bound(problem, int(t), **budget).total for t in T[fewest <= T])
    assert constant_bound(problem, best, **budget).total <= least * (1 + 1e-12)


def test_refuses_what_the_statements_exclude() -> None:
    with pytest.raises(ValueError, match=r"steps must be at least 5 \+ 4·a/c = 85, got 84"):
        decaying_bounds(PROBLEM, 84, a=20.0, c=1.0, **BUDGET)
    with pytest.raises(ValueError, match=r"steps must be at least 5 \+ .* = 85, got 84"):
        adaptive_bounds(PROBLEM, 84, b0_squared=20.0, nu=0.5, **BUDGET)
    adaptive_bounds(PROBLEM, 85, b0_squared=20.0, nu=1.0, **BUDGET)
    with pytest.raises(ValueError, match="nu must be at most clip_norm² = 1, got 1.001"):
        adaptive_bounds(PROBLEM, 85, b0_squared=20.0, nu=1.001, **BUDGET)


positive = st.floats(1e-3, 1e3)
powers = st.one_of(st.floats(0.0, 3.0), st.sampled_from([0.0, 0.5, 1.0, 1.0 + 1e-12, 1.0 - 1e-9]))


@given(st.integers(1, 5000), positive, positive, powers)
def test_power_sums_lie_between_their_bounds(T: int, a: float, c: float, p: float) -> None:
    direct = float(np.sum((a + c * np.arange(1, T + 1)) ** -p))
    lower, upper = power_sum_bounds(T, a, c, p)
    rounding = 1e-15 * (10 + T)
    assert lower * (1 - rounding) <= direct <= upper * (1 + rounding)
    assert lower <= upper


def test_the_bounds_are_the_papers_formulas() -> None:
    T, a, c, p = 100, 20.0, 2.0, 0.5
    x = a / c
    lower, upper = power_sum_bounds(T, a, c, p)
    assert upper == pytest.approx(2 / c**0.5 * ((x + T) ** 0.5 - x**0.5), rel=1e-11)
    assert lower == pytest.approx(2 / c**0.5 * ((x + 1 + T) ** 0.5 - (x + 1) ** 0.5), rel=1e-11)
    lower, upper = power_sum_bounds(T, a, c, 1.0)
    assert upper == pytest.approx(np.log(1 + T * c / a) / c, rel=1e-11)
    assert lower == pytest.approx(np.log(1 + T / (x + 1)) / c, rel=1e-11)
    assert power_sum_bounds(T, a, c, 1.0 + 1e-13)[0] == pytest.approx(lower, rel=1e-10)


@given(st.lists(st.floats(1e-6, 1e6), max_size=50), st.floats(1.0, 1e6))
def test_logarithmic_sum(rest: list[float], first: float) -> None:
    a = np.array([first, *rest])
    assert np.sum(a / np.cumsum(a)) <= logarithmic_sum_bound(a) + 1e-12


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"values\[0\] must be at least 1, got 0.999"):
        logarithmic_sum_bound([0.999, 3.0])
    with pytest.raises(ValueError, match="power must be at most 5, got 6"):
        power_sum_bounds(3, 1.0, 1.0, 6)
    with pytest.raises(ValueError, match="power must be a finite number of at least 0, got -1"):
        power_sum_bounds(3, 1.0, 1.0, -1)
    with pytest.raises(ValueError, match="c must be a positive, finite number, got 0"):
        power_sum_bounds(3, 1.0, 0, 1.0)

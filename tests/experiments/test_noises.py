"""The noises that are compared: the theorem's formula, and equal cost where it is claimed."""

import math

import numpy as np
import pytest
from experiments.reproduction.noises import (
    ACCOUNTINGS,
    DELTA,
    NOISES,
    SCHEDULES,
    Mechanism,
    noise_multipliers,
    real_epsilon,
)

import dither

T = 40


def mechanism(noise: str, accounting: str, schedule: str = "inverse_sqrt") -> Mechanism:
    return Mechanism(schedule, T, 5_000, 100, 1.6, noise, accounting)


def test_the_paper_s_schedules() -> None:
    t = np.arange(1, T + 1)
    to_zero = 0.1 - (0.1 - 1e-10) / math.sqrt(T) * np.sqrt(t)
    assert np.allclose(SCHEDULES["sqrt_to_zero"].stepsizes(T), to_zero, rtol=1e-6, atol=1e-16)
    assert np.allclose(SCHEDULES["inverse_sqrt"].stepsizes(T), 1.0 / np.sqrt(20 + t))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_theorem_s_noise_is_its_formula(schedule: str) -> None:
    n, m, eps_bar = 5_000, 100, 1.6
    B = math.log(16.0 * T * m / (n * DELTA)) * math.log(1.25 / DELTA)
    b = 1.0 / SCHEDULES[schedule].stepsizes(T)
    for noise, alphas in (("uniform", np.ones(T)), ("matched", np.sqrt(b))):
        sigma = math.sqrt(B * np.sum(alphas**-2.0)) / (n * eps_bar)
        found = noise_multipliers(mechanism(noise, "theorem", schedule))
        assert np.allclose(found, m * sigma * alphas, rtol=1e-12)


def test_every_noise_of_one_accounting_costs_the_same_by_our_accountant() -> None:
    for accounting, target in (
        ("real", real_epsilon(mechanism("uniform", "real"))),
        ("claimed", 25.6),
    ):
        for noise in NOISES:
            cost = mechanism(noise, accounting).plan(2.0).bound.epsilon
            assert 0.995 * target <= cost <= target * (1.0 + 1e-12), (accounting, noise)


def test_optimal_noise_reaches_the_parameters_least_at_equal_cost() -> None:
    eta = SCHEDULES["inverse_sqrt"].stepsizes(T)
    for accounting in ("real", "claimed"):
        z = {noise: noise_multipliers(mechanism(noise, accounting)) for noise in NOISES}
        reaching = {noise: float(np.sum((eta * z[noise]) ** 2)) for noise in NOISES}
        assert reaching["optimal"] <= 1.01 * min(reaching["uniform"], reaching["matched"])


def test_calibrated_uniform_noise_is_the_theorem_s_own() -> None:
    theorem, real, claimed = (noise_multipliers(mechanism("uniform", a)) for a in ACCOUNTINGS)
    assert np.array_equal(theorem, real)
    assert np.all(claimed < theorem)  # what tight accounting buys


def test_the_plan_that_runs_has_this_noise() -> None:
    wanted = mechanism("matched", "theorem")
    plan = wanted.plan(2.5)
    assert np.array_equal(plan.noise_multipliers, noise_multipliers(wanted))
    assert np.array_equal(plan.stepsizes, wanted.stepsizes())
    assert plan.clip_norm == 2.5
    cost = dither.epsilon(noise_multipliers(wanted), sample_rate=0.02, delta=DELTA).epsilon
    assert plan.bound.epsilon == cost

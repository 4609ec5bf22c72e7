"""That `Optimal` really is: against uniform, matched, random transfers, and its own condition."""

from typing import Any

import numpy as np
import pytest

import dither
from dither import Plan
from dither.accounting.calibration import calibrate
from dither.noise import Budget, Matched, Optimal
from dither.noise.optimal import marginal_cost
from dither.schedules import Exponential, InverseSqrt, Linear, PiecewiseConstant, Schedule
from dither.types import FloatArray

DELTA = 1e-5


def reached(plan: Plan) -> float:
    return float(np.sum((plan.stepsizes * plan.noise_multipliers) ** 2))


def plans(schedule: Schedule, batch_size: int, steps: int, epsilon: float) -> dict[str, Plan]:
    return {
        name: dither.plan(
            epsilon=epsilon,
            delta=DELTA,
            dataset_size=60_000,
            batch_size=batch_size,
            steps=steps,
            stepsizes=schedule,
            noise=name,
        )
        for name in ("uniform", "matched", "optimal")
    }


# What a prototype reached, as a share of uniform noise; half a percent for the calibration of each.
LONG = pytest.mark.evidence
TABLE = [
    (InverseSqrt(20.0), 256, 5_000, 0.3, 0.66),
    pytest.param(InverseSqrt(20.0), 256, 5_000, 1.0, 0.75, marks=LONG),
    pytest.param(InverseSqrt(20.0), 256, 5_000, 3.0, 0.87, marks=LONG),
    (InverseSqrt(20.0), 256, 5_000, 8.0, 0.88),
    pytest.param(Linear(1.0, 1e-3), 1_024, 600, 0.3, 0.76, marks=LONG),
    (Linear(1.0, 1e-3), 1_024, 600, 1.0, 0.81),
    pytest.param(Linear(1.0, 1e-3), 1_024, 600, 3.0, 0.90, marks=LONG),
    pytest.param(Linear(1.0, 1e-3), 1_024, 600, 8.0, 0.92, marks=LONG),
]


@pytest.mark.parametrize(("schedule", "batch_size", "steps", "epsilon", "prototype"), TABLE)
def test_ahead_of_uniform_and_matched_and_of_the_prototype(
    schedule: Schedule, batch_size: int, steps: int, epsilon: float, prototype: float
) -> None:
    found = plans(schedule, batch_size, steps, epsilon)
    uniform, matched, optimal = (reached(found[name]) for name in found)
    # ε is met to half a percent, and noise power follows ε about like 1/ε²: one percent.
    slack = 1.01
    assert optimal <= uniform * slack
    assert optimal <= matched * slack
    assert optimal <= uniform * (prototype + 0.005) * slack
    assert found["optimal"].noise_multipliers.min() >= 0.4


LEVELS = 20  # equal noise is accounted once


@pytest.fixture(scope="module")
def budget() -> Budget:
    return Budget(1.0, DELTA, 1_024 / 60_000)


@pytest.fixture(scope="module")
def stepsizes() -> FloatArray:
    return PiecewiseConstant(Linear(1.0, 0.05), LEVELS).stepsizes(400)


@pytest.fixture(scope="module")
def optimal(stepsizes: FloatArray, budget: Budget) -> FloatArray:
    return Optimal().alphas(stepsizes, budget=budget)


def test_noise_saves_the_same_at_every_step(
    stepsizes: FloatArray, budget: Budget, optimal: FloatArray
) -> None:
    """w_t/(−∂δ/∂z_t²) is one number, to a percent; for matched noise it is not."""

    def spread(z: FloatArray) -> float:
        cost = marginal_cost(
            z,
            sample_rate=budget.sample_rate,
            epsilon=budget.epsilon,
            delta=budget.delta,
            sampling="poisson",
            accountant="pld",
            floor=0.4,
        )
        ratio = np.log(stepsizes**2 / cost.slope(z * z))
        return float(np.max(np.abs(ratio - np.median(ratio))))

    assert spread(optimal) <= 0.01
    matched = Matched().alphas(stepsizes)
    assert spread(matched * calibrate(matched, budget)) > 0.05


def test_no_transfer_between_steps_helps(
    stepsizes: FloatArray, budget: Budget, optimal: FloatArray
) -> None:
    """Random changes, each scaled back to the same ε: none gains a tenth of a percent."""
    random = np.random.default_rng(0)

    def noise(shape: FloatArray) -> float:
        z = shape * calibrate(shape, budget, accuracy=2e-4, start=1.0)
        return float(np.sum((stepsizes * z) ** 2))

    best = noise(optimal)
    t = np.linspace(0.0, 1.0, LEVELS)
    for size in (0.02, 0.1, 0.3):
        tilts = [
            np.exp(size * random.standard_normal(LEVELS)),
            np.exp(size * np.sin(2 * np.pi * (random.uniform(0.3, 3) * t + random.uniform()))),
            np.exp(size * random.choice([-1, 1]) * (t - 0.5)),
        ]
        for tilt in tilts:
            assert noise(optimal * tilt.repeat(stepsizes.size // LEVELS)) >= best * 0.999
    matched = Matched().alphas(stepsizes)
    assert noise(matched * float(np.median(optimal / matched))) > best * 1.005


def test_where_noise_is_large_it_is_the_papers_rule() -> None:
    eta = InverseSqrt(20.0).stepsizes(2_000)
    budget = Budget(0.1, DELTA, 256 / 60_000)
    z = Optimal().alphas(eta, budget=budget)
    matched = Matched().alphas(eta)
    ratio = z / (matched * calibrate(matched, budget))
    strong = z > 5.0
    assert strong.all() or np.abs(np.log(ratio[strong])).max() < 0.05
    vast = Optimal().alphas(eta, budget=Budget(0.02, DELTA, 256 / 60_000))
    assert vast.min() > 5.0
    ratio = vast / matched
    np.testing.assert_allclose(ratio / np.median(ratio), 1.0, atol=0.01)


def test_momentum_counts_what_comes_after() -> None:
    eta = np.array([1.0, 2.0, 4.0])
    weights = Optimal(momentum=0.5).weights(eta)
    reach = np.array([1.0 + 1.0 + 1.0, 2.0 + 2.0, 4.0])
    np.testing.assert_allclose(weights, (reach / 4.0) ** 2, rtol=1e-14)


@pytest.mark.parametrize("accountant", ["rdp", "gdp", "theorem"])
def test_other_accountants_have_their_own_optimum(accountant: str) -> None:
    eta = PiecewiseConstant(Exponential(1.0, 0.68), 8).stepsizes(300)
    setting: dict[str, Any] = {
        "epsilon": 1.0,
        "delta": DELTA,
        "dataset_size": 60_000,
        "batch_size": 512,
        "steps": 300,
        "stepsizes": eta,
        "accountant": accountant,
    }
    found = {name: reached(dither.plan(noise=name, **setting)) for name in ("uniform", "matched")}
    best = reached(dither.plan(noise="optimal", **setting))
    assert best <= found["uniform"] * 1.01
    assert best <= found["matched"] * 1.01


def test_large_sample_rates_can_be_shaped() -> None:
    # Steps far stronger than the run's own have transforms that vanish: no warning may come of it.
    budget = Budget(epsilon=3.0, delta=3e-6, sample_rate=5.0 / 6.0)
    eta = np.linspace(1.0, 0.05, 200)
    z = Optimal().alphas(eta, budget=budget)
    assert np.isfinite(z).all()
    # So near to all records, a step costs almost 1/z², where α² = b is optimal.
    assert np.allclose(z / z[0], np.sqrt(eta[0] / eta), rtol=0.05)


def test_steps_far_stronger_than_the_runs_own_do_not_mislead() -> None:
    # To first order such steps can seem to cost nothing; noise was read off the table there.
    budget = Budget(epsilon=3.0, delta=DELTA, sample_rate=2_048 / 60_000)
    w = np.linspace(1.0, 2e-3, 500) / (1.0 + np.arange(500) / 20.0)
    z = Optimal().alphas(np.sqrt(w), budget=budget)
    uniform = calibrate(np.ones(w.size), budget)
    assert float(w @ z**2) <= 0.8 * uniform**2 * float(w.sum())  # it was 0.96


def test_refusals() -> None:
    with pytest.raises(ValueError, match="budget must be given to Optimal"):
        Optimal().alphas([1.0])
    with pytest.raises(ValueError, match="sample_rate must be above delta = 0.1 for Optimal"):
        Optimal().alphas([1.0, 1.0], budget=Budget(1.0, 0.1, 0.1))
    with pytest.raises(ValueError, match="momentum must be below 1, got 1.0"):
        Optimal(momentum=1.0)
    with pytest.raises(ValueError, match="floor must be a positive, finite number, got 0"):
        Optimal(floor=0)
    with pytest.raises(ValueError, match="epsilon must be a positive"):
        Optimal().alphas([1.0, 1.0], budget=Budget(-1.0, 1e-5, 0.1))

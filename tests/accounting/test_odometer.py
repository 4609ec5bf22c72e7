"""The odometer against its formula, fixed times, and the worst time to stop."""

import math

import numpy as np
import pytest
from tests.accounting.references import renyi_budget

from dither import accounting
from dither.accounting import Odometer
from dither.accounting.gaussian import gaussian_epsilon
from dither.accounting.odometer import ODOMETER_ORDERS
from dither.types import FloatArray


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_the_odometer_is_above_every_fixed_time(sampling: str) -> None:
    random = np.random.default_rng(3)
    q, run = 0.02, [float(z) for z in random.choice([0.9, 1.3, 2.5], 200)]
    odometer = Odometer(1e-5, sampling=sampling)
    orders = accounting.ORDERS[accounting.ORDERS < 100.0]
    fixed_time = accounting.RenyiAccountant(orders=orders, sampling=sampling)
    assert odometer.epsilon() == 0.0 == odometer.loss_bound()
    readings = [0.0]
    for t, z in enumerate(run, start=1):
        odometer.charge(z, q)
        fixed_time.step(z, sample_rate=q)
        readings.append(odometer.epsilon())
        assert fixed_time.epsilon(1e-5) < odometer.epsilon() < odometer.loss_bound()
        if t in (1, 10, 50, 200):
            bound = accounting.epsilon(run[:t], sample_rate=q, delta=1e-5, sampling=sampling)
            assert bound.epsilon < odometer.epsilon()
    assert np.all(np.diff(readings) >= 0.0)
    assert odometer.epsilon() < 1.4 * fixed_time.epsilon(1e-5)


def test_the_odometer_is_the_formula() -> None:
    odometer = Odometer(1e-6)
    for z in (3.0, 1.5, 8.0):
        odometer.charge(z, 1.0)
    total = sum(1.0 / z**2 for z in (3.0, 1.5, 8.0))
    share = 1e-6 / len(ODOMETER_ORDERS)
    epsilon = min(a * total / 2 - renyi_budget(0.0, share, a) for a in ODOMETER_ORDERS)
    loss = min(a * total / 2 - math.log(share) / (a - 1) for a in ODOMETER_ORDERS)
    assert epsilon <= odometer.epsilon() == pytest.approx(float(epsilon), rel=1e-9)
    assert loss <= odometer.loss_bound() == pytest.approx(loss, rel=1e-9)


def delta_when_stopped(losses: FloatArray, epsilons: FloatArray, margin: float) -> float:
    """E[(1 − e^(ε_N − L_N))₊] if each run stops when its loss is ``margin`` above ε."""
    above = losses > epsilons + margin
    last = np.where(above.any(axis=1), above.argmax(axis=1), losses.shape[1] - 1)
    there = losses[np.arange(losses.shape[0]), last]
    return float(np.maximum(0.0, -np.expm1(epsilons[last] - there)).mean())


def test_stopping_at_the_worst_time() -> None:
    mu, delta, runs, steps = 0.2, 0.05, 10_000, 1_500
    random = np.random.default_rng(5)
    losses = np.cumsum(mu * random.standard_normal((runs, steps)) + 0.5 * mu * mu, axis=1)
    odometer = Odometer(delta)
    epsilons, bounds = np.empty(steps), np.empty(steps)
    for t in range(steps):
        odometer.charge(1.0 / mu, 1.0)
        epsilons[t], bounds[t] = odometer.epsilon(), odometer.loss_bound()
    times = np.arange(1, steps + 1)
    fixed_time = np.array([gaussian_epsilon(mu * math.sqrt(t), delta).upper for t in times])
    for margin in (0.0, 0.3, 0.6, 1.0, 2.0):
        assert delta_when_stopped(losses, epsilons, margin) < delta
        assert delta_when_stopped(losses, fixed_time, margin) > delta
    assert 1e-3 < np.mean((losses > bounds).any(axis=1)) < delta
    # What holds at one stopping time does not hold at all times together: hence two readings.
    assert np.mean((losses > epsilons).any(axis=1)) > delta


def test_settings_are_read_only_and_the_bound_describes_them() -> None:
    odometer = Odometer(1e-6)
    for name in ("delta", "orders", "sampling", "spent"):
        with pytest.raises(AttributeError):
            setattr(odometer, name, 1.0)
    odometer.charge(2.0, 0.1)
    assert (odometer.delta, odometer.sampling) == (1e-6, "poisson")
    assert odometer.orders == ODOMETER_ORDERS
    claim = odometer.bound()
    assert (claim.epsilon, claim.accountant) == (odometer.epsilon(), "odometer")
    assert claim.adjacency == "add-remove"
    assert claim.is_upper_bound

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.schedules import Constant, InverseSqrt
from dither.theory import improvement, noise_cost

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
    factors = [improvement(InverseSqrt(20).stepsizes(T)) for T in (10**5, 10**6, 10**7)]
    quarter = math.log(10.0) / 4.0
    # (Ση)² = 4T·(1 − O(√(20/T))), so the growth is off by no more than that times the factor.
    for T, low, high in zip((10**5, 10**6), factors[:-1], factors[1:], strict=True):
        assert high - low == pytest.approx(quarter, abs=high * 2.5 * math.sqrt(21 / T))


def test_refuses_unequal_lengths() -> None:
    with pytest.raises(ValueError, match="alphas must have one entry per step, 2 in all, got 1"):
        noise_cost([1.0], [1.0, 2.0])

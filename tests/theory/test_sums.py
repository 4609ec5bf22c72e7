import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.theory import logarithmic_sum_bound, power_sum_bounds

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

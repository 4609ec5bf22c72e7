import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.noise import Custom, GrowthBound, Matched, Power, Uniform

stepsizes = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=30)


@given(stepsizes)
def test_powers(values: list[float]) -> None:
    eta = np.array(values)
    np.testing.assert_array_equal(Uniform().alphas(eta), np.ones(eta.size))
    np.testing.assert_array_equal(Power(0.0).alphas(eta), np.ones(eta.size))
    np.testing.assert_allclose(Matched().alphas(eta) ** 2, 1.0 / eta, rtol=1e-15)
    np.testing.assert_allclose(Power(0.5).alphas(eta), Matched().alphas(eta), rtol=1e-15)
    np.testing.assert_allclose(Power(1.0).alphas(eta) * eta, np.ones(eta.size), rtol=1e-15)


def test_growth_bound_counts_steps_only() -> None:
    alpha = GrowthBound(b0_squared=20.0, growth=0.5).alphas([1.0, 9.0, 3.0])
    expected = [(20.0 + 0.5 * t) ** 0.25 for t in (1, 2, 3)]
    np.testing.assert_allclose(alpha, expected, rtol=1e-15)


def test_refuses_bad_parameters() -> None:
    with pytest.raises(ValueError, match="exponent must be a finite number, got nan"):
        Power(float("nan"))
    with pytest.raises(ValueError, match="growth must be a positive, finite number, got 0"):
        GrowthBound(growth=0)
    with pytest.raises(ValueError, match=r"b0_squared must be .* got -1"):
        GrowthBound(b0_squared=-1)
    with pytest.raises(ValueError, match=r"values\[0\] must be positive and finite, got 0.0"):
        Custom([0.0])
    with pytest.raises(ValueError, match="a list of at least one number"):
        Custom([])


def test_refuses_noise_that_overflows() -> None:
    with pytest.raises(ValueError, match=r"alphas\[0\] must be positive and finite, got inf"):
        Power(100.0).alphas([1e-10])

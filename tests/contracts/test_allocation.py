"""What every Allocation promises."""

import copy
import pickle

import numpy as np
import pytest
from tests.tracing import traced_lines

from dither.noise import Allocation, Budget, Custom, GrowthBound, Matched, Power, Uniform
from dither.schedules import InverseSqrt

ALLOCATIONS: list[tuple[Allocation, Allocation, Allocation]] = [
    (Uniform(), Uniform(), Matched()),
    (Matched(), Matched(), Uniform()),
    (Power(0.3), Power(0.3), Power(0.4)),
    (GrowthBound(), GrowthBound(20.0, 1e-4), GrowthBound(growth=1.0)),
]
NAMES = [repr(value) for value, _, _ in ALLOCATIONS]
each = pytest.mark.parametrize(("value", "equal", "other"), ALLOCATIONS, ids=NAMES)
BUDGET = Budget(epsilon=1.0, delta=1e-5, sample_rate=0.01)


@each
def test_gives_positive_finite_float64(
    value: Allocation, equal: Allocation, other: Allocation
) -> None:
    eta = InverseSqrt().stepsizes(100)
    alpha = value.alphas(eta)
    assert alpha.dtype == np.float64
    assert alpha.shape == eta.shape
    assert (alpha > 0).all()
    assert np.isfinite(alpha).all()
    np.testing.assert_array_equal(alpha, value.alphas(list(eta), budget=BUDGET))


@each
def test_is_a_value(value: Allocation, equal: Allocation, other: Allocation) -> None:
    assert isinstance(value, Allocation)
    assert value == equal
    assert hash(value) == hash(equal)
    assert value != other
    assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301 - our own bytes
    assert copy.deepcopy(value) == value


@each
def test_a_million_steps_take_no_more_python_than_ten(
    value: Allocation, equal: Allocation, other: Allocation
) -> None:
    long, short = InverseSqrt().stepsizes(10**6), InverseSqrt().stepsizes(10)
    value.alphas(short)
    assert traced_lines(lambda: value.alphas(long)) == traced_lines(lambda: value.alphas(short))


@each
@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_refuses_bad_step_sizes(
    value: Allocation, equal: Allocation, other: Allocation, bad: float
) -> None:
    with pytest.raises(ValueError, match=r"stepsizes\[1\] must be positive and finite, got"):
        value.alphas([0.1, bad, 0.1])


def test_custom_is_a_value_too() -> None:
    custom = Custom([1.0, 2.0])
    assert isinstance(custom, Allocation)
    assert custom == Custom(np.array([1, 2]))
    assert custom != Custom([1.0, 3.0])
    assert repr(custom) == "Custom([1, 2])"
    np.testing.assert_array_equal(custom.alphas([0.1, 0.2], budget=BUDGET), [1.0, 2.0])
    with pytest.raises(ValueError, match="values must have one entry per step, 3 in all, got 2"):
        custom.alphas([0.1, 0.2, 0.3])

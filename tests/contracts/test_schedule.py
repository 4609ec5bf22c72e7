"""What every Schedule promises."""

import copy
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from tests.tracing import traced_lines

from dither import schedules
from dither.schedules import (
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    PiecewiseConstant,
    Polynomial,
    Schedule,
    SqrtToZero,
    Step,
    Table,
    Warmup,
)

CLOSED_FORMS: list[tuple[Schedule, Schedule, Schedule]] = [
    (Constant(0.5), Constant(0.5), Constant(0.4)),
    (Linear(2.0, 0.1), Linear(2, 0.1), Linear(2.0, 0.2)),
    (Cosine(2.0, 0.1), Cosine(2, 0.1), Cosine(2.0, 0.2)),
    (Exponential(1.0, 0.999999), Exponential(1, 0.999999), Exponential(1.0, 0.99)),
    (Step(1.0, 0.5, 200_000), Step(1, 0.5, 200_000), Step(1.0, 0.5, 20)),
    (InverseSqrt(20), InverseSqrt(20.0, 1.0, 1.0), InverseSqrt(20, 2.0)),
    (Polynomial(1, 1, 0.7), Polynomial(1.0, 1.0, 0.7, 1.0), Polynomial(1, 1, 0.7, 2.0)),
    (SqrtToZero(), SqrtToZero(0.1, 1e-10), SqrtToZero(0.1, 1e-9)),
    (Warmup(Linear(1, 0.1), 7), Warmup(Linear(1.0, 0.1), 7), Warmup(Linear(1, 0.1), 8)),
    (
        PiecewiseConstant(Linear(1, 0.1), 7),
        PiecewiseConstant(Linear(1.0, 0.1), 7),
        PiecewiseConstant(Linear(1, 0.1), 8),
    ),
]
NAMES = [repr(value) for value, _, _ in CLOSED_FORMS]
each = pytest.mark.parametrize(("value", "equal", "other"), CLOSED_FORMS, ids=NAMES)


@each
@pytest.mark.parametrize("steps", [1, 2, 3, 1000])
def test_gives_positive_finite_float64(
    value: Schedule, equal: Schedule, other: Schedule, steps: int
) -> None:
    eta = value.stepsizes(steps)
    assert eta.dtype == np.float64
    assert eta.shape == (steps,)
    assert (eta > 0).all()
    assert np.isfinite(eta).all()


@each
def test_is_a_value(value: Schedule, equal: Schedule, other: Schedule) -> None:
    assert isinstance(value, Schedule)
    assert value == equal
    assert hash(value) == hash(equal)
    assert value != other
    assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301 - our own bytes
    assert copy.deepcopy(value) == value
    assert eval(repr(value), vars(schedules)) == value  # noqa: S307 - our own repr
    with pytest.raises(FrozenInstanceError):
        value.start = 1.0  # type: ignore[attr-defined]


@each
def test_a_call_leaves_no_trace(value: Schedule, equal: Schedule, other: Schedule) -> None:
    first = value.stepsizes(10)
    first[:] = 7.0
    assert (value.stepsizes(10) != 7.0).all()


@each
def test_a_million_steps_take_no_more_python_than_ten(
    value: Schedule, equal: Schedule, other: Schedule
) -> None:
    value.stepsizes(10)
    assert traced_lines(lambda: value.stepsizes(10**6)) == traced_lines(lambda: value.stepsizes(10))


@each
@pytest.mark.parametrize("steps", [0, -3, 2.5, float("nan"), float("inf"), "ten", None, True])
def test_refuses_bad_steps(
    value: Schedule, equal: Schedule, other: Schedule, steps: object
) -> None:
    with pytest.raises((ValueError, TypeError), match="steps must be an integer of at least 1"):
        value.stepsizes(steps)  # type: ignore[arg-type]


def test_table_is_a_value_too() -> None:
    table = Table([0.3, 0.2])
    assert table == Table(np.array([0.3, 0.2]))
    assert table != Table([0.3, 0.1])
    assert table != Constant(0.3)
    assert hash(table) == hash(Table([0.3, 0.2]))
    assert pickle.loads(pickle.dumps(table)) == table  # noqa: S301 - our own bytes
    assert copy.deepcopy(table) == table
    assert repr(table) == "Table([0.3, 0.2])"
    assert repr(Table(np.full(10, 0.5))) == "Table([0.5, 0.5, 0.5, 0.5, … 10 values])"
    with pytest.raises(AttributeError, match="values"):
        table.values = np.ones(2)  # type: ignore[misc] # what is tested
    with pytest.raises(ValueError, match="read-only"):
        table.values[0] = 1.0
    with pytest.raises(ValueError, match="WRITEABLE"):
        table.values.flags.writeable = True

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.schedules import (
    Constant,
    Cosine,
    Exponential,
    InverseSqrt,
    Linear,
    PiecewiseConstant,
    Polynomial,
    SqrtToZero,
    Step,
    Table,
    Warmup,
    parse,
)

sizes = st.floats(1e-6, 1e3)


@given(sizes, sizes, st.integers(2, 50))
def test_formulas(start: float, end: float, T: int) -> None:
    def check(schedule: object, formula: list[float]) -> None:
        eta = schedule.stepsizes(T)  # type: ignore[attr-defined]
        rounding = 4e-16 * max(start, end)
        np.testing.assert_allclose(eta, formula, rtol=1e-12, atol=rounding)

    t = range(T)
    check(Constant(start), [start] * T)
    check(Linear(start, end), [start + (end - start) * s / (T - 1) for s in t])
    check(
        Cosine(start, end),
        [end + (start - end) * (1 + math.cos(math.pi * s / (T - 1))) / 2 for s in t],
    )
    check(Exponential(start, 0.9), [start * 0.9**s for s in t])
    check(Step(start, 0.3, 7), [start * 0.3 ** (s // 7) for s in t])
    check(InverseSqrt(start, end, 2.0), [2.0 / math.sqrt(start + end * (s + 1)) for s in t])
    check(Polynomial(start, end, 0.7, 2.0), [2.0 / (start + end * (s + 1)) ** 0.7 for s in t])


@given(st.integers(1, 10**5))
def test_sqrt_to_zero_ends_exactly_where_it_should(T: int) -> None:
    eta = SqrtToZero(0.1, 1e-10).stepsizes(T)
    t = np.arange(1, T + 1)
    np.testing.assert_allclose(eta, 0.1 - (0.1 - 1e-10) * np.sqrt(t / T), rtol=0, atol=1e-16)
    assert eta[-1] == 1e-10
    assert (np.diff(eta) < 0).all()


@given(sizes, sizes, st.integers(2, 1000))
def test_linear_and_cosine_reach_their_ends_exactly(start: float, end: float, T: int) -> None:
    for schedule in (Linear(start, end), Cosine(start, end)):
        assert schedule.stepsizes(T)[0] == start
        assert schedule.stepsizes(T)[-1] == end
        assert schedule.stepsizes(1)[0] == start


def test_defaults_are_the_papers() -> None:
    assert InverseSqrt() == InverseSqrt(a=20.0, c=1.0, scale=1.0)
    assert InverseSqrt().stepsizes(1)[0] == 1.0 / math.sqrt(21.0)
    assert SqrtToZero() == SqrtToZero(start=0.1, end=1e-10)
    assert InverseSqrt(2.0, c=0.0).stepsizes(3).tolist() == [1.0 / math.sqrt(2.0)] * 3


def test_warmup_starts_above_zero_and_hands_over() -> None:
    eta = Warmup(Linear(1.0, 0.1), 10).stepsizes(20)
    np.testing.assert_allclose(eta[:10], np.arange(1, 11) / 10)
    np.testing.assert_array_equal(eta[10:], Linear(1.0, 0.1).stepsizes(10))
    np.testing.assert_allclose(Warmup(Constant(2.0), 10).stepsizes(5), np.arange(1, 6) / 5)
    np.testing.assert_allclose(Warmup(Constant(1.0), 3).stepsizes(3), [1 / 3, 2 / 3, 1.0])
    assert Warmup(SqrtToZero(), 10).stepsizes(10)[-1] == SqrtToZero().stepsizes(10)[0]
    with pytest.raises(TypeError, match="inner must be a schedule, got <class"):
        Warmup(Constant, 10)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="inner must be a schedule, got 0.1"):
        Warmup(0.1, 10)  # type: ignore[arg-type]


def test_table_has_its_own_length() -> None:
    assert Table([0.3, 0.1]).stepsizes(2).tolist() == [0.3, 0.1]
    for steps in (1, 3):
        with pytest.raises(ValueError, match=f"steps must be the table's length, 2, got {steps}"):
            Table([0.3, 0.1]).stepsizes(steps)


@pytest.mark.parametrize("bad", [0, -0.1, math.nan, math.inf])
def test_refuses_bad_parameters(bad: float) -> None:
    for make in (
        lambda: Constant(bad),
        lambda: Linear(1.0, bad),
        lambda: Cosine(bad, 1.0),
        lambda: Exponential(1.0, bad),
        lambda: Step(1.0, bad, 2),
        lambda: SqrtToZero(bad),
        lambda: InverseSqrt(scale=bad),
        lambda: Table([0.1, bad]),
    ):
        with pytest.raises(ValueError, match=f"must be .*positive.*finite.*, got {bad}"):
            make()


def test_refuses_the_rest() -> None:
    with pytest.raises(ValueError, match="every must be an integer of at least 1, got 1.5"):
        Step(1.0, 0.5, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="every must be an integer of at least 1, got 0"):
        Step(1.0, 0.5, 0)
    with pytest.raises(ValueError, match="steps must be at most 100,000,000, got 1000000000000"):
        Constant(1.0).stepsizes(10**12)
    with pytest.raises(TypeError, match="schedule must be a str, got None"):
        parse(None)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a and c must not both be 0"):
        InverseSqrt(0.0, 0.0)
    with pytest.raises(ValueError, match="c must be a finite number of at least 0, got -1"):
        Polynomial(1.0, -1, 0.5, 1.0)
    with pytest.raises(TypeError, match="stepsize must be a positive, finite number, got '1'"):
        Constant("1")  # type: ignore[arg-type]


def test_refuses_step_sizes_that_vanish_or_explode_on_the_way() -> None:
    with pytest.raises(ValueError, match=r"stepsizes\[\d+\] must be positive and finite, got 0.0"):
        Exponential(1.0, 0.5).stepsizes(2000)
    with pytest.raises(ValueError, match=r"stepsizes\[\d+\] must be positive and finite, got inf"):
        Exponential(1.0, 2.0).stepsizes(2000)


def test_parse() -> None:
    assert parse("constant:stepsize=0.1") == Constant(0.1)
    assert parse(" sqrt-to-zero ") == SqrtToZero()
    assert parse("step: start=1, factor=0.5, every=10") == Step(1.0, 0.5, 10)
    assert parse("polynomial:a=1,c=2,power=0.3") == Polynomial(1.0, 2.0, 0.3, 1.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("square", "schedule must be one of constant, cosine, .*, got 'square'"),
        ("linear:start=1", "schedule linear needs end, got 'linear:start=1'"),
        ("linear:start=1,stop=2", "a parameter of schedule linear must be one of end, start"),
        ("linear:start", "schedule must look like name:key=number"),
        ("linear:start=one,end=2", "schedule must look like name:key=number"),
        ("linear:start=1,start=2,end=2", "schedule must give start once"),
        ("linear:start=1,,end=2", "schedule must look like name:key=number"),
        ("linear:start=1,end=2,", "schedule must look like name:key=number"),
        ("linear:start=0,end=2", "start must be a positive, finite number, got 0"),
    ],
)
def test_parse_refuses(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(text)


def test_stairs_hold_each_level_as_long_as_the_others() -> None:
    eta = PiecewiseConstant(Linear(1.0, 0.1), 10).stepsizes(200)
    np.testing.assert_array_equal(eta, np.repeat(Linear(1.0, 0.1).stepsizes(10), 20))
    np.testing.assert_array_equal(
        PiecewiseConstant(Cosine(1.0, 0.1), 9).stepsizes(5), Cosine(1.0, 0.1).stepsizes(5)
    )
    _, lengths = np.unique(
        PiecewiseConstant(Linear(1.0, 0.1), 10).stepsizes(37), return_counts=True
    )
    assert {*lengths} == {3, 4}
    with pytest.raises(TypeError, match="inner must be a schedule"):
        PiecewiseConstant(0.1, 10)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="levels must be"):
        PiecewiseConstant(Constant(1.0), 0)

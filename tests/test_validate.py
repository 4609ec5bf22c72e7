from fractions import Fraction

import numpy as np
import pytest

from dither import validate


def test_numbers_of_every_kind_are_taken() -> None:
    for value in (2, 2.0, np.float32(2), np.int64(2), np.array(2.0), Fraction(2)):
        assert validate.positive(epsilon=value) == 2.0
        assert validate.count(steps=value) == 2
        assert type(validate.count(steps=value)) is int


@pytest.mark.parametrize("value", [True, np.True_, "2", None, [2.0], 1j, object()])
def test_other_things_are_a_type_error(value: object) -> None:
    for check in (validate.positive, validate.nonnegative, validate.probability, validate.count):
        with pytest.raises(TypeError, match="^x must be .*, got"):
            check(x=value)


@pytest.mark.parametrize(
    ("check", "bad"),
    [
        (validate.positive, [0, -1, float("nan"), float("inf"), 10**400, 1e-51, 1e51]),
        (validate.nonnegative, [-1e-300, float("nan"), float("inf"), 1e51]),
        (validate.finite, [float("nan"), float("-inf")]),
        (validate.probability, [0, 1, -0.1, 1.1, float("nan"), 1e-51]),
        (validate.rate, [0, -0.1, 1.0000001, float("nan")]),
        (validate.count, [0, -1, 0.5, 1.5, float("nan"), float("inf"), 10**51]),
        (validate.count, [Fraction(2 * 10**30 - 1, 10**30)]),
        (validate.step_count, [0, 10**8 + 1]),
    ],
)
def test_bad_values_are_one_line_with_the_name(check: object, bad: list[object]) -> None:
    for value in bad:
        with pytest.raises(ValueError, match="^x must be [^\n]*, got [^\n]*$"):
            check(x=value)  # type: ignore[operator]


def test_good_edges() -> None:
    assert validate.rate(q=1) == 1.0
    assert validate.nonnegative(gap=0) == 0.0
    assert validate.finite(exponent=-3) == -3.0
    assert validate.count(steps=1) == 1
    assert validate.count(dimension=2**60 + 1) == 2**60 + 1
    assert validate.step_count(steps=10**8) == 10**8
    assert validate.instance(str, name="a") == "a"
    assert validate.batch_within(batch_size=5, dataset_size=5) == (5, 5)
    assert validate.choice(("a", "b"), name="a") == "a"
    assert validate.steps_at_least(4.5, "a formula", 5) == 5


def test_messages() -> None:
    with pytest.raises(ValueError, match="^batch_size must be at most dataset_size = 5, got 6$"):
        validate.batch_within(batch_size=6, dataset_size=5)
    with pytest.raises(ValueError, match="^name must be one of a, b, got 'c'$"):
        validate.choice(("b", "a"), name="c")
    with pytest.raises(ValueError, match="^steps must be at least a formula = 4.5, got 4$"):
        validate.steps_at_least(4.5, "a formula", 4)


def test_vectors() -> None:
    given = np.array([1, 2])
    checked = validate.positives(x=given)
    assert checked.dtype == np.float64
    checked[0] = 9.0
    assert given[0] == 1
    assert validate.nonnegatives(x=[0.0, 1]).tolist() == [0.0, 1.0]
    assert validate.probabilities(x=(0.1, 0.2)).tolist() == [0.1, 0.2]


@pytest.mark.parametrize("value", [[], 1.0, [[1.0]], np.zeros((2, 2))])
def test_shapes_that_are_no_vector(value: object) -> None:
    with pytest.raises(ValueError, match="^x must be a list of at least one number, got shape"):
        validate.positives(x=value)


@pytest.mark.parametrize(
    "value",
    [
        "ab",
        ["a"],
        [None],
        [[1.0], [1.0, 2.0]],
        [1j],
        [True],
        {1: 2},
        np.ma.array([1.0, 2.0], mask=[False, True]),
    ],
)
def test_things_that_are_no_numbers(value: object) -> None:
    with pytest.raises(TypeError, match="^x must be a vector of numbers, got"):
        validate.positives(x=value)


def test_the_first_bad_entry_is_named() -> None:
    with pytest.raises(ValueError, match=r"^x\[2\] must be positive and finite, got -1.0$"):
        validate.positives(x=[1.0, 2.0, -1.0, 0.0])
    with pytest.raises(ValueError, match=r"^x\[0\] must be at least 0 and finite, got inf$"):
        validate.nonnegatives(x=[np.inf])
    with pytest.raises(ValueError, match=r"^x\[1\] must be strictly between 0 and 1, got 1.0$"):
        validate.probabilities(x=[0.5, 1.0])
    with pytest.raises(ValueError, match=r"^x\[0\] must be within 1e-50 … 1e50, got 1e-60$"):
        validate.positives(x=[1e-60])
    with pytest.raises(ValueError, match=r"^x\[0\] must be at most 1e50, got 1e\+60$"):
        validate.nonnegatives(x=[1e60])
    with pytest.raises(ValueError, match=r"^x\[0\] must be at least 1e-50, got 1e-60$"):
        validate.probabilities(x=[1e-60])
    with pytest.raises(TypeError, match=r"^x must be a str, got 3 \(int\)$"):
        validate.instance(str, x=3)
    with pytest.raises(ValueError, match="^x must have one entry per step, 2 in all, got 1$"):
        validate.same_length(2, x=np.ones(1))

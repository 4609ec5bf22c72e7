"""The rule behind the defaults."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dither.estimators import defaults

sizes = st.integers(2, 10**7)


@given(sizes, st.integers(1, 10**5), st.integers(1, 1000), st.floats(1e-3, 1e3))
def test_any_public_sizes_have_settings(n: int, d: int, k: int, epsilon: float) -> None:
    for task in ("classification", "regression"):
        found = defaults(dataset_size=n, features=d, outputs=k, epsilon=epsilon, task=task)
        assert 1 <= found.batch_size <= n
        assert found.steps > found.standardizing_steps >= 0
        assert found.clip_norm > 0.0
        eta = found.stepsizes.stepsizes(found.steps)
        assert math.isfinite(eta[0])
        assert eta[0] > eta[-1] > 0.0


def test_more_budget_and_more_records_go_further() -> None:
    def first(n: int, epsilon: float) -> float:
        found = defaults(dataset_size=n, features=20, epsilon=epsilon)
        return float(found.stepsizes.stepsizes(found.steps)[0])

    assert first(500, 1.0) > first(500, 0.5)
    assert first(5000, 0.5) > first(500, 0.5)


def test_what_is_given_stays() -> None:
    found = defaults(
        dataset_size=1000, features=20, epsilon=1.0, batch_size=50, epochs=2, clip_norm=3.0
    )
    assert (found.batch_size, found.steps, found.clip_norm) == (50, 40, 3.0)
    # The path C·Σ η_t does not depend on how many steps it takes, nor on the clip norm.
    other = defaults(dataset_size=1000, features=20, epsilon=1.0)
    paths = [each.clip_norm * each.stepsizes.stepsizes(each.steps).sum() for each in (found, other)]
    assert paths[0] == pytest.approx(paths[1])


def test_large_tables_are_sampled_and_small_ones_are_not() -> None:
    assert defaults(dataset_size=2000, features=64, outputs=10).batch_size == 2000
    large = defaults(dataset_size=10**6, features=784, outputs=10)
    assert large.batch_size * large.steps * 784 * 10 == pytest.approx(1e10, rel=1e-3)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dataset_size": 0}, "dataset_size must be"),
        ({"epsilon": 0.0}, "epsilon must be"),
        ({"delta": 1.0}, "delta must be"),
        ({"task": "sorting"}, "task must be one of"),
        ({"batch_size": 101}, "batch_size must be at most dataset_size = 100, got 101"),
        ({"steps": 3, "epochs": 1.0}, "only one of steps and epochs"),
    ],
)
def test_refusals(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        defaults(**{"dataset_size": 100, "features": 5, **wrong})

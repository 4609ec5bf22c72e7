"""What one record can change, what it costs, and that an attacker cannot tell more."""

from dataclasses import replace

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm

import dither
from dither.accounting.gaussian import gaussian_epsilon
from dither.audit.bounds import at_least, at_most
from dither.evaluation.evaluating import add_noise
from dither.evaluation.many_classes import ManyClasses
from dither.evaluation.numbers import Numbers
from dither.evaluation.two_classes import TwoClasses
from dither.planning import Plan
from dither.randomness import Source
from dither.release import margin

ANY = st.one_of(
    st.floats(0.0, 1.0),
    st.floats(),
    st.sampled_from([0.0, 1.0, -0.0, 0.5, np.nan, np.inf, -np.inf, 5e-324, 1.0 - 2.0**-53]),
)
TWO, MANY, NUMBERS = TwoClasses(20, 5.0), ManyClasses(3, 6, 4.0), Numbers(-2.0, 6.0, 3.0)


def change(sums: NDArray[np.float64], without: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(sums - without))


@given(st.lists(st.tuples(ANY, ANY, st.integers(-1, 1)), min_size=1, max_size=6), st.booleans())
def test_one_record_moves_two_classes_by_at_most_the_norm(
    records: list[tuple[float, float, int]], last: bool
) -> None:
    table = np.array(records)
    p, y = table[:, :2], table[:, 2].astype(np.int64)
    rest = slice(0, -1) if last else slice(1, None)
    found = TWO.sums(p, y)
    assert np.isfinite(found).all()
    assert change(found, TWO.sums(p[rest], y[rest])) <= TWO.norm * (1.0 + 1e-12)


@given(st.lists(st.tuples(ANY, ANY, ANY, st.integers(-1, 2)), min_size=1, max_size=6))
def test_one_record_moves_many_classes_by_at_most_the_norm(
    records: list[tuple[float, float, float, int]],
) -> None:
    table = np.array(records)
    p, y = table[:, :3], table[:, 3].astype(np.int64)
    found = MANY.sums(p, y)
    assert np.isfinite(found).all()
    assert change(found, MANY.sums(p[1:], y[1:])) <= MANY.norm * (1.0 + 1e-12)


@given(st.lists(st.tuples(ANY, st.floats(-9.0, 9.0) | ANY), min_size=1, max_size=6))
def test_one_record_moves_numbers_by_at_most_the_norm(records: list[tuple[float, float]]) -> None:
    predictions, y = np.array(records).T
    found = NUMBERS.sums(predictions, y)
    assert np.isfinite(found).all()
    assert change(found, NUMBERS.sums(predictions[1:], y[1:])) <= NUMBERS.norm * (1.0 + 1e-12)


def test_the_norms_are_reached() -> None:
    """A smaller norm would be wrong."""
    wrong = TWO.sums(np.array([[1.0, 0.0]]), np.array([1]))
    assert TWO.norm == 1.25
    assert np.linalg.norm(wrong) == pytest.approx(1.25, rel=1e-6)
    wrong = MANY.sums(np.array([[1.0, 0.0, 0.0]]), np.array([1]))
    assert np.linalg.norm(wrong) == pytest.approx(MANY.norm, rel=1e-6)
    far = NUMBERS.sums(np.array([100.0]), np.array([6.0]))
    assert np.linalg.norm(far) == pytest.approx(NUMBERS.norm, rel=1e-6)


def test_sums_do_not_depend_on_the_order() -> None:
    rng = np.random.default_rng(0)
    p, y = rng.random((2000, 2)), rng.integers(0, 2, 2000)
    order = rng.permutation(2000)
    assert np.array_equal(TWO.sums(p, y), TWO.sums(p[order], y[order]))


class Constant:
    classes_ = (0, 1)

    def predict_proba(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.full((len(X), 2), 0.5)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (5.0, 1e-3)])
def test_the_price_is_that_of_the_gaussian_mechanism(epsilon: float, delta: float) -> None:
    found = dither.evaluate(
        Constant(), np.zeros((50, 1)), np.zeros(50), epsilon=epsilon, delta=delta, random_state=0
    )
    claim = found.privacy
    assert 0.995 * epsilon <= claim.epsilon <= epsilon
    assert (claim.delta, claim.sampling, claim.is_upper_bound) == (delta, "full", True)
    with mpmath.workdps(40):
        mu = TWO.norm * (1.0 + margin(1)) / mpmath.mpf(found.noise)
        e = mpmath.mpf(claim.epsilon)
        exact = mpmath.ncdf(mu / 2 - e / mu) - mpmath.exp(e) * mpmath.ncdf(-mu / 2 - e / mu)
    assert float(exact) == pytest.approx(delta, rel=1e-6)


def audited(made: Plan, trials: int, record: NDArray[np.float64] | None = None) -> float:
    """Return a lower bound on ε, right with 99.9 %, of an attacker who knows all but one record.

    The record is given by what it adds to the sums; None adds as much as one can.

    The releases are normal, so that the rates of right and of wrong alarms bound the distance of
    the two means in standard deviations.
    """
    record = TWO.sums(np.array([[1.0, 0.0]]), np.array([1])) if record is None else record
    others = TWO.sums(np.full((30, 2), 0.5), np.arange(30) % 2)
    direction = record / np.linalg.norm(record)
    alarms = [0, 0]
    for trial in range(2 * trials):
        is_in = trial % 2
        released, *_ = add_noise(others + is_in * record, made, Source(seed=trial), None)
        alarms[is_in] += int((released - others) @ direction > 0.5 * np.linalg.norm(record))
    found = norm.ppf(at_least(alarms[1], trials, 0.9995)) - norm.ppf(
        at_most(alarms[0], trials, 0.9995)
    )
    return gaussian_epsilon(float(found), made.delta).lower


def test_an_audit_finds_no_more_than_the_claim_and_catches_too_little_noise() -> None:
    made = dither.plan(
        epsilon=6.0, delta=1e-3, dataset_size=31, batch_size=31, steps=1, clip_norm=TWO.norm,
        noise="uniform",
    )  # fmt: skip
    assert 0.7 * made.bound.epsilon < audited(made, 1000) <= made.bound.epsilon
    for wrong in (1.0, 0.5 * TWO.norm):  # the positions and losses forgotten; half of the noise
        assert audited(replace(made, clip_norm=wrong), 1000) > made.bound.epsilon

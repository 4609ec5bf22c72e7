"""Moment transforms against the integrals that define them, at 30 digits."""

import math
import warnings

import mpmath
import numpy as np
import pytest
from tests.accounting.references import moment_excess

from dither.accounting.ratio import Direction
from dither.accounting.transform import (
    distance_between,
    log_moments,
    rounding,
    transforms,
)

KINDS: tuple[Direction, ...] = ("poisson-remove", "poisson-add", "fixed")
each_kind = pytest.mark.parametrize("kind", KINDS)


def log_uniform(random: np.random.Generator, low: float, high: float) -> float:
    return float(math.exp(random.uniform(math.log(low), math.log(high))))


def random_step(seed: int, kind: Direction) -> tuple[float, float, float]:
    """(μ, q, θ), log-uniform over what the accountants meet."""
    random = np.random.default_rng([seed, KINDS.index(kind)])
    return (
        log_uniform(random, 1e-4, 5.0),
        log_uniform(random, 1e-5, 0.95),
        log_uniform(random, 0.05, 60.0),
    )


def true_log_moment(mu: float, q: float, theta: float, kind: Direction) -> mpmath.mpf:
    with mpmath.workdps(40):
        return mpmath.log1p(moment_excess(mu, q, theta, kind))


def check_rounded_up(claimed: float, truth: mpmath.mpf, mu: float, q: float, theta: float) -> None:
    """Never below the truth, and above it by no more than twice what rounding up adds."""
    slack = min(float(truth), 1.0) * float(rounding(np.array(mu), theta))
    slack += 2e-20 * (1.0 + (theta + 1.0) * q)
    # An ulp of the result itself can be more than what is added.
    ulp = 1e-16 * float(truth)
    assert -ulp <= float(mpmath.mpf(claimed) - truth) <= 2.0 * slack + ulp


def check_log_moment(mu: float, q: float, theta: float, kind: Direction) -> None:
    claimed = float(log_moments(np.array([mu]), q, theta, kind)[0])
    check_rounded_up(claimed, true_log_moment(mu, q, theta, kind), mu, q, theta)


@each_kind
@pytest.mark.parametrize("seed", range(12))
def test_log_moments(seed: int, kind: Direction) -> None:
    check_log_moment(*random_step(seed, kind), kind)


@pytest.mark.evidence
@each_kind
@pytest.mark.parametrize("seed", range(100, 400))
def test_log_moments_of_many_more_steps(seed: int, kind: Direction) -> None:
    check_log_moment(*random_step(seed, kind), kind)


@each_kind
@pytest.mark.parametrize(
    ("mu", "q", "theta"),
    [
        (1e-4, 1e-5, 0.05),
        (1e-4, 1e-5, 60.0),
        (1e-4, 0.95, 0.05),
        (1e-4, 0.95, 60.0),
        (5.0, 1e-5, 0.05),
        (5.0, 0.95, 0.05),
        (5.0, 0.95, 60.0),
        (5.0, 1e-5, 60.0),
    ],
)
def test_log_moments_at_the_corners(mu: float, q: float, theta: float, kind: Direction) -> None:
    """M − 1 is 2.6e-20 in the first corner and e^46,000 in the last."""
    check_log_moment(mu, q, theta, kind)


@each_kind
def test_log_moments_of_unequal_steps_share_their_nodes(kind: Direction) -> None:
    mus = np.geomspace(1e-4, 5.0, 131)
    together = log_moments(mus, 0.01, 7.3, kind)
    apart = [float(log_moments(mus[k : k + 1], 0.01, 7.3, kind)[0]) for k in range(mus.size)]
    np.testing.assert_allclose(together, apart, rtol=1e-11)


@each_kind
def test_the_reference_rejects_a_rate_that_is_a_billionth_off(kind: Direction) -> None:
    """So the checks above are as sharp as they say: M − 1 moves by twice as much as q."""
    mu, q, theta = 0.3, 0.01, 2.5
    wrong = float(log_moments(np.array([mu]), q * (1.0 + 1e-9), theta, kind)[0])
    truth = true_log_moment(mu, q, theta, kind)
    assert 1.5e-9 < float(mpmath.mpf(wrong) / truth - 1) < 2.5e-9
    with pytest.raises(AssertionError):
        check_rounded_up(wrong, truth, mu, q, theta)


@each_kind
def test_the_reference_agrees_with_itself(kind: Direction) -> None:
    """Two rules of 32 and 44 points per panel: what the reference's own error is."""
    for seed in range(3):
        mu, q, theta = random_step(seed, kind)
        one, other = (moment_excess(mu, q, theta, kind, points=n) for n in (32, 44))
        assert abs(one / other - 1) < 1e-20


def integer_moment(mu: float, q: float, order: int) -> mpmath.mpf:
    """E[w^a] = Σ C(a,k)·(1−q)^(a−k)·q^k·e^(μ²·k·(k−1)/2), at 60 digits."""
    with mpmath.workdps(60):
        m, p = mpmath.mpf(mu), mpmath.mpf(q)
        return mpmath.fsum(
            mpmath.binomial(order, k)
            * (1 - p) ** (order - k)
            * p**k
            * mpmath.exp(m * m * k * (k - 1) / 2)
            for k in range(order + 1)
        )


@pytest.mark.parametrize("seed", range(40))
def test_integer_orders_have_a_closed_form(seed: int) -> None:
    random = np.random.default_rng(seed)
    mu, q = log_uniform(random, 1e-4, 5.0), log_uniform(random, 1e-6, 0.99)
    order = int(random.integers(2, 200))
    with mpmath.workdps(60):
        truth = mpmath.log(integer_moment(mu, q, order))
    claimed = log_moments(np.array([mu]), q, order - 1.0, "poisson-remove")[0]
    check_rounded_up(claimed, truth, mu, q, order - 1.0)


@each_kind
def test_far_orders_are_bounded_by_the_full_batch(kind: Direction) -> None:
    """On both sides of where the exact moment is given up, and without end."""
    mu, q = 2.0, 0.1
    for theta in (1e3, 1e4, 1e6):
        claimed = float(log_moments(np.array([mu]), q, theta, kind)[0])
        least = float(log_moments(np.array([mu]), q, 400.0, kind)[0]) * theta / 400.0
        most = 0.5 * theta * (theta + 1.0) * mu * mu
        if kind == "poisson-add":
            most = -theta * math.log1p(-q)
        assert least <= claimed <= most + 2.0 * float(rounding(np.array(mu), theta))


@pytest.mark.parametrize(
    ("mu", "q", "order"),
    [(0.3298, 1e-3, 128), (0.2, 1e-4, 200), (0.9, 1e-6, 60), (0.05, 1e-3, 900)],
)
def test_moments_that_peak_where_the_gaussian_density_underflows(
    mu: float, q: float, order: int
) -> None:
    """The tilted law is centred at order·μ, beyond 38, while M itself is close to 1."""
    with mpmath.workdps(60):
        truth = mpmath.log(integer_moment(mu, q, order))
    assert order * mu > 38.0
    claimed = log_moments(np.array([mu]), q, order - 1.0, "poisson-remove")[0]
    check_rounded_up(claimed, truth, mu, q, order - 1.0)


def check_transform(seed: int, kind: Direction, *, most_turns: float) -> None:
    """M(θ + iω)/M(θ) − 1 against the reference, within the error that is claimed."""
    random = np.random.default_rng([seed, KINDS.index(kind), 5])
    mu, q = log_uniform(random, 1e-3, 4.0), log_uniform(random, 1e-5, 0.95)
    theta = min(log_uniform(random, 0.1, 20.0), most_turns / mu)
    omega = min(log_uniform(random, 0.5, 40.0) * theta, most_turns / mu)
    number = int(random.integers(5, 60))
    spacing = omega / (number - 1)
    mus = np.array([0.4 * mu, mu])
    found = transforms(mus, q, theta, spacing, number, kind)
    for row, m in enumerate(mus):
        base = moment_excess(m, q, theta, kind)
        slack = mpmath.mpf(found.log_moment[row]) - mpmath.log1p(base)
        assert -1e-16 * found.log_moment[row] <= slack <= found.slack[row]
        for n in (1, number - 1):
            s = complex(theta, n * spacing)
            true = (moment_excess(m, q, s, kind) - base) / (1 + base)
            error = float(abs(mpmath.mpc(found.excess[row, n]) - true))
            assert error <= found.error[row, n]
            # Where the loss is next to nothing, so is the error.
            assert found.error[row, n] <= 1e-9 * (abs(found.excess[row, n]) + 1e-6)
            wrong = complex(theta, n * spacing * (1.0 + 1e-7))
            far = (moment_excess(m, q, wrong, kind) - base) / (1 + base)
            assert float(abs(far - true)) > error or abs(1 + true) < 1e-12


@each_kind
@pytest.mark.parametrize("seed", range(4))
def test_transforms(seed: int, kind: Direction) -> None:
    check_transform(seed, kind, most_turns=30.0)


@pytest.mark.evidence
@each_kind
@pytest.mark.parametrize("seed", range(100, 160))
def test_transforms_of_many_more_steps(seed: int, kind: Direction) -> None:
    check_transform(seed, kind, most_turns=1e3)


def test_transforms_where_they_vanish() -> None:
    """By the reference |M(θ + iω)/M(θ)| is below 1e-28 here: all that is left is rounding."""
    spacing = 204.56207592543203 / 13
    mus = np.array([0.4, 1.0]) * 2.888086210198007
    found = transforms(
        mus, 9.515122288694685e-05, 5.1471770237956775, spacing, 14, "poisson-remove"
    )
    assert (np.abs(1.0 + found.excess[1, 1:]) <= found.error[1, 1:]).all()
    assert (found.error <= 1e-10).all()


@each_kind
def test_transforms_are_those_of_a_law(kind: Direction) -> None:
    """|M(θ + iω)| ≤ M(θ), and M(θ) is what `log_moments` says."""
    mus = np.geomspace(1e-3, 4.0, 16)
    found = transforms(mus, 0.02, 3.0, 0.7, 100, kind)
    np.testing.assert_array_equal(found.log_moment, log_moments(mus, 0.02, 3.0, kind))
    assert (np.abs(1.0 + found.excess) <= 1.0 + found.error).all()
    np.testing.assert_array_equal(found.excess[:, 0], 0.0)
    # Neighbouring frequencies differ by no more than the mean loss allows.
    change = np.abs(np.diff(found.excess, axis=1)).max(axis=1)
    assert (change <= 0.7 * found.mean_loss * (1.0 + 1e-12)).all()


def test_transforms_reject_the_wrong_direction() -> None:
    """Adding and removing differ by far more than the tolerance of the checks above."""
    mus = np.array([1.0])
    remove = transforms(mus, 0.1, 2.0, 1.0, 3, "poisson-remove").excess
    add = transforms(mus, 0.1, 2.0, 1.0, 3, "poisson-add").excess
    assert abs(remove[0, 2] - add[0, 2]) > 1e-2


@each_kind
def test_no_warning_where_weak_and_strong_steps_share_their_nodes(kind: Direction) -> None:
    """Weak steps do not reach the nodes that strong ones need: nothing may overflow on the way."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for theta in (1.0, 10.0, 60.0):
            for q in (1e-6, 1e-2, 0.5):
                assert (log_moments(np.geomspace(1e-4, 3.0, 40), q, theta, kind) > 0.0).all()


@pytest.mark.parametrize("seed", range(20))
def test_distances_do_not_cancel(seed: int) -> None:
    random = np.random.default_rng(seed)
    mu = log_uniform(random, 1e-6, 12.0)
    other = mu * (1.0 - log_uniform(random, 1e-6, 0.5))
    with mpmath.workdps(60):
        half = mpmath.mpf(1) / 2
        truth = 2 * (mpmath.ncdf(half * mpmath.mpf(mu)) - mpmath.ncdf(half * mpmath.mpf(other)))
    claimed = float(distance_between(np.array([mu]), np.array([other]))[0])
    # The rounding of erf or erfc is all there is: 4 units of the larger of the two ends.
    end = min(math.erf(mu / math.sqrt(8.0)), math.erfc(other / math.sqrt(8.0)))
    assert abs(claimed - float(truth)) <= 4.0 * 2.3e-16 * 1.05 * max(end, float(truth))

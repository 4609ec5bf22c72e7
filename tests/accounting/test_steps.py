"""Buckets: the convexity that they rest on, and that what they give brackets the exact product."""

import math

import mpmath
import numpy as np
import pytest
from tests.accounting.references import DIGITS, hockey_stick

from dither.accounting.buckets import Buckets
from dither.accounting.ratio import Direction
from dither.accounting.steps import Steps, reduce_steps
from dither.accounting.transform import log_moments
from dither.types import FloatArray

KINDS: tuple[Direction, ...] = ("poisson-remove", "poisson-add", "fixed")
each_kind = pytest.mark.parametrize("kind", KINDS)


def bend(at: list[mpmath.mpf], values: list[mpmath.mpf]) -> mpmath.mpf:
    """By how much the slope grows over three points: not negative where a function is convex."""
    first = (values[1] - values[0]) / (at[1] - at[0])
    return (values[2] - values[1]) / (at[2] - at[1]) - first


def distance(mu: mpmath.mpf) -> mpmath.mpf:
    return 2 * mpmath.ncdf(mu / 2) - 1


def check_convexity(seed: int, kind: Direction) -> None:
    random = np.random.default_rng([seed, KINDS.index(kind)])
    with mpmath.workdps(3 * DIGITS):
        for _ in range(40):
            low, high = np.sort(np.exp(random.uniform(math.log(1e-3), math.log(6.0), 2)))
            mus = [mpmath.mpf(x) for x in (low, random.uniform(low, high), high)]
            q = mpmath.mpf(float(np.exp(random.uniform(math.log(1e-4), 0.0))))
            # Losses on the scale where one of the three divergences is neither 0 nor trivial.
            t = random.normal() * random.choice(mus) * 2
            level = 1 + q * mpmath.expm1(abs(t))
            alpha = level if t > 0 else 1 / level
            values = [hockey_stick(mu, q, alpha, kind) for mu in mus]
            scale = max(abs(v) for v in values) / (distance(mus[1]) - distance(mus[0]))
            assert bend([distance(mu) for mu in mus], values) >= -scale * mpmath.mpf(10) ** -60


@each_kind
@pytest.mark.parametrize("seed", range(3))
def test_divergences_are_convex_in_the_distance(seed: int, kind: Direction) -> None:
    check_convexity(seed, kind)


@pytest.mark.evidence
@each_kind
@pytest.mark.parametrize("seed", range(100, 200))
def test_divergences_are_convex_in_the_distance_everywhere(seed: int, kind: Direction) -> None:
    check_convexity(seed, kind)


@each_kind
def test_the_check_rejects_other_scales(kind: Direction) -> None:
    """In μ itself, H_1 is concave; and in D² convexity fails where the loss is rare."""
    with mpmath.workdps(DIGITS):
        q, one = mpmath.mpf("0.1"), mpmath.mpf(1)
        mus = [mpmath.mpf(x) for x in ("1", "2", "3")]
        values = [hockey_stick(mu, q, one, kind) for mu in mus]
        assert bend(mus, values) < -1e-3
        assert bend([distance(mu) ** 2 for mu in mus], values) < -1e-3
        assert bend([distance(mu) for mu in mus], values) >= -1e-25


@pytest.mark.parametrize("kind", ["poisson-remove", "poisson-add"])
def test_the_divergence_is_its_definition(kind: Direction) -> None:
    """∫ (p − α·q)₊ of the laws themselves; for ``fixed`` there is the theorem alone."""
    with mpmath.workdps(DIGITS):
        mu, q = mpmath.mpf("1.3"), mpmath.mpf("0.2")
        for alpha in (mpmath.mpf("0.85"), mpmath.mpf(1), mpmath.mpf("1.1")):

            def excess(x: mpmath.mpf, alpha: mpmath.mpf = alpha) -> mpmath.mpf:
                null = mpmath.npdf(x)
                mixed = (1 - q) * null + q * mpmath.npdf(x - mu)
                p, other = (mixed, null) if kind == "poisson-remove" else (null, mixed)
                return max(0, p - alpha * other)

            level = alpha if kind == "poisson-remove" else 1 / alpha
            kink = mpmath.log((level - 1 + q) / q) / mu + mu / 2
            truth = mpmath.quad(excess, [-15, -5, kink, kink + 1, 5, 15])
            assert abs(hockey_stick(mu, q, alpha, kind) - truth) < 1e-20


def spread_mus(seed: int, number: int) -> FloatArray:
    """Steps of one of four shapes, from narrow to six decades wide, some in clusters."""
    random = np.random.default_rng(seed)
    low = math.log(10.0 ** random.uniform(-3, -0.5))
    match seed % 4:
        case 0:
            return np.asarray(np.exp(low + random.uniform(0.0, 0.5, number)))
        case 1:
            return np.asarray(np.exp(random.uniform(math.log(1e-6), math.log(2.0), number)))
        case 2:
            few, many = max(3, number // 100), number - max(3, number // 100)
            weak = np.exp(low - 3.0 + 0.1 * random.uniform(0.0, 1.0, many))
            return np.concatenate([np.exp(random.uniform(-0.5, 1.0, few)), weak])
        case _:
            return np.asarray(math.exp(low) * (1.0 + np.arange(number)) ** -0.4)


def buckets_of(steps: Steps) -> Buckets:
    assert steps.buckets is not None
    return steps.buckets


@pytest.mark.parametrize("number", [700, 60_000])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("width", [0.025, 0.0015])
def test_the_extrapolated_law_is_a_law(seed: int, number: int, width: float) -> None:
    """(1+λ)·step_j − λ·step_{j−1} has no negative density: λ is never too large for the edges."""
    buckets = buckets_of(reduce_steps(spread_mus(seed, number), width))
    used = np.flatnonzero(buckets.counts)
    a, b = buckets.edges[used - 1], buckets.edges[used]
    densest = b / a * np.exp((b * b - a * a) / 8.0)
    # λ_t itself is not kept; the 6th mean of at most c numbers is at least the largest over c^(1/6)
    # and the bucket's far end bounds it as well.
    far = np.array([mpmath_ratio(*buckets.edges[j - 1 : j + 2]) for j in used])
    most = np.minimum(np.minimum(far, 1.0), buckets.powers_down[5, used] ** (1.0 / 6.0))
    assert (densest <= (1.0 + 1.0 / np.maximum(most, 1e-12)) * (1.0 + 1e-9)).all()


def mpmath_ratio(below: float, here: float, above: float) -> float:
    """(D_{j+1} − D_j)/(D_j − D_{j−1}), where nothing cancels."""
    with mpmath.workdps(DIGITS):
        down, mid, up = (distance(mpmath.mpf(x)) for x in (below, here, above))
        return float((up - mid) / (mid - down))


def extrapolated_density(
    lam: float, weaker: float, stronger: float, loss: FloatArray
) -> FloatArray:
    """Density of (1+λ)·law(stronger) − λ·law(weaker), of y = μx − μ²/2 under N(0,1)."""

    def density(mu: float) -> FloatArray:
        return np.exp(-0.5 * (loss / mu + 0.5 * mu) ** 2) / mu

    return np.asarray((1.0 + lam) * density(stronger) - lam * density(weaker))


@pytest.mark.parametrize("stronger", [0.01, 0.3, 1.0, 3.0])
def test_the_condition_on_the_extrapolation_is_the_right_one(stronger: float) -> None:
    loss = np.linspace(-30.0, 30.0, 6001) * stronger
    weaker = 0.8 * stronger
    densest = stronger / weaker * math.exp((stronger**2 - weaker**2) / 8.0)
    allowed = 1.0 / (densest - 1.0)
    assert (extrapolated_density(allowed, weaker, stronger, loss) >= -1e-12).all()
    assert (extrapolated_density(1.02 * allowed, weaker, stronger, loss) < -1e-5).any()


@pytest.mark.parametrize("number", [10, 300, 700, 60_000])
@pytest.mark.parametrize("seed", range(4))
def test_no_step_is_lost(seed: int, number: int) -> None:
    for width in (0.025, 0.0005):
        assert reduce_steps(spread_mus(seed, number), width).number == number


def test_every_step_may_be_strong() -> None:
    """300 distinct steps, of which each is more than 0.2 % of the whole."""
    mus = np.linspace(0.5, 0.55, 300)
    steps = reduce_steps(mus, 0.01)
    assert steps.number == 300
    exact = float(log_moments(mus, 0.01, 3.0, "fixed").sum())
    assert exact * (1.0 - 1e-12) <= steps.log_moment(0.01, 3.0, "fixed") <= exact * (1.0 + 1e-3)


def rate_and_order(mus: FloatArray, kind: Direction, seed: int) -> tuple[float, float, float]:
    """q, θ and log M(θ), where θ is such that a run of that cost would be decided there.

    Chernoff's bound on ε is (log M(θ) + log(1/δ))/θ, and its best θ has log M(θ) of the size of
    log(1/δ): orders at which log M is above 40 do not matter to anyone.
    """
    random = np.random.default_rng([seed, 1])
    q, theta = 10.0 ** random.uniform(-4, -0.1), 10.0 ** random.uniform(-0.7, 1.3)
    while True:
        exact = math.fsum(log_moments(mus, q, theta, kind))
        if exact < 40.0:
            return q, theta, exact
        theta *= 0.5


def slack_of(
    mus: FloatArray, q: float, theta: float, kind: Direction, width: float, *, binned: bool = False
) -> float:
    """How far a bucket's chord may be above its curve, relatively, on average over the steps.

    In a bucket of relative width h, a cost that grows like D^k there is h²/6·k·(k−1)/2 below its
    chord on average. Weaker steps have wider buckets, h²/u for the share u of the cost that they
    and all that are weaker have, up to 1/4: the average of that is h²·(1 + log(1/(4·h²))). Three
    times that is allowed; and k bins, if the steps are rounded up to bins first.
    """
    here, there = (log_moments(mus * f, q, theta, kind) for f in (1.0, 1.001))
    k = np.maximum(2.0, np.log(there / here) / math.log(1.001))
    bend, grow = (float(x @ here / here.sum()) for x in (k * (k - 1.0), k))
    bins = grow * math.log(mus.max() / mus.min()) / 2**16 if binned else 0.0
    return width**2 / 4.0 * (1.0 + math.log(0.25 / width**2)) * bend + bins


def check_log_moment(seed: int, number: int, kind: Direction, *, times: int = 1) -> None:
    mus = spread_mus(seed, number)
    q, theta, exact = rate_and_order(mus, kind, seed)
    for width in (0.025, 0.005):
        claimed = reduce_steps(np.tile(mus, times), width).log_moment(q, theta, kind) / times
        slack = slack_of(mus, q, theta, kind, width, binned=mus.size * times > 50_000)
        # The widths are chosen by the cost of removing a record; that of adding one is spread more
        # evenly, so that more of it lies in wide buckets.
        slack *= 4.0 if kind == "poisson-add" else 1.0
        assert exact * (1.0 - 1e-12) <= claimed <= exact * (1.0 + slack)


@each_kind
@pytest.mark.parametrize("seed", range(8))
def test_log_moments_of_buckets_are_above_and_close(seed: int, kind: Direction) -> None:
    check_log_moment(seed, 600, kind)


@pytest.mark.parametrize("seed", range(4))
def test_log_moments_of_bins_are_above_and_close(seed: int) -> None:
    check_log_moment(seed, 1_000, KINDS[seed % 3], times=51)


@pytest.mark.evidence
@each_kind
@pytest.mark.parametrize("seed", range(100, 200))
def test_log_moments_of_many_more_buckets(seed: int, kind: Direction) -> None:
    check_log_moment(seed, 2_000, kind, times=26 if seed % 10 == 0 else 1)


def check_bracket(seed: int, kind: Direction) -> None:
    """600 distinct steps: M of what dominates ≥ the exact product ≥ M of what is dominated."""
    mus = spread_mus(seed, 600)
    q, theta, log_moment = rate_and_order(mus, kind, seed)
    steps = reduce_steps(mus, 0.025)
    assert steps.buckets is not None
    up, down = steps.sample(q, theta, 0.3 * theta, 16, kind)
    exact_steps = Steps(mus, np.ones(mus.size))
    exact, _ = exact_steps.sample(q, theta, 0.3 * theta, 16, kind)
    slack = 1e-12 * (1.0 + abs(log_moment)) * 10.0
    assert exact.log_moment == pytest.approx(log_moment, rel=1e-12, abs=slack)
    assert down.log_moment - down.error[0] - slack <= log_moment
    assert log_moment <= up.log_moment + slack
    # Below, the error is (u + u²)·h² for u in (0, 1) where above it is (u − u²)·h²: 5 times more.
    wide = 6.0 * slack_of(mus, q, theta, kind, 0.025) * log_moment
    assert up.log_moment - down.log_moment <= wide + slack + up.error[0]
    # As far as the series converges, its transforms are close to the exact ones too.
    finite = np.isfinite(up.error) & np.isfinite(down.error)
    assert finite[0]
    for one in (up, down):
        far = np.abs(np.exp(one.log_ratio) - np.exp(exact.log_ratio))[finite]
        assert (far <= (wide + slack) * (1.0 + np.arange(16)[finite]) ** 2).all()


@each_kind
@pytest.mark.parametrize("seed", range(8))
def test_samples_bracket_the_exact_product(seed: int, kind: Direction) -> None:
    check_bracket(seed, kind)


@pytest.mark.evidence
@each_kind
@pytest.mark.parametrize("seed", range(100, 200))
def test_samples_bracket_many_more_products(seed: int, kind: Direction) -> None:
    check_bracket(seed, kind)


def test_the_bracket_rejects_buckets_that_are_swapped() -> None:
    """The lower law in the place of the upper one is seen: the margins are not slack."""
    mus = np.linspace(0.1, 0.2, 600)
    up, down = reduce_steps(mus, 0.025).sample(0.05, 3.0, 1.0, 4, "poisson-remove")
    exact = math.fsum(log_moments(mus, 0.05, 3.0, "poisson-remove"))
    assert down.log_moment < exact * (1.0 - 1e-6) < exact * (1.0 + 1e-6) < up.log_moment


def test_equal_steps_are_one_group() -> None:
    steps = reduce_steps(np.full(1000, 0.3), 0.01)
    assert (steps.mus.tolist(), steps.counts.tolist(), steps.buckets) == ([0.3], [1000.0], None)


def test_one_strong_step_among_many_equal_ones() -> None:
    """Too many to sort, and nothing to bucket."""
    steps = reduce_steps(np.array([1.0] + [0.01] * 60_000), 0.025)
    assert steps.buckets is None
    assert (steps.mus.tolist(), steps.counts.tolist()) == ([0.01, 1.0], [60_000.0, 1.0])


@pytest.mark.parametrize("kind", ["poisson-remove", "fixed"])
def test_the_strongest_steps_can_be_bucketed(kind: Direction) -> None:
    """μ = 50 is the largest that is accounted: its tails do not underflow yet."""
    mus = np.linspace(40.0, 50.0, 600)
    steps = reduce_steps(mus, 0.025)
    assert steps.buckets is not None
    assert np.isfinite(steps.buckets.powers_up).all()
    exact = math.fsum(log_moments(mus, 0.01, 2.0, kind))
    assert exact * (1.0 - 1e-12) <= steps.log_moment(0.01, 2.0, kind) <= exact * 1.02

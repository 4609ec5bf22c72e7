"""Groups of records against definitions by quadrature, closed forms and dp-accounting."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as peers
from scipy import optimize, special, stats
from tests.accounting.references import integral

from dither.accounting import pld
from dither.accounting.gaussian import Bracket, gaussian_epsilon
from dither.accounting.group import chained_epsilon, group_epsilon
from dither.accounting.ratio import Direction, Group, log_binomial, ratio
from dither.accounting.steps import reduce_steps
from dither.accounting.transform import log_moments, transforms
from dither.types import FloatArray

DIRECTIONS: tuple[Direction, ...] = ("poisson-remove", "poisson-add")
each_direction = pytest.mark.parametrize("direction", DIRECTIONS)


def weights(size: int, q: float) -> FloatArray:
    return np.asarray(stats.binom.pmf(np.arange(size + 1), size, q))


def mixture_delta(mu: float, q: float, size: int, epsilon: float, direction: Direction) -> float:
    """H of Σ_j B_j·N(jμ, 1) and N(0, 1) by Neyman and Pearson, the threshold by root finding."""
    j, b = np.arange(size + 1), weights(size, q)
    sign = 1.0 if direction == "poisson-remove" else -1.0

    def log_w(x: float) -> float:
        return float(special.logsumexp(j * mu * x - 0.5 * (j * mu) ** 2, b=b))

    if not log_w(-200.0) < sign * epsilon < log_w(200.0):
        return 0.0
    c = optimize.brentq(lambda x: log_w(x) - sign * epsilon, -200.0, 200.0, xtol=1e-14)
    if sign > 0.0:
        return float(b @ special.ndtr(j * mu - c) - math.exp(epsilon) * special.ndtr(-c))
    return float(special.ndtr(c) - math.exp(epsilon) * (b @ special.ndtr(c - j * mu)))


def mixture_epsilon(mu: float, q: float, size: int, delta: float) -> float:
    """ε(δ) of one step, the larger of both directions."""

    def excess(epsilon: float) -> float:
        return max(mixture_delta(mu, q, size, epsilon, each) for each in DIRECTIONS) - delta

    return float(optimize.brentq(excess, 0.0, 0.5 * (size * mu) ** 2 + 10.0 * size * mu + 10.0))


def moment_excess(mu: float, q: float, size: int, s: complex, direction: Direction) -> Any:
    """M(s) − 1 at 40 digits: ∫ φ·(w^κ − 1 − κ·(w − 1)), the mean of w being 1."""
    with mpmath.workdps(40):
        m, p = mpmath.mpf(mu), mpmath.mpf(q)
        at = mpmath.mpc(s) if complex(s).imag else mpmath.mpf(complex(s).real)
        kappa = at + 1 if direction == "poisson-remove" else -at
        b = [mpmath.binomial(size, j) * p**j * (1 - p) ** (size - j) for j in range(size + 1)]

        def integrand(x: Any) -> Any:
            w = mpmath.fsum(b[j] * mpmath.exp(j * m * (x - j * m / 2)) for j in range(size + 1))
            return mpmath.npdf(x) * (w**kappa - 1 - kappa * (w - 1))

        reach = 14.0 + max(0.0, float(mpmath.re(kappa)) * size * mu)
        width = min(2.0, 1.2 / mu, 25.0 / float(abs(kappa) * size * m))
        return integral(integrand, -14.0, reach, width)


@each_direction
@pytest.mark.parametrize(
    ("mu", "q", "size", "theta"),
    [
        (0.5, 0.1, 2, 2.0),
        (0.3, 0.01, 5, 8.0),
        (1.5, 0.3, 3, 1.3),
        (0.007, 0.0008, 10, 15.5),
        (0.1, 0.9, 10, 3.0),
        (2.0, 0.001, 4, 0.4),
    ],
)
def test_transforms(mu: float, q: float, size: int, theta: float, direction: Direction) -> None:
    """At the first μ and at one that shares its nodes, within the error that is claimed."""
    mus, omega, kind = np.array([0.4 * mu, mu]), 2.0 * theta, Group(direction, size)
    found = transforms(mus, q, theta, omega, 2, kind)
    for row, m in enumerate(mus):
        base = moment_excess(m, q, size, theta, direction)
        slack = float(mpmath.mpf(found.log_moment[row]) - mpmath.log1p(base))
        assert -1e-16 * found.log_moment[row] <= slack <= found.slack[row]
        true = (moment_excess(m, q, size, complex(theta, omega), direction) - base) / (1 + base)
        assert abs(mpmath.mpc(found.excess[row, 1]) - true) <= found.error[row, 1]
        assert found.error[row, 1] <= 1e-9 * (abs(found.excess[row, 1]) + 1e-6)


def test_the_reference_rejects_a_rate_that_is_a_billionth_off() -> None:
    mu, q, size, theta = 0.3, 0.01, 5, 2.5
    wrong = log_moments(np.array([mu]), q * (1.0 - 1e-9), theta, Group("poisson-remove", size))[0]
    assert wrong < mpmath.log1p(moment_excess(mu, q, size, theta, "poisson-remove"))


def test_a_group_of_one_is_a_record() -> None:
    mus = np.geomspace(1e-3, 3.0, 20)
    for direction in DIRECTIONS:
        alone, group = (
            transforms(mus, 0.02, 3.0, 0.7, 50, kind) for kind in (direction, Group(direction, 1))
        )
        np.testing.assert_array_equal(group.log_moment, alone.log_moment)
        np.testing.assert_array_equal(group.excess, alone.excess)


@pytest.mark.parametrize("q", [1e-12, 0.01, 0.5, 0.999999])
@pytest.mark.parametrize("size", [2, 30, 1000])
def test_binomial_weights(size: int, q: float) -> None:
    found = log_binomial(size, q)
    with mpmath.workdps(60):
        p = mpmath.mpf(q)
        for j in {0, 1, size // 2, size - 1, size}:
            true = mpmath.log(mpmath.binomial(size, j) * p**j * (1 - p) ** (size - j))
            assert float(abs(found[j] - true)) <= 3e-16 * max(1.0, float(abs(true)))


def test_the_likelihood_ratio_near_1_and_far_from_it() -> None:
    for mu, q, size in ((1e-4, 1e-6, 3), (0.5, 0.2, 10), (3.0, 0.01, 5), (1.0, 0.999, 4)):
        x = np.linspace(-12.0, 60.0, 73)
        found = ratio(np.array(mu), x, q, size)
        with mpmath.workdps(60):
            p, m = mpmath.mpf(q), mpmath.mpf(mu)
            b = [mpmath.binomial(size, j) * p**j * (1 - p) ** (size - j) for j in range(size + 1)]
            for at, log, excess in zip(x, found.log, found.excess, strict=True):
                w = mpmath.fsum(
                    b[j] * mpmath.exp(j * m * (mpmath.mpf(at) - j * m / 2)) for j in range(size + 1)
                )
                scale = size * mu * (abs(at) + size * mu) * min(1.0, float(abs(w - 1)) + 1e-300)
                allowed = 1e-15 * (scale + size * mu * abs(at) * size * q)
                assert abs(log - mpmath.log(w)) <= allowed + 1e-15 * abs(log) + 1e-25
                if abs(log) < 500.0:
                    assert abs(excess - (w - 1)) <= 2.0 * (allowed + 1e-15) * max(w, abs(w - 1))


# One step.

STEPS = [(1.0, 0.01, 2), (1.0, 0.01, 10), (0.5, 0.3, 3), (2.0, 0.05, 5), (0.2, 0.9, 20)]


@pytest.mark.parametrize(("mu", "q", "size"), STEPS)
def test_one_step(mu: float, q: float, size: int) -> None:
    true = mixture_epsilon(mu, q, size, 1e-5)
    z = np.array([1.0 / mu])
    found = group_epsilon(z, sample_rate=q, delta=1e-5, sampling="poisson", size=size)
    assert found.lower is not None
    assert found.lower <= true <= found.epsilon
    assert found.lower >= found.epsilon * (1.0 - max(0.005, 0.001 * size))


@pytest.mark.parametrize(("mu", "q", "size"), [(1.0, 0.01, 2), (0.5, 0.3, 3), (2.0, 0.05, 5)])
def test_sums_in_any_directions_lose_less(mu: float, q: float, size: int) -> None:
    """Gradients in the plane, of norm up to 1, by integration over a fine grid."""
    found = group_epsilon(
        np.array([1.0 / mu]), sample_rate=q, delta=1e-3, sampling="poisson", size=size
    )
    drawn = (np.arange(2**size)[:, None] >> np.arange(size)) & 1
    chances = np.prod(np.where(drawn == 1, q, 1.0 - q), axis=1)
    axis = np.linspace(-8.0, 8.0 + size * mu, 500)
    x, y = np.meshgrid(axis, axis)
    cell = (axis[1] - axis[0]) ** 2 / (2.0 * math.pi)
    none = np.exp(-0.5 * (x * x + y * y)) * cell

    def loses(turn: FloatArray, norm: FloatArray) -> float:
        some = np.zeros_like(x)
        gradients = np.stack([norm * np.cos(turn), norm * np.sin(turn)], axis=1)
        for chance, (a, b) in zip(chances, mu * drawn @ gradients, strict=True):
            some += chance * np.exp(-0.5 * ((x - a) ** 2 + (y - b) ** 2)) * cell
        factor = math.exp(found.epsilon)
        pairs = ((some, none), (none, some))
        return max(float(np.maximum(p - factor * other, 0.0).sum()) for p, other in pairs)

    rng = np.random.default_rng(size)
    for _ in range(4):
        assert loses(rng.uniform(0.0, 6.3, size), rng.uniform(0.3, 1.0, size)) < 0.99e-3
        assert loses(rng.uniform(0.0, 6.3, size), np.ones(size)) < 0.99e-3
    # Aligned gradients lose what is claimed.
    assert 0.97e-3 < loses(np.zeros(size), np.ones(size)) <= 1e-3


# Several steps.


def peer_epsilon(z: FloatArray, counts: list[int], q: float, size: int, delta: float) -> float:
    whole: Any = None
    for noise, count in zip(z, counts, strict=True):
        step = peers.from_mixture_gaussian_mechanism(
            float(noise),
            [*range(size + 1)],
            weights(size, q).tolist(),
            value_discretization_interval=2e-3,
            use_connect_dots=True,
        ).self_compose(count)
        whole = step if whole is None else whole.compose(step)
    return float(whole.get_epsilon_for_delta(delta))


CASES = [
    ([1.0, 1.5, 2.0], [10, 10, 10], 0.05, 3, 1e-5),
    ([1.0, 1.5, 2.0], [10, 10, 10], 0.01, 5, 1e-5),
    ([2.0, 3.0], [10, 10], 0.5, 2, 1e-6),
    ([4.0, 6.0], [20, 10], 0.1, 10, 1e-6),
]


def check_peer(found: Bracket, peer: float) -> None:
    """The peer, rounded up by up to 0.1 percent, lies between the bounds."""
    assert found.lower <= peer
    assert found.upper >= peer * 0.999


@pytest.mark.parametrize(("noise", "counts", "q", "size", "delta"), CASES)
def test_dp_accounting(
    noise: list[float], counts: list[int], q: float, size: int, delta: float
) -> None:
    z = np.repeat(noise, counts)
    peer = peer_epsilon(np.array(noise), counts, q, size, delta)
    found = pld.bracket_epsilon(
        z, sample_rate=q, delta=delta, sampling="poisson", tolerance=0.003, size=size
    )
    check_peer(found, peer)
    assert found.upper <= peer * 1.003
    one = pld.bracket_epsilon(
        z, sample_rate=q, delta=delta, sampling="poisson", tolerance=0.003
    ).upper
    # Neither k·ε nor one record that is drawn with probability k·q may stand for the group.
    often = pld.bracket_epsilon(
        z, sample_rate=min(size * q, 0.999), delta=delta, sampling="poisson", tolerance=0.003
    ).upper
    for wrong in (size * one, often):
        with pytest.raises(AssertionError):
            check_peer(Bracket(wrong, 0.0), peer)


@each_direction
@pytest.mark.parametrize("size", [2, 5, 10])
def test_moments_of_buckets(size: int, direction: Direction) -> None:
    z = np.random.default_rng(size).uniform(1.0, 3.0, 600)
    steps = reduce_steps(1.0 / z, 0.01, size)
    assert steps.buckets is not None
    kind = Group(direction, size)
    for theta in (0.5 / size, 2.0 / size, 8.0 / size):
        exact = math.fsum(log_moments(1.0 / z, 0.02, theta, kind))
        assert exact <= steps.log_moment(0.02, theta, kind) <= 1.003 * exact


def test_epsilon_of_buckets() -> None:
    """Each of 200 levels twice is exact; if the second differs a little, buckets are needed."""
    z = np.random.default_rng(5).uniform(1.0, 3.0, 200)
    exact, bucketed = (
        pld.bracket_epsilon(
            np.concatenate([z, z * shift]),
            sample_rate=0.02,
            delta=1e-5,
            sampling="poisson",
            tolerance=0.002,
            size=5,
        )
        for shift in (1.0, 1.0 + 1e-9)
    )
    assert exact.lower <= bucketed.upper <= 1.003 * exact.upper
    assert bucketed.lower <= exact.upper


@pytest.mark.parametrize(("size", "mu"), [(2, 1.0), (3, 0.7), (10, 0.3), (10, 0.6)])
def test_divergences_are_convex_in_the_distance_of_the_buckets(size: int, mu: float) -> None:
    """The premise of the buckets: the mixture of two steps dominates one between them."""
    low, high = 0.9 * mu, 1.1 * mu
    reach = math.hypot(size, size - 1)

    def distance(at: float) -> float:
        return float(special.erf(reach * at / math.sqrt(8.0)))

    p = (distance(mu) - distance(low)) / (distance(high) - distance(low))
    gaps = []
    for q in (0.01, 0.3, 0.9):
        for epsilon in (0.0, 0.3, 1.0, 3.0, 8.0):
            for direction in DIRECTIONS:
                ends = [mixture_delta(at, q, size, epsilon, direction) for at in (low, high)]
                here = mixture_delta(mu, q, size, epsilon, direction)
                assert here <= (1.0 - p) * ends[0] + p * ends[1] + 1e-15
                gaps.append(here - 0.5 * (1.0 - p) * ends[0] - p * ends[1])
    # Half the weight below would not do.
    assert max(gaps) > 1e-6


def test_chains_of_gaussian_guarantees_come_near_the_truth() -> None:
    """μ-Gaussian privacy is kμ for groups, exactly; a chain can only be above."""
    log_deltas = np.linspace(-200.0, -1.0, 400)
    for mu in (0.1, 0.5, 1.0):
        epsilons = np.array([gaussian_epsilon(mu, math.exp(d)).upper for d in log_deltas])
        for size in (1, 2, 5, 10):
            true = gaussian_epsilon(size * mu, 1e-5).upper
            found, used = chained_epsilon(epsilons, log_deltas, 1e-5, size)
            assert true <= found <= 1.04 * true
            # The chain proves what it says: δ_i pass through the guarantees that follow.
            lost = 0.0
            for at in used:
                lost = lost * math.exp(epsilons[at]) + math.exp(log_deltas[at])
            assert lost <= 1e-5
            assert found == pytest.approx(epsilons[used].sum(), rel=1e-8)


@pytest.mark.parametrize("size", [5, 1000])
def test_noise_too_small_for_the_integrals_has_the_bound_of_full_batches(size: int) -> None:
    z = np.full(3, 0.05)
    mu = size * math.sqrt(3.0) / 0.05
    bound = group_epsilon(z, sample_rate=0.01, delta=1e-5, sampling="poisson", size=size)
    assert bound.epsilon == pytest.approx(gaussian_epsilon(mu, 1e-5).upper, rel=1e-9)
    assert bound.lower is None

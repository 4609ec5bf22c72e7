"""Rényi accounting against dp-accounting, quadrature, and concrete pairs of datasets."""

import math
import tracemalloc
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr
from tests.accounting.references import DIGITS, gaussian_delta, integral, moment_excess

from dither import accounting
from dither.accounting import ORDERS, RenyiAccountant, renyi_delta, renyi_divergences, renyi_epsilon
from dither.accounting.rdp import step_divergence
from dither.types import FloatArray


def log_uniform(random: np.random.Generator, low: float, high: float) -> float:
    return float(math.exp(random.uniform(math.log(low), math.log(high))))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("seed", range(20))
def test_integer_orders_against_dp_accounting(seed: int) -> None:
    dp: Any = pytest.importorskip("dp_accounting")
    random = np.random.default_rng([seed, 21])
    q = log_uniform(random, 1e-4, 0.5)
    noise = np.exp(random.uniform(math.log(0.5), math.log(20.0), 5))
    counts = random.integers(1, 1000, 5)
    orders = [2, 3, 4, 7, 16, 33, 64]
    peer = dp.rdp.RdpAccountant(orders)
    for z, count in zip(noise, counts, strict=True):
        event = dp.PoissonSampledDpEvent(q, dp.GaussianDpEvent(float(z)))
        peer.compose(event, int(count))
    ours = renyi_divergences(np.repeat(noise, counts), sample_rate=q, orders=orders)
    # The peer sums log A_α of order 1 in floating point: where the divergence is tiny, log(1 + x)
    # is only good to 2e-16/x.
    smallest = (np.asarray(orders) - 1.0) * ours / counts.sum()
    np.testing.assert_array_less(np.abs(ours / peer.rdp - 1.0), 1e-8 + 1e-13 / smallest)


def test_the_comparison_rejects_a_rate_that_is_slightly_off() -> None:
    right = renyi_divergences([1.0], sample_rate=0.01, orders=[2.0, 16.0])
    wrong = renyi_divergences([1.0], sample_rate=0.01 * (1.0 + 1e-7), orders=[2.0, 16.0])
    assert (np.abs(wrong / right - 1.0) > 2e-8).all()


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("seed", range(8))
def test_fractional_orders_against_quadrature(seed: int, sampling: str) -> None:
    random = np.random.default_rng([seed, 22])
    q, z = log_uniform(random, 1e-4, 0.9), log_uniform(random, 0.5, 30.0)
    order = 1.0 + log_uniform(random, 0.05, 20.0)
    mu = (2.0 if sampling == "fixed" else 1.0) / z
    kinds = ("fixed",) if sampling == "fixed" else ("poisson-remove", "poisson-add")
    truth = max(mpmath.log1p(moment_excess(mu, q, order - 1.0, kind)) for kind in kinds)
    truth /= mpmath.mpf(order - 1.0)
    (ours,) = renyi_divergences([z], sample_rate=q, orders=[order], sampling=sampling)
    # Rounded up by 2e-20 of M besides, which is seen where the divergence is tiny.
    assert 0.0 <= float(ours / truth - 1) <= 2e-11 + 4e-20 / (float(truth) * (order - 1.0))
    assert step_divergence(z, q, order, sampling) == pytest.approx(ours * (1 + 1e-10), rel=1e-12)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_a_full_batch_is_the_gaussian_mechanism(sampling: str) -> None:
    """a·μ²/2 at order a."""
    z = np.array([1.0, 3.0, 10.0])
    mu2 = (4.0 if sampling == "fixed" else 1.0) * float((z**-2.0).sum())
    orders = np.array([1.1, 2.0, 5.5, 30.0])
    ours = renyi_divergences(z, sample_rate=1.0, orders=orders, sampling=sampling)
    np.testing.assert_allclose(ours, 0.5 * orders * mu2, rtol=2e-11)
    assert (ours >= 0.5 * orders * mu2).all()


def brute_force_epsilon(divergences: FloatArray, orders: FloatArray, delta: float) -> float:
    """Smallest ε with min over orders of M(θ)·sup_ℓ (1 − e^(ε−ℓ))·e^(−θℓ) ≤ δ.

    E[(1 − e^(ε−L))₊] ≤ E[e^(θL)]·sup_ℓ (1 − e^(ε−ℓ))₊·e^(−θℓ), and no less for a law with two
    atoms; the supremum is taken on a grid of ℓ − ε.
    """
    best = math.inf
    for a, divergence in zip(orders, divergences, strict=True):
        theta = a - 1.0
        excess = np.geomspace(1e-6, 60.0, 400_001)
        log_sup = float((np.log(-np.expm1(-excess)) - theta * excess).max())
        best = min(best, (theta * divergence + log_sup - math.log(delta)) / theta)
    return max(best, 0.0)


@pytest.mark.parametrize("seed", range(6))
def test_the_conversion_against_brute_force(seed: int) -> None:
    random = np.random.default_rng([seed, 23])
    orders = np.sort(1.0 + np.exp(random.uniform(math.log(0.1), math.log(200.0), 12)))
    divergences = np.sort(np.exp(random.uniform(-6.0, 1.0, 12)))
    delta = 10.0 ** random.uniform(-12, -2)
    ours = renyi_epsilon(divergences, orders, delta)
    # On the grid, log ℓ is within 4.5e-5 of the best, where the curvature of log sup is below 1:
    # the supremum is found up to 1e-9.
    assert ours == pytest.approx(brute_force_epsilon(divergences, orders, delta), rel=1e-7)
    classical = float((divergences - math.log(delta) / (orders - 1.0)).min())
    assert ours < classical * (1.0 - 1e-3)


@pytest.mark.parametrize("sampling", accounting.SAMPLINGS)
@pytest.mark.parametrize("seed", range(6))
def test_epsilon_is_the_least_of_all_orders(seed: int, sampling: str) -> None:
    random = np.random.default_rng([seed, 29])
    q, delta = log_uniform(random, 1e-4, 1.0), log_uniform(random, 1e-9, 1e-2)
    z = log_uniform(random, 0.3, 60.0) * np.exp(random.uniform(0.0, 1.0, 7))
    found = accounting.epsilon(
        z, sample_rate=q, delta=delta, sampling=sampling, accountant="rdp"
    ).epsilon
    every = renyi_divergences(z, sample_rate=q, sampling=sampling)
    assert found == renyi_epsilon(every, ORDERS, delta)


@pytest.mark.parametrize("seed", range(4))
def test_delta_and_epsilon_are_inverse(seed: int) -> None:
    random = np.random.default_rng([seed, 24])
    divergences = renyi_divergences(
        np.exp(random.uniform(0.0, 2.0, 50)), sample_rate=log_uniform(random, 0.01, 0.5)
    )
    delta = 10.0 ** random.uniform(-12, -2)
    epsilon = renyi_epsilon(divergences, ORDERS, delta)
    assert epsilon > 0.0
    assert renyi_delta(divergences, ORDERS, epsilon) == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize("delta", [1e-12, 1e-8, 1e-5, 1e-3])
@pytest.mark.parametrize("mu", [0.01, 0.1, 1.0, 5.0, 20.0])
def test_sound_and_close_for_the_gaussian_mechanism(mu: float, delta: float) -> None:
    bound = accounting.epsilon([1.0 / mu], sample_rate=1.0, delta=delta, accountant="rdp")
    with mpmath.workdps(50):
        assert gaussian_delta(mpmath.mpf(mu), mpmath.mpf(bound.epsilon)) <= delta
    exact = accounting.epsilon([1.0 / mu], sample_rate=1.0, delta=delta).epsilon
    assert bound.epsilon <= 1.25 * exact + 0.01
    assert renyi_delta(
        renyi_divergences([1.0 / mu], sample_rate=1.0), ORDERS, bound.epsilon
    ) == pytest.approx(delta, rel=1e-9)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
def test_the_running_sum_is_the_batch(sampling: str) -> None:
    random = np.random.default_rng(25)
    schedule = random.choice([2.0, 3.5, 4.0, 8.0], 200)
    orders = [1.2, 2.0, 3.7, 16.0, 50.0]
    running = RenyiAccountant(orders=orders, sampling=sampling)
    for z in schedule:
        running.step(float(z), sample_rate=0.02)
    batch = renyi_divergences(schedule, sample_rate=0.02, orders=orders, sampling=sampling)
    np.testing.assert_allclose(running.divergences, batch, rtol=1e-12)
    assert running.epsilon(1e-6) == pytest.approx(
        renyi_epsilon(batch, np.array(orders), 1e-6), rel=1e-12
    )
    running.step(2.0, sample_rate=1.0)
    assert running.epsilon(1e-6) > renyi_epsilon(batch, np.array(orders), 1e-6)


def wang_divergence(mu: float, q: float, order: int) -> mpmath.mpf:
    """Theorem 9 of Wang, Balle and Kasiviswanathan 2019 with ε(j) = j·μ²/2 and ε(∞) = ∞."""
    with mpmath.workdps(50):
        m, rate = mpmath.mpf(mu), mpmath.mpf(q)

        def step(j: int) -> mpmath.mpf:
            return j * m * m / 2

        second = min(4 * mpmath.expm1(step(2)), 2 * mpmath.exp(step(2)))
        total = 1 + rate**2 * mpmath.binomial(order, 2) * second
        for j in range(3, order + 1):
            weight = 2 * mpmath.exp((j - 1) * step(j))
            total += rate**j * mpmath.binomial(order, j) * weight
        return mpmath.log(total) / (order - 1)


def replaced_divergence(mu: float, q: float, order: float) -> mpmath.mpf:
    """Rényi divergence of what is seen of one record, C or −C, among zeros: μ = C/σ.

    The record is in the batch with chance q, drawn with replacement or not: P and Q are
    (1−q)·N(0,1) + q·N(±μ,1).
    """
    with mpmath.workdps(DIGITS):
        m, rate, a = mpmath.mpf(mu), mpmath.mpf(q), mpmath.mpf(order)

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            null = (1 - rate) * mpmath.npdf(x)
            p = null + rate * mpmath.npdf(x - m)
            other = null + rate * mpmath.npdf(x + m)
            return p**a * other ** (1 - a)

        reach = 14.0 + 2.0 * float(mu) * order
        width = min(1.0, 1.0 / mu, 20.0 / (order * mu))
        return mpmath.log(integral(integrand, -reach, reach, width)) / (a - 1)


@pytest.mark.parametrize("order", [2, 3, 5, 12, 40])
@pytest.mark.parametrize(("z", "q"), [(1.0, 0.01), (2.0, 0.1), (5.0, 0.3), (20.0, 0.001)])
def test_fixed_batches_are_between_a_concrete_pair_and_wang(z: float, q: float, order: int) -> None:
    (ours,) = renyi_divergences([z], sample_rate=q, orders=[float(order)], sampling="fixed")
    assert ours <= float(wang_divergence(2.0 / z, q, order))
    if order * 2.0 / z < 30.0:
        assert ours >= float(replaced_divergence(1.0 / z, q, order))
    # One record C or −C among others that are all −C: what removing a record shows at noise z/2.
    (removed,) = renyi_divergences([0.5 * z], sample_rate=q, orders=[float(order)])
    assert ours >= removed * (1.0 - 1e-11)


def test_the_concrete_pair_rejects_a_sensitivity_of_one() -> None:
    """Accounting a replaced record like a removed one would be wrong, and is seen."""
    (wrong,) = renyi_divergences([2.0], sample_rate=0.2, orders=[4.0])
    assert wrong < 0.6 * float(replaced_divergence(0.5, 0.2, 4.0))


def floored_epsilon(
    loss: FloatArray, mass: FloatArray, steps: int, delta: float, cell: float
) -> float:
    """ε(δ) of equal steps by convolution, with every loss rounded down: never above the truth."""
    index = np.floor(loss / cell).astype(np.intp)
    low, high = int(index.min()), int(index.max())
    size = 1 << math.ceil(math.log2(steps * (high - low) + 2))
    one = np.zeros(size)
    np.add.at(one, index - low, mass)
    law = np.fft.irfft(np.fft.rfft(one) ** steps, size)
    losses = (steps * low + np.arange(size)) * cell
    keep = law > 1e-17  # what rounding leaves; dropping mass lowers δ further
    law, losses = law[keep], losses[keep]

    def delta_at(epsilon: float) -> float:
        return float((law * np.maximum(0.0, -np.expm1(epsilon - losses))).sum())

    below, above = 0.0, float(losses[-1])
    if delta_at(0.0) <= delta:
        return 0.0
    for _ in range(60):
        middle = 0.5 * (below + above)
        below, above = (middle, above) if delta_at(middle) > delta else (below, middle)
    return below


def concrete_pair(z: float, q: float, pair: str) -> tuple[FloatArray, FloatArray]:
    """Losses at the lower ends of fine cells, and masses of the cells under P; the rest is lost."""
    mu = 1.0 / z
    edges = np.linspace(-12.0, 12.0 + 2.0 * mu, 400_001)
    x = edges[:-1]
    if pair == "replaced among zeros":
        mass = (1.0 - q) * np.diff(ndtr(edges)) + q * np.diff(ndtr(edges - mu))
        up, down = (q * np.exp(sign * mu * x - 0.5 * mu * mu) for sign in (1.0, -1.0))
        return np.log((1.0 - q + up) / (1.0 - q + down)), mass
    mass = (1.0 - q) * np.diff(ndtr(edges)) + q * np.diff(ndtr(edges - 2.0 * mu))
    return np.log1p(q * np.expm1(2.0 * mu * x - 2.0 * mu * mu)), mass


@pytest.mark.parametrize("pair", ["replaced among zeros", "replaced among opposites"])
@pytest.mark.parametrize(
    ("z", "q", "steps", "delta"),
    [(1.0, 0.05, 20, 1e-5), (2.0, 0.2, 10, 1e-6), (4.0, 0.5, 50, 1e-4), (0.7, 0.01, 5, 1e-6)],
)
def test_fixed_batches_cover_concrete_pairs(
    z: float, q: float, steps: int, delta: float, pair: str
) -> None:
    loss, mass = concrete_pair(z, q, pair)
    truth = floored_epsilon(loss, mass, steps, delta, cell=1e-4)
    z_all = np.full(steps, z)
    bound = accounting.epsilon(z_all, sample_rate=q, delta=delta, sampling="fixed")
    assert 0.0 < truth <= bound.epsilon
    rdp = accounting.epsilon(z_all, sample_rate=q, delta=delta, sampling="fixed", accountant="rdp")
    assert bound.epsilon <= rdp.epsilon
    if pair == "replaced among opposites":
        # For α ≥ 1 the dominating pair of one step is this one: its mirror image is all that is
        # added, and rounding down costs at most half a cell a step.
        assert bound.epsilon <= 1.2 * (truth + 1e-4 * steps)
        wrong = accounting.epsilon(z_all, sample_rate=q, delta=delta, sampling="poisson")
        assert wrong.epsilon < truth


def test_large_orders_of_fixed_batches_need_little_memory() -> None:
    """Work that grows with the square of the order would make the default orders useless."""
    tracemalloc.start()
    renyi_divergences([1.5], sample_rate=0.03, orders=[1000.0], sampling="fixed")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 50e6


def test_refuses_orders_that_are_not_above_one() -> None:
    with pytest.raises(ValueError, match="orders must be above 1, got 1"):
        renyi_divergences([1.0], sample_rate=0.1, orders=[1.0, 2.0])
    with pytest.raises(ValueError, match="orders must be above 1, got 0.5"):
        RenyiAccountant(orders=[0.5, 2.0])
    with pytest.raises(ValueError, match="sampling must be one of fixed, poisson, got 'shuffle'"):
        RenyiAccountant(sampling="shuffle")
    with pytest.raises(ValueError, match="noise_multiplier must be a positive, finite number"):
        RenyiAccountant().step(0.0, sample_rate=0.1)
    with pytest.raises(ValueError, match="delta must be strictly between 0 and 1, got 0"):
        RenyiAccountant().epsilon(0)


def test_what_is_not_a_number_claims_nothing() -> None:
    nothing = np.array([math.nan, 1.0])
    assert renyi_epsilon(nothing, np.array([2.0, 3.0]), 1e-5) == math.inf
    assert renyi_delta(nothing, np.array([2.0, 3.0]), 1.0) == 1.0

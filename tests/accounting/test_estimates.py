"""Central limit, privacy theorem and lemmas: by hand; and what the paper's footnote says."""

import math

import mpmath
import numpy as np
import pytest
from tests.accounting.references import gaussian_delta

from dither import accounting, theory
from dither.accounting import renyi_divergences
from dither.types import FloatArray


def random_run(
    seed: int, *, least: float = 0.7, most: float = 50.0
) -> tuple[FloatArray, float, float]:
    random = np.random.default_rng([seed, 31])
    steps = int(random.integers(2, 400))
    z = np.exp(random.uniform(math.log(least), math.log(most), steps))
    q = float(np.exp(random.uniform(math.log(1e-3), math.log(0.4))))
    return z, q, float(10.0 ** random.uniform(-9, -4))


def central_limit_mu(z: FloatArray, q: float, sampling: str) -> mpmath.mpf:
    """Bu, Dong, Long and Su 2020; Dong, Roth and Su 2022, corollary 5.4 with the effect 2/z."""
    noise = [mpmath.mpf(float(x)) for x in z]
    if sampling == "poisson":
        return mpmath.mpf(q) * mpmath.sqrt(mpmath.fsum(mpmath.expm1(1 / x**2) for x in noise))
    shifts = [2 / x for x in noise]
    total = mpmath.fsum(
        mpmath.exp(m * m) * mpmath.ncdf(3 * m / 2) + 3 * mpmath.ncdf(-m / 2) - 2 for m in shifts
    )
    return mpmath.mpf(q) * mpmath.sqrt(2 * total)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("seed", range(8))
def test_central_limit_by_hand(seed: int, sampling: str) -> None:
    z, q, delta = random_run(seed)
    bound = accounting.epsilon(z, sample_rate=q, delta=delta, sampling=sampling, accountant="gdp")
    assert (bound.is_upper_bound, bound.lower) == (False, None)
    with mpmath.workdps(40):
        mu = central_limit_mu(z, q, sampling)
        for wrong in (-1, 1):
            near = mpmath.mpf(bound.epsilon) * (1 + wrong * mpmath.mpf("1e-9"))
            assert (gaussian_delta(mu, near) < delta) == (wrong > 0)
        back = accounting.delta(
            z, sample_rate=q, epsilon=bound.epsilon, sampling=sampling, accountant="gdp"
        )
        assert back.delta == pytest.approx(delta, rel=1e-8)
        assert not back.is_upper_bound


def test_central_limit_of_a_full_batch_is_not_the_gaussian_mechanism() -> None:
    """q = 1: the estimate is √Σ(e^(1/z²) − 1) ≥ √Σ1/z², so that it is proven all the same."""
    z = [2.0, 3.0, 9.0]
    for sampling in ("poisson", "fixed"):
        exact, bound = (
            accounting.epsilon(
                z, sample_rate=1.0, delta=1e-6, sampling=sampling, accountant=accountant
            )
            for accountant in ("pld", "gdp")
        )
        assert bound.is_upper_bound
        assert bound.epsilon >= exact.epsilon


def test_central_limit_is_an_estimate() -> None:
    """Few steps with little noise: it is below the certified lower bound."""
    certified, estimate = (
        accounting.epsilon([0.6, 0.6, 0.7], sample_rate=0.01, delta=1e-6, accountant=accountant)
        for accountant in ("pld", "gdp")
    )
    assert certified.lower is not None
    assert estimate.epsilon < 0.5 * certified.lower
    assert not estimate.is_upper_bound


@pytest.mark.parametrize("seed", range(20))
def test_theorem_by_hand(seed: int) -> None:
    """ε = 16·q·√(B_δ·Σ1/z²) with B_δ = log(16·T·q/δ)·log(1.25/δ)."""
    z, q, delta = random_run(seed, least=1.0, most=1000.0)
    bound = accounting.epsilon(
        z, sample_rate=q, delta=delta, sampling="fixed", accountant="theorem"
    )
    B = math.log(16.0 * z.size * q / delta) * math.log(1.25 / delta)
    assert bound.epsilon == pytest.approx(16.0 * q * math.sqrt(B * (z**-2.0).sum()), rel=1e-9)
    n = 10**6
    condition = theory.adp_condition(
        z, dataset_size=n, batch_size=round(q * n), epsilon=bound.epsilon, delta=delta
    )
    assert bound.is_upper_bound == condition.holds


def test_theorem_follows_its_condition() -> None:
    """Both answers occur: the theorem needs noise that single steps are private with."""
    found = {
        accounting.epsilon(
            np.full(1000, z), sample_rate=q, delta=1e-6, sampling="fixed", accountant="theorem"
        ).is_upper_bound
        for z, q in ((400.0, 0.01), (400.0, 0.6), (3.0, 0.01))
    }
    assert found == {True, False}


def lemmas_epsilon(z: FloatArray, q: float, delta: float, width: float) -> mpmath.mpf:
    """Gaussian lemma at δ_0 = δ/(12.8·T·q), sampling, and the extended advanced composition."""
    with mpmath.workdps(40):
        share = mpmath.mpf("12.8")
        each_delta = mpmath.mpf(delta) / (share * z.size * mpmath.mpf(q))
        spread = drift = mpmath.mpf(0)
        for x in z:
            single = mpmath.sqrt(2 * mpmath.log(mpmath.mpf("1.25") / each_delta)) * width
            e = mpmath.mpf(q) * mpmath.expm1(single / mpmath.mpf(float(x)))
            spread += e * e
            drift += e * mpmath.expm1(e) / (mpmath.exp(e) + 1)
        slack = mpmath.mpf(delta) * (1 - 1 / share)
        return mpmath.sqrt(2 * spread * mpmath.log(1 / slack)) + drift


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("seed", range(10))
def test_lemmas_by_hand(seed: int, sampling: str) -> None:
    z, q, delta = random_run(seed, least=3.0, most=300.0)
    width = 2.0 if sampling == "fixed" else 1.0
    bound = accounting.epsilon(
        z, sample_rate=q, delta=delta, sampling=sampling, accountant="advanced"
    )
    assert bound.epsilon == pytest.approx(float(lemmas_epsilon(z, q, delta, width)), rel=1e-9)
    single = math.sqrt(2.0 * math.log(1.25 * 12.8 * z.size * q / delta)) * width / z.min()
    assert bound.is_upper_bound == (single < 1.0)


def test_lemmas_that_overflow_claim_nothing() -> None:
    bound = accounting.epsilon(
        [0.04] * 10, sample_rate=0.1, delta=1e-9, sampling="fixed", accountant="advanced"
    )
    assert (bound.epsilon, bound.is_upper_bound) == (math.inf, False)
    bound = accounting.epsilon([1.0], sample_rate=1e-4, delta=0.5, accountant="advanced")
    assert (bound.epsilon, bound.is_upper_bound) == (math.inf, False)


@pytest.mark.parametrize("sampling", ["poisson", "fixed"])
@pytest.mark.parametrize("accountant", ["theorem", "advanced"])
@pytest.mark.parametrize("seed", range(4))
def test_what_is_proven_covers_the_privacy_loss(seed: int, accountant: str, sampling: str) -> None:
    z, q, delta = random_run(seed, least=40.0, most=400.0)
    q = min(q, 0.1)
    exact, bound = (
        accounting.epsilon(z, sample_rate=q, delta=delta, sampling=sampling, accountant=name)
        for name in ("pld", accountant)
    )
    if accountant == "advanced":
        assert bound.is_upper_bound
    if bound.is_upper_bound:
        assert bound.epsilon >= exact.epsilon


# ε̄ and what the paper's footnote says the moments accountant gives for it; T = 11,700 steps with
# 256 of 50,000 records and δ = 1e-5.
FOOTNOTE = {0.8: 0.29, 1.2: 0.43, 1.6: 0.57, 3.2: 1.23, 6.4: 3.24}


@pytest.mark.parametrize(("nominal", "stated"), FOOTNOTE.items())
def test_the_footnote_of_the_paper(nominal: float, stated: float) -> None:
    """Our ε is a third lower; the conversion of that time explains most of it, B_δ the rest.

    The footnote does not say how it counts. The classical conversion, ε = RDP + log(1/δ)/(a−1) at
    whole orders, brings its numbers within 4 % (ε̄ = 0.8) to 18 % (6.4) with the appendix's B_δ,
    whose logarithm has a factor m, and overshoots with the main text's, which has none: every one
    of its numbers is between the two. The tight accountant is below both.
    """
    T, m, n, delta = 11_700, 256, 50_000, 1e-5
    appendix = m * theory.adp_sigma(
        np.ones(T),
        clip_norm=1.0,
        dataset_size=n,
        batch_size=m,
        epsilon=16.0 * nominal,
        delta=delta,
    )
    ratio = math.log(16.0 * T / (n * delta)) / math.log(16.0 * T * m / (n * delta))
    main_text = appendix * math.sqrt(ratio)

    def classical(z: float) -> float:
        orders = np.arange(2.0, 65.0)
        divergences = renyi_divergences(np.full(T, z), sample_rate=m / n, orders=orders)
        return float((divergences - math.log(delta) / (orders - 1.0)).min())

    ours = accounting.epsilon(np.full(T, appendix), sample_rate=m / n, delta=delta)
    assert ours.lower is not None
    assert 0.6 * stated < ours.lower < ours.epsilon < 0.7 * stated
    assert abs(classical(appendix) - stated) < 0.6 * abs(ours.epsilon - stated)
    assert 0.8 * stated < classical(appendix) < stated < classical(main_text) < 1.2 * stated
    # Replacing a record of a fixed batch, which the theorem is about, costs more than twice that.
    fixed = accounting.epsilon(
        np.full(T, appendix), sample_rate=m / n, delta=delta, sampling="fixed"
    )
    assert fixed.epsilon > 2.2 * ours.epsilon

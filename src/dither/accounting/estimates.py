"""Accountants for comparison: the central limit, and the paper's own bounds."""

import math

import numpy as np

from dither import theory
from dither.accounting.gaussian import gaussian_delta, gaussian_epsilon
from dither.types import FloatArray


def central_limit_mu(z: FloatArray, sample_rate: float, sampling: str) -> float:
    """Return μ of the Gaussian mechanism which the steps resemble when there are many.

    Poisson: q·√(Σ(e^(1/z²) − 1)) (Bu, Dong, Long and Su 2020). Fixed size, replace-one:
    q·√(2·Σ(e^(μ²)·Φ(3μ/2) + 3·Φ(−μ/2) − 2)), μ = 2/z (Dong, Roth and Su 2022). An estimate, not a
    bound: it can be far too small where single steps matter. A full batch is that mechanism itself.
    """
    if sample_rate == 1.0:
        return (2.0 if sampling == "fixed" else 1.0) * math.sqrt(math.fsum(z**-2.0))
    if sampling == "fixed":
        from scipy.special import ndtr

        mu = np.minimum(2.0 / z, 25.0)
        each = 2.0 * (np.exp(mu**2) * ndtr(1.5 * mu) + 3.0 * ndtr(-0.5 * mu) - 2.0)
    else:
        each = np.expm1(np.minimum(z**-2.0, 600.0))
    return sample_rate * math.sqrt(float(np.sum(each)))


def central_limit_epsilon(z: FloatArray, sample_rate: float, delta: float, sampling: str) -> float:
    """Return ε(δ) of that Gaussian mechanism."""
    return gaussian_epsilon(central_limit_mu(z, sample_rate, sampling), delta).upper


def central_limit_delta(z: FloatArray, sample_rate: float, epsilon: float, sampling: str) -> float:
    """Return δ(ε) of that Gaussian mechanism."""
    return gaussian_delta(central_limit_mu(z, sample_rate, sampling), epsilon)


def theorem_epsilon(z: FloatArray, sample_rate: float, delta: float) -> tuple[float, bool]:
    """Return the privacy theorem's ε for noise z_t, and whether its condition holds.

    With z_t = m·α_t·σ/C_G the theorem reads ε = 16·q·√(B_δ·Σ1/z_t²) and depends on m and n through
    q alone; a dataset of 10¹² records stands for any other with the same q.
    """
    n = 10**12
    m = max(1, math.ceil(sample_rate * n))
    epsilon = theory.adp_epsilon(
        z, sigma=1.0 / m, clip_norm=1.0, dataset_size=n, batch_size=m, delta=delta
    )
    condition = theory.adp_condition(z, dataset_size=n, batch_size=m, epsilon=epsilon, delta=delta)
    return epsilon, condition.holds


def advanced_epsilon(
    z: FloatArray, sample_rate: float, delta: float, sampling: str
) -> tuple[float, bool]:
    """Return ε by the paper's lemmas alone: Gaussian, sampled, then composed; and if they apply.

    δ is split as in the proof of the privacy theorem. The Gaussian lemma needs ε < 1 per step;
    where that fails, its formula is used all the same and nothing is claimed.
    """
    T, width = z.size, 2.0 if sampling == "fixed" else 1.0
    each_delta = delta / (12.8 * T * sample_rate)
    if each_delta >= 1.0:
        return math.inf, False
    each = math.sqrt(2.0 * math.log(1.25 / each_delta)) * width / z
    with np.errstate(over="ignore"):
        sampled = np.expm1(each) * sample_rate
    if not np.isfinite(sampled).all() or sampled.max() > 1e50:
        return math.inf, False
    composed = theory.extended_advanced_composition(
        sampled, np.full(T, each_delta * sample_rate), delta * (1.0 - 1.0 / 12.8)
    )
    return composed.epsilon, bool(each.max() < 1.0 - 1e-12)

"""One Gaussian mechanism, exactly: full batches, and single sampled steps.

T full-batch steps are one Gaussian mechanism with μ = √(Σ 1/z_t²) clip norms over noise, and for it
δ(ε) = Φ(μ/2 − ε/μ) − e^ε·Φ(−μ/2 − ε/μ) (Balle and Wang 2018).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

#: The formulas below are good to about 1e-12 relative.
ROUNDING = 1e-11
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(8)


@dataclass(frozen=True)
class Bracket:
    """A certified upper and lower bound on the same quantity."""

    upper: float
    lower: float


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Return δ(ε) of the Gaussian mechanism with sensitivity μ standard deviations.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    from scipy.special import erfcx, ndtr

    a, b = 0.5 * mu - epsilon / mu, -0.5 * mu - epsilon / mu
    root = math.sqrt(0.5)
    if mu < 0.2 and a < 1.0:
        # The two tails nearly cancel; their difference is an integral that does not:
        # erfcx(x) − erfcx(x + h) = ∫ 2/√π − 2t·erfcx(t) dt.
        half = 0.5 * mu * root
        t = -a * root + half * (1.0 + _NODES)
        slope = 2.0 / math.sqrt(math.pi) - 2.0 * t * erfcx(t)
        return 0.5 * math.exp(-0.5 * a * a) * half * float(_WEIGHTS @ slope)
    # e^ε·φ(b) = φ(a), so that both terms share the factor e^(−a²/2) and nothing overflows.
    if a > 0.0:
        return float(ndtr(a)) - 0.5 * math.exp(-0.5 * a * a) * float(erfcx(-b * root))
    tails = float(erfcx(-a * root)) - float(erfcx(-b * root))
    return 0.5 * math.exp(-0.5 * a * a) * tails


def gaussian_epsilon(mu: float, delta: float) -> Bracket:
    """Return ε(δ) of the Gaussian mechanism.

    >>> round(gaussian_epsilon(1.0, 1e-5).upper, 6)
    4.377178
    """
    return _crossing(lambda epsilon: gaussian_delta(mu, epsilon), delta, 0.5 * mu * mu + mu)


def single_step_delta(mu: float, sample_rate: float, epsilon: float) -> float:
    """Return δ(ε) of one sampled step: the larger of removing and adding a record.

    Removing: q·δ_G(ε′) with e^ε′ = 1 + (e^ε − 1)/q. Adding: with kept = 1 − e^ε·(1−q) > 0,
    kept·δ_G(ε′) with e^ε′ = 1 + (e^ε − 1)/kept.
    """
    q = sample_rate
    kept = q - (1.0 - q) * math.expm1(min(epsilon, 700.0))
    return max(
        share * gaussian_delta(mu, _inner(epsilon, share)) for share in (q, kept) if share > 0.0
    )


def _inner(epsilon: float, share: float) -> float:
    """Return log(1 + (e^ε − 1)/share), for small and for large ε."""
    if epsilon < 1.0:
        return math.log1p(math.expm1(epsilon) / share)
    return epsilon + math.log(-math.expm1(-epsilon) / share + math.exp(-epsilon))


def single_step_epsilon(mu: float, sample_rate: float, delta: float) -> Bracket:
    """Return ε(δ) of one sampled step."""
    top = 0.5 * mu * mu + mu
    return _crossing(lambda epsilon: single_step_delta(mu, sample_rate, epsilon), delta, top)


def _crossing(delta_of: Callable[[float], float], delta: float, top: float) -> Bracket:
    """Return where a falling δ(ε), good to 1e-11, falls to δ."""
    smallest = _first(lambda epsilon: delta_of(epsilon) * (1.0 + ROUNDING) <= delta, top)
    largest = _first(lambda epsilon: delta_of(epsilon) * (1.0 - ROUNDING) < delta, top)
    return Bracket(smallest, largest * (1.0 - 1e-12))


def _first(holds: Callable[[float], bool], top: float) -> float:
    """Return an ε from which on it holds, at most 1e-12 relative beyond the first."""
    if holds(0.0):
        return 0.0
    low, high = 0.0, max(top, 1e-9)
    while not holds(high):
        low, high = high, 2.0 * high
    while high - low > 1e-12 * high:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high

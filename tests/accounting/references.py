"""Independent truths for the accountants: definitions by quadrature at 30 digits and more.

Nothing here shares a formula with `dither.accounting`: moments and divergences are integrals of the
laws themselves, and the law of a fixed batch is read off the theorem that bounds its profile.
"""

import functools
import itertools
import math
from collections.abc import Callable

import mpmath
import numpy as np

DIGITS = 30
Integrand = Callable[[mpmath.mpf], mpmath.mpc]


def gaussian_delta(mu: mpmath.mpf, epsilon: mpmath.mpf) -> mpmath.mpf:
    """δ(ε) of N(μ,1) against N(0,1) (Balle and Wang 2018), with digits to spare: it cancels."""
    with mpmath.extradps(30):
        a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
        return mpmath.ncdf(a) - mpmath.exp(epsilon) * mpmath.ncdf(b)


@functools.cache
def legendre(points: int) -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    """Nodes and weights of Gauss and Legendre's rule on [−1, 1]."""
    rule = []
    with mpmath.workdps(DIGITS + 20):
        for guess in np.polynomial.legendre.leggauss(points)[0]:
            x = mpmath.mpf(guess)
            for _ in range(4):
                here, before = mpmath.legendre(points, x), mpmath.legendre(points - 1, x)
                slope = points * (before - x * here) / (1 - x * x)
                x -= here / slope
            rule.append((x, 2 / ((1 - x * x) * slope**2)))
    return rule


def integral(f: Integrand, low: float, high: float, width: float, points: int = 32) -> mpmath.mpc:
    """∫ of f over panels of at most ``width``, without those below 1e-36 of the largest."""
    number = max(2, math.ceil((high - low) / width))
    ends = [mpmath.mpf(x) for x in np.linspace(low, high, number + 1)]
    sizes = [abs(f(x)) for x in ends]
    least = max(sizes) * mpmath.mpf(10) ** -36
    total = mpmath.mpf(0)
    sides = zip(itertools.pairwise(ends), itertools.pairwise(sizes), strict=True)
    for (a, b), size in sides:
        if max(size) > least:
            half, centre = (b - a) / 2, (a + b) / 2
            total += half * mpmath.fsum(w * f(centre + half * x) for x, w in legendre(points))
    return total


def moment_excess(mu: float, q: float, s: complex, kind: str, *, points: int = 32) -> mpmath.mpc:
    """M(s) − 1 of one step at s = θ + iω, to 20 digits relative at real s, however small it is."""
    with mpmath.workdps(DIGITS):
        m, rate = mpmath.mpf(mu), mpmath.mpf(q)
        at = mpmath.mpc(s) if complex(s).imag else mpmath.mpf(complex(s).real)
        law = _profile_moment if kind == "fixed" else _poisson_moment
        return law(m, rate, at, kind, points)


def _poisson_moment(
    mu: mpmath.mpf, q: mpmath.mpf, s: mpmath.mpc, kind: str, points: int
) -> mpmath.mpc:
    """∫ P·(P/Q)^s for P = (1−q)·N(0,1) + q·N(μ,1) and Q = N(0,1), or the other way round.

    M − 1 is the integral of Q·(r^κ − 1 − κ·(r − 1)), r = P/Q: the mean of r is 1.
    """
    kappa = s + 1 if kind == "poisson-remove" else -s
    reach = 14.0 + max(0.0, float(kappa.real) * float(mu))
    extra = int(2 * max(0.0, -math.log10(float(q * min(mu, 1))))) + 5

    def integrand(x: mpmath.mpf) -> mpmath.mpc:
        with mpmath.extradps(extra):
            v = q * mpmath.expm1(mu * x - mu * mu / 2)
            return mpmath.npdf(x) * ((1 + v) ** kappa - 1 - kappa * v)

    width = min(2.0, 1.2 / float(mu), 25.0 / (abs(kappa) * float(mu)))
    return integral(integrand, -14.0, reach, float(width), points)


def _profile_moment(
    mu: mpmath.mpf, q: mpmath.mpf, s: mpmath.mpc, kind: str, points: int
) -> mpmath.mpc:
    """M of the pair whose profile at α ≥ 1 is q·δ_G(log(1 + (α−1)/q)), and its mirror image below.

    For a pair with profile h that is its own mirror image, E_Q[f(P/Q)] is
    f(1) + ∫_1^∞ (f″(α) + α^−3·f″(1/α))·h(α) dα; here f(r) = r^(s+1) and α = 1 + q·(e^(μu) − 1).
    """

    def integrand(u: mpmath.mpf) -> mpmath.mpc:
        alpha = 1 + q * mpmath.expm1(mu * u)
        weights = alpha ** (s - 1) + alpha ** (-s - 2)
        return weights * mpmath.exp(mu * u) * gaussian_delta(mu, mu * u)

    top = 14.0 + float((s.real + 1) * mu)
    width = min(2.0, 1.2 / float(mu), float(25.0 / (abs(s + 1) * mu)))
    return s * (s + 1) * q * q * mu * integral(integrand, 0.0, top, width, points)


def hockey_stick(mu: mpmath.mpf, q: mpmath.mpf, alpha: mpmath.mpf, kind: str) -> mpmath.mpf:
    """H_α of one step by Neyman and Pearson: P − α·Q on the half-line where the loss exceeds log α.

    For ``fixed``, the bound of Balle, Barthe and Gaboardi 2018, theorem 9, and its mirror image.
    """
    if kind == "fixed":
        if alpha < 1:
            return 1 - alpha + alpha * hockey_stick(mu, q, 1 / alpha, kind)
        return q * hockey_stick(mu, mpmath.mpf(1), 1 + (alpha - 1) / q, "poisson-remove")
    level = alpha if kind == "poisson-remove" else 1 / alpha
    odds = (level - 1 + q) / q
    if odds <= 0:
        return 1 - alpha if kind == "poisson-remove" else mpmath.mpf(0)
    c = mpmath.log(odds) / mu + mu / 2
    if kind == "poisson-remove":
        return (1 - q - alpha) * mpmath.ncdf(-c) + q * mpmath.ncdf(mu - c)
    return mpmath.ncdf(c) - alpha * ((1 - q) * mpmath.ncdf(c) + q * mpmath.ncdf(c - mu))


def renyi_budget(epsilon: float, delta: float, order: float) -> mpmath.mpf:
    """The divergence whose conversion (Canonne, Kamath and Steinke 2020) is ε, at 40 digits."""
    with mpmath.workdps(40):
        a, e, d = mpmath.mpf(order), mpmath.mpf(epsilon), mpmath.mpf(delta)
        return e - mpmath.log((a - 1) / a) + mpmath.log(a * d) / (a - 1)

"""Moment transforms M(s) = E[e^(s·L)] of the privacy loss L of one noisy step, by quadrature.

A step with noise multiplier z is the pair of laws below, with μ = 1/z (μ = 2/z for a fixed batch
size, where replacing a record moves the sum by up to 2·C) and w(x) = 1 − q + q·e^(μx − μ²/2):

- ``poisson-remove``: P = (1−q)·N(0,1) + q·N(μ,1) against Q = N(0,1), L = log w under P, so that
  M(s) = E_{x~N(0,1)}[w^(s+1)].
- ``poisson-add``: Q against P, L = −log w under Q, M(s) = E_{x~N(0,1)}[w^(−s)].
- ``fixed``: m of n records without replacement, replace-one neighbours. Balle, Barthe and Gaboardi
  2018, theorem 9, bound the hockey-stick divergence at α ≥ 1 by q·H_{1+(α−1)/q} of N(μ,1) against
  N(0,1), and by symmetry at 1/α. That pair of bounds is convex in α, hence the profile of a pair of
  laws: with y = μx − μ²/2, L = ±log w for y > 0 and an atom at 0, and
  M(s) = E_{x~N(0,1)}[(w^(s+1) + w^(−s))·1{y>0}] + (1−q)·(2Φ(μ/2) − 1).

The integrands are analytic, so that the rules used here converge geometrically, and their errors
are bounded: see `_trapezoid_step`, `_panels` and `rounding`.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from dither.accounting.fourier import Sums, fourier_excess
from dither.accounting.ratio import (
    Direction,
    Kind,
    Ratio,
    continued_ratio,
    log_record_ratio,
    parts,
    power_excess,
    ratio,
    record_ratio,
)
from dither.types import FloatArray

_MOST_AT_ONCE = 500_000  # nodes, for the sake of memory
_CUT = 46.0  # nats below the maximum at which the integrand is cut off: e^-46 is 1e-20
_GAIN = 40.0  # nats by which the quadrature error is below the integral
_HEIGHTS = np.array([1.0, 0.7, 0.5, 0.35, 0.25, 0.12, 0.06, 0.03])
_RULE = np.polynomial.legendre.leggauss(64)
# (θ+1)·μ beyond which a moment is bounded by that of the full batch
_FAR: dict[Direction, float] = {"poisson-remove": 4000.0, "poisson-add": 4000.0, "fixed": 1000.0}


def rounding(mus: FloatArray, theta: float) -> FloatArray:
    """Return a bound on the error of log M(θ) relative to min(log M(θ), 1), for every μ.

    An exponent is a difference of terms of up to ((θ+1)·μ + 10)², and costs its size times a few
    units in the last place; elsewhere up to three digits cancel.
    """
    reach = (theta + 1.0) * mus + 10.0
    return np.asarray(1e-12 + 1e-15 * reach * reach)


def log_moments(mus: FloatArray, q: float, theta: float, kind: Kind) -> FloatArray:
    """Return log M(θ) for every μ, rounded up by about 1e-12 of min(log M, 1), and 2e-20.

    E[w] = 1, so that M − 1 = E[w^κ − 1 − κ·(w − 1)] with κ = θ + 1 or −θ: an integral of
    something that is never negative, in which nothing cancels. Where (θ+1)·μ is in the thousands,
    the moment is bounded by (θ+1)·θ·μ²/2, that of the full batch, of which sampling is a mixture
    with a step that reveals nothing.
    """
    direction, size = parts(kind)
    out = 0.5 * theta * (theta + 1.0) * (size * mus) ** 2
    if direction == "poisson-add" and q < 1.0:
        out = np.minimum(out, -theta * size * math.log1p(-q))
    is_near = (theta + 1.0) * size * mus <= _FAR[direction]
    near = np.flatnonzero(is_near) if q < 1.0 else np.zeros(0, np.intp)
    for part in _similar_mus(mus[near], 64, kind):
        at = near[part]
        if direction == "fixed":
            out[at] = _fixed_log_moments(mus[at], q, theta)
        else:
            out[at] = _poisson_log_moments(mus[at], q, theta, kind)
    return out + _slack(out, mus, q, theta, size)


def _slack(log_m: FloatArray, mus: FloatArray, q: float, theta: float, size: int) -> FloatArray:
    """Return how far off log M(θ) may be: by rounding, and by what lies beyond the cut."""
    beyond = 2e-20 * (1.0 + (theta + 1.0) * size * q)
    return np.minimum(log_m, 1.0) * rounding(size * mus, theta) + beyond


def is_far(mu: float, theta: float, kind: Kind) -> bool:
    """Return whether `log_moments` gives no more than the full batch's bound."""
    direction, size = parts(kind)
    return (theta + 1.0) * size * mu > _FAR[direction]


def _similar_mus(mus: FloatArray, most: int, kind: Kind) -> Iterator[np.ndarray]:
    """Yield the indices of up to ``most`` μ at a time that may share their nodes."""
    order = np.argsort(mus, kind="stable")
    start, widest = 0, 1.25 if kind == "fixed" else 10.0
    while start < order.size:
        alike = np.searchsorted(mus[order], widest * mus[order[start]], side="right")
        stop = min(int(alike), start + most)
        yield order[start:stop]
        start = stop


class Transforms(NamedTuple):
    """M(θ + iω)/M(θ) for several μ, one per row, on a grid of ω, one per column.

    Attributes:
        log_moment: log M(θ), rounded up.
        slack: by how much it may be rounded up.
        excess: M(θ + iω)/M(θ) − 1.
        error: bound on the error of ``excess``.
        mean_loss: the mean of |L| under the tilted law, which bounds how fast ``excess`` changes.
    """

    log_moment: FloatArray
    slack: FloatArray
    excess: np.ndarray
    error: FloatArray
    mean_loss: FloatArray


def transforms(
    mus: FloatArray, q: float, theta: float, spacing: float, number: int, kind: Kind
) -> Transforms:
    """Return the transforms at ω = 0, spacing, …, (number−1)·spacing."""
    excess = np.empty((mus.size, number), dtype=complex)
    error, mean = np.empty((mus.size, number)), np.empty(mus.size)
    nodes = node_count(float(mus.max()), q, theta, spacing * (number - 1), kind) if mus.size else 1
    for part in _similar_mus(mus, max(1, min(16, _MOST_AT_ONCE // nodes)), kind):
        weight, loss, strain = _tilted_law(mus[part], q, theta, spacing * (number - 1), kind)
        sums = fourier_excess(weight, loss, spacing, number)
        excess[part] = sums.values
        size = np.abs(loss)
        mean[part] = (weight * size).sum(axis=1)
        error[part] = _excess_error(weight, size, strain, spacing, sums)
    log_m = log_moments(mus, q, theta, kind)
    slack = 2.0 * _slack(log_m, mus, q, theta, parts(kind).size)
    return Transforms(log_m, slack, excess, error, mean)


def _tilted_law(
    mus: FloatArray, q: float, theta: float, omega: float, kind: Kind
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return masses and losses of the tilted law, and the size of what the exponents add up.

    Similar μ share the nodes that the largest needs. An atom at loss 0 is left out: it changes no
    excess, and the masses add up to less than 1.
    """
    from scipy.special import erf

    top = float(mus.max())
    direction, size = parts(kind)
    if direction == "fixed":
        t, rule = _panels(float(mus.min()), top, q, theta, omega)
        x, loss = t + 0.5 * mus[:, None], log_record_ratio(mus[:, None] * t, q)
        base = -0.5 * x * x + np.log(rule) - 0.5 * math.log(2.0 * math.pi)
        up, down = base + (theta + 1.0) * loss, base - theta * loss
        peak = np.maximum(up.max(axis=1), 0.0)[:, None]
        atom = (1.0 - q) * erf(mus / math.sqrt(8.0)) * np.exp(-peak[:, 0])
        log_weight, loss, x = (
            np.concatenate(pair, axis=1) for pair in ((up, down), (loss, -loss), (x, x))
        )
    else:
        x, _ = _line(top, q, theta, omega, kind)
        loss = ratio(mus[:, None], x, q, size).log
        kappa = theta + 1.0 if direction == "poisson-remove" else -theta
        log_weight = -0.5 * x * x + kappa * loss
        peak, atom = log_weight.max(axis=1)[:, None], np.zeros(mus.size)
        loss = loss if direction == "poisson-remove" else -loss
    keep = (log_weight > peak - _CUT).any(axis=0)
    # As rows in memory, which numpy adds up in pairs.
    log_weight, loss, x = (np.compress(keep, each, axis=-1) for each in (log_weight, loss, x))
    weight = np.exp(log_weight - peak)
    # The exponents of log w are differences, too.
    reach = size * mus[:, None]
    strain = 0.5 * x * x + (theta + 1.0) * (np.abs(loss) + reach * (np.abs(x) + reach))
    return weight / (weight.sum(axis=1) + atom)[:, None], loss, strain


def _excess_error(
    weight: FloatArray, size: FloatArray, strain: FloatArray, spacing: float, sums: Sums
) -> FloatArray:
    """Return a bound on the error of what `fourier_excess` adds up, for losses of this size.

    A node's terms are at most min(3·ω·|L|, 8) in size. Adding them costs a unit in the last place
    for each addition; a weight is good to a few units times the sizes that its exponent adds up,
    and so is their sum, by which they are divided; a phase to a unit times its size. The bound
    rises with ω and is taken at the next of a few ω.
    """
    number = sums.values.shape[1]
    ladder = np.minimum(2 ** np.arange(1 + max(number - 1, 1).bit_length()), max(number - 1, 1))
    each = 1.2e-16 * sums.additions + 2e-15 + 6e-16 * strain
    each = each + 6e-16 * (weight * strain).sum(axis=1)[:, None]
    terms = np.empty((size.shape[0], ladder.size))
    for at, n in enumerate(ladder):
        turn = spacing * n * size
        terms[:, at] = (weight * np.minimum(3.0 * turn, 8.0) * (each + 4e-16 * turn)).sum(axis=1)
    return np.asarray(
        terms[:, np.searchsorted(ladder, np.arange(number))] + 1e-17 + sums.error[:, None]
    )


def node_count(mu: float, q: float, theta: float, omega: float, kind: Kind) -> int:
    """Return how many nodes `transforms` would use up to that frequency."""
    if kind == "fixed":
        return int(_panels(mu, mu, q, theta, omega)[0].size)
    return _spacing(mu, q, theta, omega, kind)[2]


def _range(mu: float, q: float, theta: float, kind: Kind) -> tuple[float, float]:
    """Return the x outside which the tilted integrand is below e^−46 of its maximum.

    log w is convex, and its slope is between 0 and kμ. So for κ < 0 the logarithm of the integrand
    is concave; for κ ≥ 1 its slope is at least 9.5 left of −9.5 and at most −9.5 right of
    κkμ + 9.5. So what is beyond is less than what the ends show.
    """
    direction, size = parts(kind)
    kappa = theta + 1.0 if direction == "poisson-remove" else -theta
    low, high = -9.7, 9.7 + max(0.0, kappa * size * mu)

    def g(x: FloatArray) -> FloatArray:
        return -0.5 * x * x + kappa * ratio(np.array(mu), x, q, size).log

    while True:
        x = np.linspace(low, high, max(129, int(4.0 * (high - low))))
        values = g(x)
        best = values.max()
        if values[0] > best - _CUT:
            low -= 5.0
        elif values[-1] > best - _CUT:
            high += 5.0
        else:
            inside = np.flatnonzero(values > best - _CUT)
            return float(x[max(inside[0] - 1, 0)]), float(x[min(inside[-1] + 1, x.size - 1)])


def _line(mu: float, q: float, theta: float, omega: float, kind: Kind) -> tuple[FloatArray, float]:
    """Return the nodes of a trapezoidal rule on the line that serves every μ up to this one."""
    low, step, number = _spacing(mu, q, theta, omega, kind)
    return low + step * np.arange(number, dtype=np.float64), step


def _spacing(
    mu: float, q: float, theta: float, omega: float, kind: Kind
) -> tuple[float, float, int]:
    """Return the first node of that rule, its step, and how many nodes there are."""
    low, high = _range(mu, q, theta, kind)
    # log_moments also integrates w − 1, whose weight is centred at μ to kμ.
    low, high = min(low, -9.7), max(high, 9.7 + parts(kind).size * mu)
    step = _trapezoid_step(mu, q, theta, omega, kind, low, high)
    return low, step, int((high - low) / step) + 2


def _trapezoid_step(
    mu: float, q: float, theta: float, omega: float, kind: Kind, low: float, high: float
) -> float:
    """Return a step whose rule errs by at most e^−40 of M(θ).

    The rule's error on a function that is analytic in the strip |Im x| ≤ a is at most
    2·N(a)/(e^(2πa/h) − 1), N(a) = ∫|F(x + ia)|dx. Here |F(x + ia)| = φ(x)·e^(a²/2)·|w|^κ·
    e^(ω·|arg w|), w the continued mixture, and singular only from Im x = π/μ on.
    """
    direction, size = parts(kind)
    kappa = theta + 1.0 if direction == "poisson-remove" else -theta
    x = np.linspace(low, high, max(129, int(8.0 * (high - low))))
    dx = x[1] - x[0]
    real = -0.5 * x * x + kappa * ratio(np.array(mu), x, q, size).log
    log_m = _logsumexp(real) + math.log(dx)
    widest = min((0.9 if size == 1 else 0.5) * math.pi / mu, 12.0)
    a = widest * _HEIGHTS
    log_size, angle = continued_ratio(mu, x, a, q, size)
    grown = -0.5 * x * x + 0.5 * (a * a)[:, None] + kappa * log_size + omega * angle
    log_n = _logsumexp(grown) + math.log(dx) - log_m
    return float(np.max(2.0 * math.pi * a / (np.maximum(log_n, 0.0) + _GAIN + 2.0)))


def _logsumexp(values: FloatArray) -> FloatArray:
    top = values.max(axis=-1, keepdims=True)
    return np.asarray(top[..., 0] + np.log(np.exp(values - top).sum(axis=-1)))


def _panels(
    least: float, most: float, q: float, theta: float, omega: float
) -> tuple[FloatArray, FloatArray]:
    """Return 64-point Gauss–Legendre panels for t = x − μ/2 > 0 and least ≤ μ ≤ most.

    The rule errs by at most 5.7·r·sup|F|/2^128 on a panel of half-width r, the supremum taken over
    the ellipse ρ = 2, whose height is 0.75·r. With a = μ·Im t ≤ 2.64 < π there, w has no zero, and
    with π = q·e^y/(1 − q + q·e^y) at the ellipse's far end |arg w| ≤ 1.26·a·π. Going up from the
    real line multiplies φ·w^(θ+1) by at most e^(Im²/2 + ω·|arg w|), and w^(−θ) by at most
    e^(θ·π·a²/2) besides, as long as that is not negligible itself. With (ω + θ)·a·π ≤ 30, as r is
    chosen, that is below e^45 times the largest value of F; and F's integral is at least 1.2 times
    that value, since log F bends down no faster than a Gaussian's. So it is good to 1e-17.
    """
    high, widest = 9.7 + (theta + 1.0) * most, min(4.0, 3.5 / most)
    start = np.arange(0.0, high, 2.0 * widest)
    half = np.full(start.size, widest)
    while True:
        kept = _matters(start, half, least, q, theta) | _matters(start, half, most, q, theta)
        start, half = start[kept], half[kept]
        mirrored = np.where(theta * log_record_ratio(least * start, q) < 60.0, theta, 0.0)
        y = np.minimum(most * (start + 2.25 * half), 700.0)
        share = 1.0 / (1.0 + (1.0 - q) / q * np.exp(-y))
        too_wide = (omega + mirrored) * most * share * half > 40.0
        if not too_wide.any():
            break
        parts = np.where(too_wide, 2, 1)
        second = np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts)
        half = np.repeat(half / parts, parts)
        start = np.repeat(start, parts) + 2.0 * half * second
    node, rule = _RULE
    nodes = start[:, None] + half[:, None] * (1.0 + node)
    return nodes.ravel(), (half[:, None] * rule).ravel()


def _matters(start: FloatArray, half: FloatArray, mu: float, q: float, theta: float) -> np.ndarray:
    """Return which panels hold any of the integrand, by points at most 1/8 apart.

    Between those log F changes by less than 2, beyond what its ends show, wherever it is near the
    cut: its slope is at most 10 there, or it falls.
    """
    number = 2 + int(16.0 * float(half.max()))
    t = start[:, None] + 2.0 * half[:, None] * np.linspace(0.0, 1.0, number)
    loss = log_record_ratio(mu * t, q)
    base = -0.5 * (t + 0.5 * mu) ** 2
    log_f = np.maximum(base + (theta + 1.0) * loss, base - theta * loss)
    return np.asarray((log_f > log_f.max() - _CUT - 2.0).any(axis=1))


def _poisson_log_moments(mus: FloatArray, q: float, theta: float, kind: Kind) -> FloatArray:
    direction, size = parts(kind)
    x, step = _line(float(mus.max()), q, theta, 0.0, kind)
    kappa = theta + 1.0 if direction == "poisson-remove" else -theta
    found = ratio(mus[:, None], x, q, size)
    g = -0.5 * x * x - 0.5 * math.log(2.0 * math.pi) + kappa * found.log
    top = g.max(axis=1)
    large: FloatArray = top + np.log(np.exp(g - top[:, None]).sum(axis=1) * step)
    close = large < 1.0
    if close.any():
        log_weight = -0.5 * x * x + math.log(step / math.sqrt(2.0 * math.pi))
        excess = power_excess(Ratio(*(part[close] for part in found)), log_weight, kappa)
        large[close] = np.log1p(excess.sum(axis=1))
    return large


def _fixed_log_moments(mus: FloatArray, q: float, theta: float) -> FloatArray:
    from scipy.special import erf

    t, weight = _panels(float(mus.min()), float(mus.max()), q, theta, 0.0)
    x, y = t + 0.5 * mus[:, None], mus[:, None] * t
    loss = log_record_ratio(y, q)
    g = -0.5 * x * x - 0.5 * math.log(2.0 * math.pi) + np.log(weight)
    up, down = g + (theta + 1.0) * loss, g - theta * loss
    top = np.maximum(up.max(axis=1), 0.0)[:, None]
    atom = (1.0 - q) * erf(mus / math.sqrt(8.0))
    total = np.exp(up - top).sum(axis=1) + np.exp(down - top).sum(axis=1)
    large: FloatArray = top[:, 0] + np.log(total + atom * np.exp(-top[:, 0]))
    close = large < 1.0
    if close.any():
        # M − 1 = ∫ (w^(θ+1) − 1 − (θ+1)·v) + (w^(−θ) − 1 + θ·v) + v over y > 0, less the mass that
        # the atom lacks: (1−q)·TV + 2Φ(−μ/2) − 1 = −q·TV, and ∫ v over y > 0 is q·TV.
        found = record_ratio(y[close], q)
        excess = power_excess(found, g[close], theta + 1.0)
        excess += power_excess(found, g[close], -theta)
        large[close] = np.log1p(excess.sum(axis=1))
    return large


def distance_between(mu: FloatArray, other: FloatArray) -> FloatArray:
    """Return D(μ) − D(μ′), D = 2Φ(μ/2) − 1, from whichever end of D does not cancel."""
    from scipy.special import erf, erfc

    a, b = mu / math.sqrt(8.0), other / math.sqrt(8.0)
    return np.where(np.minimum(a, b) > 0.5, erfc(b) - erfc(a), erf(a) - erf(b))

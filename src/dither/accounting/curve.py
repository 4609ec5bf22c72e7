"""The privacy curve δ(ε) of many unequal steps, certified from above and below.

It comes from the characteristic function of the privacy loss.

The loss of a run is the sum L of its steps' losses, and for any θ > 0

    δ(ε) = E[(1 − e^(ε−L))₊] = (1/2π)·∫ M(s)·e^(−sε)/(s·(s+1)) dω,  s = θ + iω,  M(s) = E[e^(sL)],

where M is the product of the steps' transforms. Nothing is put on a grid of losses, so that
nothing is rounded up T times; every error is bounded:

- *Smoothing.* One more Gaussian release with noise multiplier 1/τ can only raise δ. It multiplies
  M by e^(τ²s(s+1)/2), which ends the integral after a few hundred points. It raises the integrand
  (1 − e^(ε−ℓ))₊ by at most τ·(1+τ)·φ((ℓ−ε)/τ + τ/2), whose transform is τ²·(1+τ) times the same
  factor: taken off again it gives a lower bound.
- *Sampling in ω.* The trapezoidal sum with spacing 2π/R is Σ_k e^(−θkR)·δ(ε − kR): never less than
  δ(ε), and more by terms that Chernoff's bound limits.
- *Cutting off* at ω = W, *buckets* of steps (see `dither.accounting.buckets`), *quadrature and
  rounding* (see `dither.accounting.transform`): each adds its bound to δ from above, and takes it
  off from below.

The tilt θ makes the sum one of positive terms of the size of δ, so that δ = 1e-12 is no harder
than δ = 1e-5.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dither.accounting.buckets import Sample
from dither.accounting.fourier import work
from dither.accounting.ratio import Kind
from dither.accounting.steps import SampledSteps
from dither.accounting.transform import node_count, transforms
from dither.types import FloatArray

_MOST_WORK = 4e9  # products; a frequency of a group counts for 1,000, for the sake of memory
_FEW_POINTS = 48
_PROBES = 6
_RATIO = 1.4  # between orders of moments that are compared


class TooFineError(ArithmeticError):
    """The integral would need too many frequencies: what is known already must suffice."""


class Curve:
    """δ(ε) of a run in one direction of the adjacency relation, bracketed.

    Args:
        steps: the steps of the run, reduced.
        kind: which pair of laws a step is.
        smoothing: τ·θ, the smoothing relative to the scale on which δ falls.
    """

    def __init__(self, steps: SampledSteps, kind: Kind, *, smoothing: float) -> None:
        self._steps = steps
        self._kind = kind
        self._smoothing = smoothing
        self._moments: dict[float, float] = {}

    def log_moment(self, theta: float) -> float:
        """Return an upper bound on log M(θ), remembered."""
        if theta not in self._moments:
            self._moments[theta] = self._steps.log_moment(theta, self._kind)
        return self._moments[theta]

    def chernoff(self, delta: float, enough: float = 0.0) -> tuple[float, float]:
        """Return (ε, θ): the best ε that moments alone give for δ, and the order that gives it.

        Or any that is at most ``enough``.
        """

        def epsilon(theta: float) -> float:
            log_ratio = self.log_moment(theta) - math.log(delta) + _best_payoff(theta)
            return log_ratio / theta

        spread = math.sqrt(max(self.log_moment(1.0), 1e-300))
        start = math.sqrt(-2.0 * math.log(delta)) / spread
        theta = _minimize(epsilon, min(max(start, 1e-3), 1e7), enough)
        return max(epsilon(theta), 0.0), theta

    def chernoff_delta(self, epsilon: float, theta: float) -> tuple[float, float]:
        """Return (log δ, θ): the best bound on log δ(ε) by moments, searched from ``theta``."""

        def log_delta(order: float) -> float:
            return self.log_moment(order) + _best_payoff(order) - order * epsilon

        best = _minimize(log_delta, theta)
        return log_delta(best), best

    def integral(self, epsilon: float, delta: float, theta: float, scale: float) -> "Integral":
        """Return the integral that brackets δ near ε, with errors small against ``delta``.

        ``theta`` is the moments' best order; ``scale`` is how fast log δ falls with ε there.
        """
        log_small = math.log(delta) - 11.5
        tilt, period = self.tilt_and_period(epsilon, log_small, theta)
        # The bound on what smoothing adds holds up to τ = 1.
        tau = min(self._smoothing / math.sqrt(scale * (scale + 1.0)), 1.0)
        spacing = 2.0 * math.pi / period
        number = math.ceil(6.5 / tau / spacing) + 2
        if self._steps.is_far(tilt, self._kind):
            raise TooFineError(f"the moment at {tilt:g} is only bounded")
        return Integral(self, tilt, period, tau, number)

    def tilt_and_period(
        self, epsilon: float, log_small: float, theta: float
    ) -> tuple[float, float]:
        """Return the tilt that needs the shortest period for aliases below e^log_small."""
        best = (math.inf, theta)
        orders = theta * _RATIO ** np.arange(-4.0, 4.0)
        for tilt in orders[:6]:
            below = -log_small / tilt
            above = min(
                (self.log_moment(order) - order * epsilon - log_small) / (order - tilt)
                for order in orders[orders > tilt * 1.1]
            )
            best = min(best, (max(below, above), float(tilt)))
        return best[1], best[0]

    def alias(self, epsilon: float, tilt: float, period: float, tau: float) -> float:
        """Bound Σ_{k≠0} e^(−θkR)·δ(ε − kR), δ smoothed, from what is known of the moments."""
        below = math.exp(-tilt * period) / -math.expm1(-tilt * period)
        above = math.inf
        for order, log_m in self._moments.items():
            if order > tilt * 1.05:
                fall = (order - tilt) * period
                smooth = 0.5 * tau * tau * order * (order + 1.0)
                first = log_m + smooth - order * epsilon - fall
                above = min(above, math.exp(min(first, 700.0)) / -math.expm1(-fall))
        return below + above


class Integral:
    """The trapezoidal sum for one tilt, spacing and smoothing; evaluates at any ε."""

    def __init__(self, curve: Curve, tilt: float, period: float, tau: float, number: int) -> None:
        self._curve = curve
        self._tilt, self._period, self._tau = tilt, period, tau
        self._spacing = 2.0 * math.pi / period
        steps, kind = curve._steps, curve._kind
        enough, self._dropped = _count_frequencies(steps, tilt, self._spacing, number, tau, kind)
        nodes = steps.nodes(tilt, self._spacing * enough, kind)
        if steps.groups * max(work(nodes, enough), 1000.0 * enough) > _MOST_WORK:
            raise TooFineError(f"{enough} frequencies and {nodes} nodes would be needed")
        omega = self._spacing * np.arange(enough, dtype=np.float64)
        s = tilt + 1j * omega
        up, down = steps.sample(tilt, self._spacing, enough, kind)
        self._omega = omega
        smooth = 0.5 * tau * tau * s * (s + 1.0)
        payoff = 1.0 / (s * (s + 1.0))
        weight = np.full(enough, self._spacing / math.pi)
        weight[0] *= 0.5
        self._up = _Terms.of(up, smooth, payoff, weight)
        self._down = _Terms.of(down, smooth, payoff - tau * tau * (1.0 + tau), weight)

    def upper(self, epsilon: float) -> float:
        """Return a certified upper bound on δ(ε)."""
        return self._up.value(epsilon, self._tilt, self._omega) + self._lost(epsilon, self._up)

    def lower(self, epsilon: float) -> float:
        """Return a certified lower bound on δ(ε); it may be negative."""
        value = self._down.value(epsilon, self._tilt, self._omega, sign=-1.0)
        return value - self._lost(epsilon, self._down) - self.alias(epsilon)

    def alias(self, epsilon: float) -> float:
        """Bound what sampling in ω adds to δ(ε)."""
        return self._curve.alias(epsilon, self._tilt, self._period, self._tau)

    @property
    def grid(self) -> tuple[float, float, int]:
        """The tilt, and spacing and number of the frequencies."""
        return self._tilt, self._spacing, self._omega.size

    def first_order(self, epsilon: float, log_transforms: np.ndarray) -> FloatArray:
        """Return by how much log δ(ε) grows, to first order, with one more step of each kind.

        ``log_transforms`` has log M(θ + iω) of a step in each row, on this integral's grid.
        """
        waves = self._up.coefficients * np.exp(-1j * self._omega * epsilon)
        return np.asarray((log_transforms @ waves).real / waves.real.sum())

    def slope(self, epsilon: float) -> float:
        """Return about how fast log δ falls at ε."""
        step = 0.01 / self._tilt
        ahead, here = self.upper(epsilon + step), self.upper(epsilon)
        return math.log(here / ahead) / step if 0.0 < ahead < here else 0.0

    def _lost(self, epsilon: float, terms: "_Terms") -> float:
        """Bound what lies beyond the last ω."""
        log_size = terms.log_moment - self._tilt * epsilon
        return math.exp(min(log_size, 700.0)) * self._dropped


@dataclass(frozen=True)
class _Terms:
    """The terms of the trapezoidal sum at ε = 0, in units of M(θ).

    Attributes:
        log_moment: log M(θ).
        coefficients: one per frequency.
        spread: bound on the sum of their errors.
        size: their sum in size.
    """

    log_moment: float
    coefficients: np.ndarray
    spread: float
    size: float

    @classmethod
    def of(
        cls, sample: Sample, smooth: np.ndarray, payoff: np.ndarray, weight: FloatArray
    ) -> "_Terms":
        log_ratio = sample.log_ratio + smooth
        noise = 1e-14 + 4e-16 * np.abs(np.where(np.isfinite(log_ratio), log_ratio, 0.0))
        with np.errstate(over="ignore", invalid="ignore"):
            coefficients = np.exp(log_ratio) * payoff * weight
            error = sample.error + noise
            size = np.exp(log_ratio.real)
            # A product of factors that nearly vanish has a vast relative error, yet is tiny.
            wide = 2.0 * np.exp(np.minimum(log_ratio.real + error, 700.0))
            spread = np.where(error < 1.0, size * np.expm1(error), wide) * np.abs(payoff) * weight
        return cls(
            sample.log_moment,
            coefficients,
            float(spread.sum()),
            float(np.abs(coefficients).sum()),
        )

    def value(self, epsilon: float, tilt: float, omega: FloatArray, *, sign: float = 1.0) -> float:
        """Return the sum at ε, with its own errors added (or, with sign −1, taken off)."""
        total = float((self.coefficients * np.exp(-1j * omega * epsilon)).real.sum())
        turned = 4e-16 * float(omega[-1]) * epsilon * self.size
        size = math.exp(min(self.log_moment - tilt * epsilon, 700.0))
        return size * (total + sign * (self.spread + turned))


def _count_frequencies(
    steps: SampledSteps, tilt: float, spacing: float, number: int, tau: float, kind: Kind
) -> tuple[int, float]:
    """Return how many frequencies count, and a bound on the sum of the rest relative to M(θ).

    Every step's M(θ + iω)/M(θ) is at most 1 in size, and those of one bucket are at most
    |m_j| + max(|m_{j+1} − m_j|, |m_j − m_{j−1}|), both for the mixtures that dominate and for those
    that are dominated, with m = M(θ + iω) at the edges over M_j(θ). For many steps the largest
    bucket alone shows that only the lowest frequencies matter.
    """
    omega = spacing * np.arange(number)
    log_size = -0.5 * tau * tau * omega**2 + 0.5 * tau * tau * tilt * (tilt + 1.0)
    log_size += np.log(np.maximum(omega, tilt) ** -2.0 + tau * tau * (1.0 + tau))
    enough = number
    for mus, count, q in steps.largest(_PROBES):
        if enough <= _FEW_POINTS or steps.number <= _FEW_POINTS:
            break
        log_size[:enough] += count * np.log(_sizes(mus, count, q, tilt, spacing, enough, kind))
        above = np.flatnonzero(log_size[:enough] > log_size[0] - 60.0)
        before, enough = enough, min(int(above[-1]) + 2, enough)
        if enough > 0.95 * before:
            break
    rest = float(np.exp(log_size[enough:]).sum()) * spacing / math.pi * 2.0
    end = omega[-1]
    beyond = math.exp(-0.5 * (tau * end) ** 2 + 0.5 * tau * tau * tilt * (tilt + 1.0))
    beyond *= (1.0 / end**2 + 2.0 * tau * tau) / (tau * tau * end) / math.pi
    return enough, rest + beyond


def _sizes(
    mus: FloatArray, count: float, q: float, tilt: float, spacing: float, number: int, kind: Kind
) -> FloatArray:
    """Bound |M(θ + iω)/M(θ)| of one group or bucket at every frequency, from some of them.

    Between two frequencies it changes by at most E|L| times half their distance. They are chosen so
    close that this costs at most a factor of e³ in the product of the ``count`` steps.
    """
    start = transforms(mus, q, tilt, spacing, 1, kind)
    here = 1 if mus.size > 1 else 0
    scale = np.exp(start.log_moment - start.log_moment[here])[:, None]
    change = 3.0 * float((scale[:, 0] * start.mean_loss).max())
    stride = min(max(int(6.0 / (count * change * spacing)), 1), number - 1)
    nodes = node_count(float(mus[-1]), q, tilt, spacing * number, kind)
    if mus.size * work(nodes, number // stride) > 0.02 * _MOST_WORK:
        raise TooFineError(f"{number // stride} frequencies and {nodes} nodes would be needed")
    found = transforms(mus, q, tilt, spacing * stride, (number - 1) // stride + 2, kind)
    m = (1.0 + found.excess) * scale
    size = np.abs(m[here])
    if mus.size > 1:
        size = size + np.maximum(np.abs(m[2] - m[1]), np.abs(m[1] - m[0]))
    size = size * (1.0 + 1e-12) + 1e-13
    # Each frequency is at most half a stride from one that was evaluated.
    size += 0.5 * change * spacing * (stride if stride > 1 else 0)
    nearest = (np.arange(number) + stride // 2) // stride
    return np.asarray(np.minimum(size[nearest], 1.0))


def _best_payoff(theta: float) -> float:
    """Return log sup_ℓ (1 − e^(−ℓ))·e^(−θℓ): what Chernoff's bound gains on the hockey stick."""
    return theta * math.log(theta / (theta + 1.0)) - math.log1p(theta)


def _minimize(function: Callable[[float], float], start: float, enough: float = -math.inf) -> float:
    """Return about where a function of log θ with one valley is lowest, searched from ``start``.

    The search ends as soon as a value is at most ``enough``.
    """
    values = {0: function(start)}
    best = 0
    for direction in (1, -1):
        at = best + direction
        while values[best] > enough and 1e-4 < start * _RATIO**at < 1e8:
            values[at] = function(start * _RATIO**at)
            if not values[at] < values[best]:
                break
            best, at = at, at + direction
    theta, value = start * _RATIO**best, values[best]
    sides = [values.get(best + direction, math.nan) - value for direction in (1, -1)]
    if not (value > enough and sum(sides) > 0.0 and math.isfinite(sum(sides))):
        return theta
    # The lowest point of the parabola through three values, and where it is between them.
    lowest = theta * _RATIO ** (0.5 * (sides[1] - sides[0]) / sum(sides))
    return lowest if function(lowest) < value else theta

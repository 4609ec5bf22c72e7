"""Certified ε and δ of many unequal steps: searches over their privacy curves.

A run's δ(ε) is bracketed by `dither.accounting.curve`, in both directions of the adjacency relation
("poisson-remove" and "poisson-add"; "fixed" is symmetric), and the larger one counts. Every ε that
is returned as an upper bound is one at which a certified upper bound on δ was found to be at most
the target.
"""

import math
from collections.abc import Callable

import numpy as np

from dither.accounting.curve import Curve, TooFineError
from dither.accounting.gaussian import Bracket
from dither.accounting.ratio import Group, Kind, parts
from dither.accounting.steps import SampledSteps, reduce_steps
from dither.types import FloatArray

KINDS: dict[str, tuple[Kind, ...]] = {
    "poisson": ("poisson-remove", "poisson-add"),
    "fixed": ("fixed",),
}
_STRONGEST = 50.0  # μ, beyond which differences of Gaussian tails underflow
# Widths of the buckets and smoothing relative to 1/θ; both err by their squares.
_REFINEMENTS = ((0.01, 0.05), (0.004, 0.02), (0.0015, 0.008), (0.0005, 0.003))
_COARSE, _ROUGH = (0.025, 0.1), (0.06, 0.4)
_STEEPER = 1.5  # how much faster δ may fall than was assumed
_ALIAS = 1e-3  # how much of δ aliases may be
_SMALLEST_DELTA, _NEGLIGIBLE_DELTA, _SMALLEST_EPSILON = 1e-30, 1e-15, 1e-3


def bracket_epsilon(
    noise_multipliers: FloatArray,
    *,
    sample_rate: float | FloatArray,
    delta: float,
    sampling: str,
    tolerance: float,
    size: int = 1,
) -> Bracket:
    """Return ε(δ), certified from both sides; under Poisson sampling, of a group of that size.

    The buckets and the smoothing are refined until (upper − lower)/upper is at most ``tolerance``,
    or until ε is below 1e-3. Where that would take too long (q below 1e-3 and few expected draws:
    then a small ε has to be distinguished from losses of several nats) the bracket stays wide.
    """
    upper, lower = math.inf, 0.0
    for width, smoothing in _REFINEMENTS:
        found = _bracket_once(
            noise_multipliers, sample_rate, delta, sampling, width, smoothing, size
        )
        upper, lower = min(upper, found.upper), max(lower, found.lower)
        if upper - lower <= tolerance * upper or upper < _SMALLEST_EPSILON:
            break
    return Bracket(upper, min(lower, upper))


def bracket_delta(
    noise_multipliers: FloatArray,
    *,
    sample_rate: float | FloatArray,
    epsilon: float,
    sampling: str,
    tolerance: float,
) -> Bracket:
    """Return δ(ε), certified from both sides, refined like `bracket_epsilon`.

    Where δ(ε) is below 1e-15 it is not refined, and below 1e-30 only that upper bound is given.
    """
    upper, lower = 1.0, 0.0
    for width, smoothing in _REFINEMENTS:
        steps = sampled_steps(noise_multipliers, sample_rate, sampling, width)
        both = [
            _delta_once(Curve(steps, kind, smoothing=smoothing), epsilon)
            for kind in KINDS[sampling]
        ]
        upper = min(upper, max(found.upper for found in both))
        lower = max(lower, max(found.lower for found in both))
        if upper - lower <= tolerance * upper or upper <= _NEGLIGIBLE_DELTA:
            break
    return Bracket(float(upper), float(lower))


def coarse_epsilon(
    noise_multipliers: FloatArray, *, sample_rate: float, delta: float, sampling: str
) -> float:
    """Return a certified upper bound on ε that is quick and good to about half a percent."""
    return _bracket_once(noise_multipliers, sample_rate, delta, sampling, *_COARSE).upper


def rough_epsilon(
    noise_multipliers: FloatArray, *, sample_rate: float, delta: float, sampling: str
) -> float:
    """Return a certified upper bound on ε that is quicker and good to a few percent."""
    return _bracket_once(noise_multipliers, sample_rate, delta, sampling, *_ROUGH).upper


def sensitivity(sampling: str) -> float:
    """Return by how many clip norms a neighbour moves the sum."""
    return 2.0 if sampling == "fixed" else 1.0


def least_noise(sampling: str) -> float:
    """Return the smallest noise multiplier that is accounted."""
    return sensitivity(sampling) / _STRONGEST


def sampled_steps(
    noise_multipliers: FloatArray,
    sample_rate: float | FloatArray,
    sampling: str,
    width: float,
    size: int = 1,
) -> SampledSteps:
    """Return the steps reduced, those of every sample rate by themselves."""
    mus = sensitivity(sampling) / noise_multipliers
    rates = np.broadcast_to(sample_rate, mus.shape)
    return SampledSteps(
        tuple((reduce_steps(mus[rates == q], width, size), float(q)) for q in np.unique(rates))
    )


def _bracket_once(
    z: FloatArray,
    q: float | FloatArray,
    delta: float,
    sampling: str,
    width: float,
    smoothing: float,
    size: int = 1,
) -> Bracket:
    steps = sampled_steps(z, q, sampling, width, size)
    kinds = KINDS[sampling]
    first, *others = kinds if size == 1 else tuple(Group(parts(k).direction, size) for k in kinds)
    found = _epsilon_once(Curve(steps, first, smoothing=smoothing), delta)
    for kind in others:
        if found.upper >= size * steps.most_by_adding():
            continue
        curve = Curve(steps, kind, smoothing=smoothing)
        by_moments, _ = curve.chernoff(delta, found.upper)
        if by_moments > found.upper:
            other = _epsilon_once(curve, delta)
            found = Bracket(max(found.upper, other.upper), max(found.lower, other.lower))
    return found


def _epsilon_once(curve: Curve, delta: float) -> Bracket:
    """Return ε(δ) of one curve: the moments' bound, and the integral's where it is better."""
    upper, theta = curve.chernoff(delta)
    lower, guess, scale = 0.0, 0.5 * upper, _STEEPER * theta
    for _ in range(6):
        if upper == 0.0:
            break
        try:
            integral = curve.integral(guess, delta, theta, scale)
        except TooFineError:
            if lower > 0.0 or scale <= theta:
                break
            scale = theta  # less work, of which more may have to be repeated
            continue
        upper = _crossing(integral.upper, delta, upper)
        lower = max(lower, _last_above(integral.lower, delta, upper))
        slope = integral.slope(upper)
        if integral.alias(upper) <= _ALIAS * delta and slope <= _STEEPER * scale:
            break
        guess, scale = 0.9 * upper, max(scale, slope)
    return Bracket(upper, lower)


def _last_above(function: Callable[[float], float], delta: float, top: float) -> float:
    """Return the largest ε ≤ top that can be shown to have δ(ε) ≥ δ, or 0."""
    back = 1e-5
    while function(top * (1.0 - back)) < delta:
        back *= 2.0
        if back > 0.9:
            return 0.0
    low, high = top * (1.0 - back), top
    while high - low > 1e-7 * top:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if function(middle) >= delta else (low, middle)
    return low


def _crossing(function: Callable[[float], float], delta: float, top: float) -> float:
    """Return an ε in [0, top] where the function is ≤ δ, close to where it crosses, else top."""
    if function(0.0) <= delta:
        return 0.0
    low, high = 0.0, top
    while high - low > 1e-8 * high:
        middle = 0.5 * (low + high)
        low, high = (middle, high) if function(middle) > delta else (low, middle)
    return high


def _delta_once(curve: Curve, epsilon: float) -> Bracket:
    spread = math.sqrt(max(curve.log_moment(1.0), 1e-300))
    start = min(max((epsilon + 0.1) / spread**2, 1e-3), 1e6)
    log_delta, theta = curve.chernoff_delta(epsilon, start)
    if log_delta < math.log(_SMALLEST_DELTA):
        return Bracket(_SMALLEST_DELTA, 0.0)
    upper, lower, scale = min(math.exp(log_delta), 1.0), 0.0, theta
    target = upper
    for _ in range(8):
        try:
            integral = curve.integral(epsilon, target, theta, scale)
        except TooFineError:
            break
        upper = min(upper, integral.upper(epsilon))
        lower = max(lower, integral.lower(epsilon))
        slope = integral.slope(epsilon)
        if integral.alias(epsilon) <= _ALIAS * lower and slope <= _STEEPER * scale:
            break
        target, scale = min(target, 0.5 * upper, max(lower, 1e-3 * upper)), max(scale, slope)
    return Bracket(upper, lower)
